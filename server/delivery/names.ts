import { lookup as askSystem, type LookupAddress } from 'node:dns'
import { Resolver } from 'node:dns/promises'
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'

/** Resolves a name, as `dns.lookup` does with `all`. */
export type Lookup = (
  host: string,
  options: { all: true },
  callback: (error: NodeJS.ErrnoException | null, addresses: LookupAddress[]) => void,
) => void

/** The first wait for a name server, and how often each is asked. */
const PATIENCE = { timeout: 1_500, tries: 2 }
/** How long a resolver is used: it does not see later changes of the machine's name servers. */
const FRESH_MS = 30_000
/** How long IPv6 addresses are waited for when IPv4 addresses are there (RFC 8305, section 3). */
const RESOLUTION_DELAY_MS = 50
/** What name servers say at once of a name that they do not know, or where there are none. */
const NOT_KNOWN = new Set<unknown>(['ENOTFOUND', 'ENODATA', 'ECONNREFUSED', 'EREFUSED'])
/** As many search domains as resolvers have taken by tradition (resolv.conf(5)). */
const MOST_SEARCHED = 6
const HOSTS = process.platform === 'win32' ? 'C:\\Windows\\System32\\drivers\\etc\\hosts' : '/etc/hosts'
const RESOLV_CONF = '/etc/resolv.conf'

/**
 * Resolves the names of endpoints. The system's own lookup holds one of two threads of this process for as long as it
 * takes: half a minute for a name whose servers do not answer, and whoever owns a name decides that. So name servers
 * are asked directly, for any number of names at once. The system is asked for names that nobody outside decides on:
 * those without a dot and those in the hosts file. A name that the servers do not know is asked for again in each of
 * the machine's search domains (`http://hooks.payments` in Kubernetes).
 *
 * @param given.servers name servers, as `host:port`; by default those of the machine
 */
export const createLookup = (given: LookupOptions = {}): Lookup => {
  const names = new Names(given)
  return (host, _options, callback) => {
    names.addressesOf(host).then(
      addresses => callback(null, addresses),
      error => callback(error, []),
    )
  }
}

type LookupOptions = {
  servers?: string[]
  system?: Lookup
  hostsFile?: string
  resolvConf?: string
  patience?: { timeout: number; tries: number }
}

class Names {
  readonly #servers: string[] | undefined
  readonly #system: Lookup
  readonly #hostsFile: string
  readonly #resolvConf: string
  readonly #patience: { timeout: number; tries: number }
  #resolver: Resolver | undefined
  #resolverSince = 0

  constructor({
    servers,
    system = askSystem as Lookup,
    hostsFile = HOSTS,
    resolvConf = RESOLV_CONF,
    patience = PATIENCE,
  }: LookupOptions) {
    this.#servers = servers
    this.#system = system
    this.#hostsFile = hostsFile
    this.#resolvConf = resolvConf
    this.#patience = patience
  }

  async addressesOf(host: string): Promise<LookupAddress[]> {
    if (!host.includes('.') || isIn(this.#hostsFile, host)) return this.#askSystem(host)
    const completed = host.endsWith('.') ? [] : searchDomains(this.#resolvConf).map(domain => `${host}.${domain}`)
    for (const name of [host, ...completed]) {
      const found = await askServers(this.#freshResolver(), name).catch(error => {
        if (!NOT_KNOWN.has(error.code)) throw error
      })
      if (found) return found
    }
    throw failed(host, 'ENOTFOUND')
  }

  #askSystem(host: string): Promise<LookupAddress[]> {
    return new Promise((resolve, reject) => {
      this.#system(host, { all: true }, (error, addresses) => (error ? reject(error) : resolve(addresses)))
    })
  }

  #freshResolver(): Resolver {
    if (this.#resolver && performance.now() - this.#resolverSince < FRESH_MS) return this.#resolver
    const resolver = new Resolver(this.#patience)
    if (this.#servers) resolver.setServers(this.#servers)
    this.#resolver = resolver
    this.#resolverSince = performance.now()
    return resolver
  }
}

const askServers = async (resolver: Resolver, host: string): Promise<LookupAddress[]> => {
  const [four, six] = [resolver.resolve4(host), resolver.resolve6(host)] as const
  const soon = (found: Promise<string[]>, other: Promise<string[]>) =>
    Promise.race([
      found,
      other.then(
        () => sleep(RESOLUTION_DELAY_MS, []),
        () => found,
      ),
    ])
  const [v4, v6] = await Promise.allSettled([soon(four, six), soon(six, four)])
  const faults = [v4, v6].flatMap(each => (each.status === 'rejected' ? [each.reason] : []))
  const found = [
    ...(v4.status === 'fulfilled' ? v4.value.map(address => ({ address, family: 4 })) : []),
    ...(v6.status === 'fulfilled' ? v6.value.map(address => ({ address, family: 6 })) : []),
  ]
  if (found.length > 0) return found
  const fault = faults.find(({ code }) => !NOT_KNOWN.has(code)) ?? faults[0]
  // Without a fault the name is there and has no address, such as an alias that leads nowhere.
  throw failed(host, fault?.code ?? 'ENODATA')
}

const isIn = (hostsFile: string, host: string): boolean => {
  try {
    const lines = readFileSync(hostsFile, 'utf8').toLowerCase().split('\n')
    return lines.some(line => line.replace(/#.*/, '').trim().split(/\s+/).slice(1).includes(host.toLowerCase()))
  } catch {
    return false
  }
}

/** The domains that complete a name, by the last line that names any. */
const searchDomains = (resolvConf: string): string[] => {
  try {
    const lines = [...readFileSync(resolvConf, 'utf8').matchAll(/^[ \t]*(?:search|domain)[ \t]+(.*)$/gm)]
    const domains = (lines.at(-1)?.[1] ?? '').trim().split(/\s+/)
    return domains
      .map(domain => domain.replace(/\.$/, ''))
      .filter(Boolean)
      .slice(0, MOST_SEARCHED)
  } catch {
    return []
  }
}

const failed = (host: string, code: string): Error => {
  const what = code === 'ETIMEOUT' ? 'The name servers did not answer in time' : `The name was not found (${code})`
  return Object.assign(new Error(`${what}: ${host}`), { code })
}
