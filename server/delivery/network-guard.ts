import { isIP, type LookupFunction, type Socket } from 'node:net'
import ipaddr from 'ipaddr.js'
import { buildConnector, errors } from 'undici'
import { whenArrivedIsRead } from '../arrived.ts'
import { inTenths, setFacts, timeConnection } from './connection-facts.ts'
import { createLookup, type Lookup } from './names.ts'
import { tunnel } from './proxy.ts'

type Address = ipaddr.IPv4 | ipaddr.IPv6
type Network = [Address, number]

/** Decides which addresses deliveries may be sent to. */
export type NetworkGuard = {
  /** Whether an IP address, in any notation, is public unicast or in an allowed network. */
  isAllowed(address: string): boolean
}

/** Thrown for an endpoint whose address is not allowed. The message is for the operator. */
export class AddressNotAllowedError extends Error {
  /** Whether the endpoint is named by this address. Its user does not learn what a name leads to. */
  readonly isLiteral: boolean

  constructor(host: string, addresses: readonly string[]) {
    const isLiteral = isIP(host) !== 0
    const at = isLiteral ? host : `${host} (${addresses.join(', ') || 'no address'})`
    super(`${at} is not a public address; TIDINGS_ALLOW_NETWORKS opens networks by name, such as 10.1.0.0/16`)
    this.name = 'AddressNotAllowedError'
    this.isLiteral = isLiteral
  }
}

/**
 * Reads networks in CIDR notation, separated by commas or blanks: `10.1.0.0/16, fd00::/8`. A single address is a
 * network of one. Returns them normalised; none for an empty text.
 *
 * @throws RangeError naming every part that is no network, and what would be right
 */
export const parseNetworks = (text: string): string[] => {
  const parts = text.split(/[\s,]+/).filter(part => part !== '')
  const wrong = parts.flatMap(part => {
    const network = readNetwork(part)
    return typeof network === 'string' ? [network] : []
  })
  if (wrong.length > 0) {
    throw new RangeError(`${wrong.join('; ')}. Expected networks in CIDR notation, as in 10.1.0.0/16,fd00::/8`)
  }
  return parts.map(part => readNetwork(part) as Network).map(([address, bits]) => `${address}/${bits}`)
}

/**
 * `::1.2.3.4`, which RFC 4291 section 2.5.5.1 has deprecated. ipaddr.js reads it as `::ffff:1.2.3.4`; the network does
 * not.
 */
const IPV4_COMPATIBLE = /^::\d+\.\d/

/** @throws RangeError as {@link parseNetworks} does */
export const createNetworkGuard = ({ allow }: { allow: readonly string[] }): NetworkGuard => {
  const opened = parseNetworks(allow.join(',')).map(network => ipaddr.parseCIDR(network))
  const isOpened = (address: Address) =>
    opened.some(([network, bits]) => network.kind() === address.kind() && address.match(network, bits))

  return {
    isAllowed(text) {
      if (!ipaddr.isValid(text) || IPV4_COMPATIBLE.test(text)) return false
      const address = ipaddr.process(text)
      return isOpened(address) || isPublic(address)
    },
  }
}

/**
 * Whether an address is public unicast. For an IPv4 address embedded in an IPv6 address, the inner one decides, because
 * a gateway connects to it. (IPv4-mapped addresses are already unwrapped.)
 */
const isPublic = (address: Address): boolean => {
  if (address instanceof ipaddr.IPv4) return address.range() === 'unicast'
  const [a, b, c, d, e, f, g, h] = address.parts as [number, number, number, number, number, number, number, number]
  // NAT64, RFC 6052: 64:ff9b::/96. Its sibling for local use, 64:ff9b:1::/48 (RFC 8215), is not public.
  if (a === 0x64 && b === 0xff9b && (c | d | e | f) === 0) return isPublic(embedded(g, h))
  // 6to4, RFC 3056: 2002:v4::/48.
  if (a === 0x2002) return isPublic(embedded(b, c))
  // Teredo, RFC 4380 section 4: the server's address, and the client's with every bit turned over.
  if (a === 0x2001 && b === 0) return isPublic(embedded(c, d)) && isPublic(embedded(g ^ 0xffff, h ^ 0xffff))
  // 2000::/3 is all global unicast space of IPv6 that has been allocated (RFC 4291 section 2.4).
  return a >> 13 === 1 && address.range() === 'unicast'
}

const embedded = (high: number, low: number): ipaddr.IPv4 =>
  new ipaddr.IPv4([high >> 8, high & 0xff, low >> 8, low & 0xff])

/** The parsed network, or what is wrong with it. */
const readNetwork = (text: string): Network | string => {
  const cidr = text.includes('/') ? text : `${text}/${text.includes(':') ? 128 : 32}`
  const isIPv6 = ipaddr.IPv6.isValidCIDR(cidr) && !IPV4_COMPATIBLE.test(cidr)
  if (!isIPv6 && !ipaddr.IPv4.isValidCIDRFourPartDecimal(cidr)) {
    return `${JSON.stringify(text)} is not a network`
  }
  const [address, bits] = unmapped(ipaddr.parseCIDR(cidr))
  const network = (address.kind() === 'ipv4' ? ipaddr.IPv4 : ipaddr.IPv6).networkAddressFromCIDR(`${address}/${bits}`)
  if (network.toString() !== address.toString()) {
    const alone = `${address}/${address.kind() === 'ipv4' ? 32 : 128}`
    return `${JSON.stringify(text)} is an address within a network: write ${network}/${bits}, or ${alone} for it alone`
  }
  return [address, bits]
}

const unmapped = ([address, bits]: Network): Network =>
  address instanceof ipaddr.IPv6 && address.isIPv4MappedAddress() && bits >= 96
    ? [address.toIPv4Address(), bits - 96]
    : [address, bits]

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
