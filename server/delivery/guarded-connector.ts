import { isIP, type LookupFunction, type Socket } from 'node:net'
import { buildConnector, errors } from 'undici'
import { whenArrivedIsRead } from '../arrived.ts'
import { inTenths, setFacts, timeConnection } from './connection-facts.ts'
import { createLookup, type Lookup } from './names.ts'
import { AddressNotAllowedError, type NetworkGuard } from './network-guard.ts'
import { tunnel } from './proxy.ts'

/** The proxy for requests to a URL, if any. */
export type ProxyFor = (url: string) => string

/**
 * A connector for undici that connects to allowed addresses only. It checks IP literals, which never reach a lookup; it
 * tries only the allowed addresses of a name; and it checks the address of the connection before it sends a byte. A
 * proxy receives a checked address and no name. Lookup, connection and TLS handshake together take at most
 * `connectTimeoutMs`.
 */
export const createGuardedConnector = (guard: NetworkGuard, options: GuardOptions): buildConnector.connector => {
  const connector = new GuardedConnector(guard, options)
  return (options, callback) => connector.connect(options, callback)
}

type GuardOptions = { connectTimeoutMs: number; lookup?: Lookup; proxyFor: ProxyFor }

type Connect = (...args: Parameters<buildConnector.connector>) => Socket

class GuardedConnector {
  readonly #guard: NetworkGuard
  readonly #connectTimeoutMs: number
  readonly #lookup: Lookup
  readonly #proxyFor: ProxyFor
  readonly #connect: Connect

  constructor(guard: NetworkGuard, { connectTimeoutMs, lookup = createLookup(), proxyFor }: GuardOptions) {
    this.#guard = guard
    this.#connectTimeoutMs = connectTimeoutMs
    this.#lookup = lookup
    this.#proxyFor = proxyFor
    const guarded: LookupFunction = (host, options, callback) => this.#lookUp(host, options, callback)
    // The connector that undici builds returns its socket, though its type does not say so. Its own timeout is off,
    // because it fires up to a second late.
    this.#connect = buildConnector({ timeout: 0, allowH2: false, lookup: guarded }) as Connect
  }

  connect(options: buildConnector.Options, callback: buildConnector.Callback): void {
    const { hostname, host, protocol } = options
    if (isIP(hostname) !== 0 && !this.#guard.isAllowed(hostname)) {
      callback(new AddressNotAllowedError(hostname, [hostname]), null)
      return
    }
    const proxy = this.#proxyFor(`${protocol}//${host}`)
    if (proxy === '') this.#connectDirectly(options, callback)
    else this.#connectByProxy(proxy, options, callback)
  }

  #lookUp(...[host, options, callback]: Parameters<LookupFunction>): void {
    this.#lookup(host, { ...options, all: true }, (error, addresses) => {
      if (error) return callback(error, [])
      const allowed = addresses.filter(({ address }) => this.#guard.isAllowed(address))
      if (allowed.length === 0) {
        const refused = addresses.map(({ address }) => address)
        return callback(new AddressNotAllowedError(host, refused), [])
      }
      if (options.all) return callback(null, allowed)
      callback(null, allowed[0]!.address, allowed[0]!.family)
    })
  }

  #tooLate(hostname: string): Error {
    return new errors.ConnectTimeoutError(`No connection to ${hostname} within ${this.#connectTimeoutMs / 1000} s`)
  }

  #connectDirectly(options: buildConnector.Options, callback: buildConnector.Callback): void {
    const { hostname } = options
    let refused: Error | undefined
    let connecting = true
    const socket = this.#connect(options, (error, connected) => {
      connecting = false
      clearTimeout(timer)
      const fault = refused ?? error
      if (fault !== null) callback(fault, null)
      else callback(null, connected!)
    })
    timeConnection(socket)
    const giveUp = (): void => {
      if (connecting) socket.destroy(this.#tooLate(hostname))
    }
    const timer = setTimeout(whenArrivedIsRead, this.#connectTimeoutMs, giveUp)
    // Runs before undici's listener and before the TLS handshake: a forbidden address receives nothing.
    socket.prependOnceListener('connect', () => {
      refused = refusal(this.#guard, hostname, socket.remoteAddress)
      if (refused !== undefined) socket.destroy(refused)
    })
  }

  #judgedAddress(hostname: string): Promise<string> {
    return new Promise((resolve, reject) => {
      if (isIP(hostname) !== 0) return resolve(hostname)
      this.#lookUp(hostname, { all: false }, (error, address) => (error ? reject(error) : resolve(address as string)))
    })
  }

  #connectByProxy(proxy: string, options: buildConnector.Options, callback: buildConnector.Callback): void {
    const { hostname, protocol } = options
    const ending = new AbortController()
    let socket: Socket | undefined
    const end = once((error: Error | null, connected: Socket | null) => {
      clearTimeout(timer)
      if (error === null) return callback(null, connected!)
      ending.abort()
      socket?.destroy()
      callback(error, null)
    })
    const timer = setTimeout(whenArrivedIsRead, this.#connectTimeoutMs, () => end(this.#tooLate(hostname), null))
    const open = async () => {
      const beganAt = performance.now()
      const address = await this.#judgedAddress(hostname)
      const foundAt = performance.now()
      const port = Number(options.port) || (protocol === 'https:' ? 443 : 80)
      socket = await tunnel(new URL(proxy), { address, port }, ending.signal)
      const openAt = performance.now()
      const known = {
        remoteAddress: address,
        ...(isIP(hostname) === 0 && { lookupMs: inTenths(foundAt - beganAt) }),
        connectMs: inTenths(openAt - foundAt),
      }
      setFacts(socket, known)
      if (protocol !== 'https:') return end(null, socket)
      this.#connect({ ...options, httpSocket: socket }, (error, connected) => {
        if (connected) setFacts(connected, { ...known, tlsMs: inTenths(performance.now() - openAt) })
        end(error, connected as Socket | null)
      })
    }
    open().catch(error => end(error, null))
  }
}

const once = <Args extends unknown[]>(work: (...args: Args) => void): ((...args: Args) => void) => {
  let done = false
  return (...args) => {
    if (done) return
    done = true
    work(...args)
  }
}

const refusal = (guard: NetworkGuard, hostname: string, address: string | undefined): Error | undefined => {
  // The peer is already gone. Nothing is sent to an address that cannot be checked.
  if (address === undefined)
    return Object.assign(new Error('Reset as soon as it was connected'), { code: 'ECONNRESET' })
  return guard.isAllowed(address) ? undefined : new AddressNotAllowedError(hostname, [address])
}
