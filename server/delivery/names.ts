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
/** A name that waits for the system longer has been given up. */
const LONGEST_WAIT_MS = 5_000
/** How long the system is not asked again for a name that it did not know. */
const UNKNOWN_MS = 60_000
const MOST_UNKNOWN = 10_000
/** What name servers say at once where the system may know more, or where there are none. */
const NOT_KNOWN = new Set<unknown>(['ENOTFOUND', 'ENODATA', 'ECONNREFUSED', 'EREFUSED'])
const HOSTS = process.platform === 'win32' ? 'C:\\Windows\\System32\\drivers\\etc\\hosts' : '/etc/hosts'

/**
 * Resolves the names of endpoints. The system's own lookup holds one of two threads of this process for as long as it
 * takes: half a minute for a name whose servers do not answer, and whoever owns a name decides that. So name servers
 * are asked directly, for any number of names at once. The system is asked for names that nobody outside decides on:
 * those without a dot and those in the hosts file. For other names that the servers do not know, such as those that a
 * search domain completes, it is asked one name at a time.
 *
 * @param given.servers name servers, as `host:port`; by default those of the machine
 */
export const createLookup = ({
  servers,
  system = askSystem as Lookup,
  hostsFile = HOSTS,
}: {
  servers?: string[]
  system?: Lookup
  hostsFile?: string
} = {}): Lookup => {
  let resolver: Resolver | undefined
  let resolverSince = 0
  /** Names that the system does not know, with the time until which it is not asked again. */
  const unknown = new Map<string, number>()
  const asking = new Map<string, Promise<LookupAddress[]>>()
  let lane: Promise<unknown> = Promise.resolve()

  const freshResolver = (): Resolver => {
    if (resolver && performance.now() - resolverSince < FRESH_MS) return resolver
    resolver = new Resolver(PATIENCE)
    if (servers) resolver.setServers(servers)
    resolverSince = performance.now()
    return resolver
  }

  const askServers = async (host: string): Promise<LookupAddress[]> => {
    const resolver = freshResolver()
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
    const { code } = faults.find(({ code }) => !NOT_KNOWN.has(code)) ?? faults[0]
    throw failed(host, code)
  }

  const askSystemFor = (host: string): Promise<LookupAddress[]> =>
    new Promise((resolve, reject) => {
      system(host, { all: true }, (error, addresses) => (error ? reject(error) : resolve(addresses)))
    })

  /** Asks the system, one name at a time. */
  const askInLane = (host: string): Promise<LookupAddress[]> => {
    const known = asking.get(host)
    if (known) return known
    const since = performance.now()
    if (since < (unknown.get(host) ?? 0)) return Promise.reject(failed(host, 'ENOTFOUND'))
    const asked = lane.then(async () => {
      if (performance.now() - since > LONGEST_WAIT_MS) throw failed(host, 'ENOTFOUND')
      return askSystemFor(host).catch(error => {
        if (unknown.size >= MOST_UNKNOWN) unknown.clear()
        unknown.set(host, performance.now() + UNKNOWN_MS)
        throw error
      })
    })
    asking.set(host, asked)
    lane = asked.catch(() => {}).finally(() => asking.delete(host))
    return asked
  }

  const addressesOf = async (host: string): Promise<LookupAddress[]> => {
    if (!host.includes('.') || isIn(hostsFile, host)) return askSystemFor(host)
    try {
      return await askServers(host)
    } catch (error) {
      if (NOT_KNOWN.has((error as NodeJS.ErrnoException).code)) return askInLane(host)
      throw error
    }
  }

  return (host, _options, callback) => {
    addressesOf(host).then(
      addresses => callback(null, addresses),
      error => callback(error, []),
    )
  }
}

const isIn = (hostsFile: string, host: string): boolean => {
  try {
    const lines = readFileSync(hostsFile, 'utf8').toLowerCase().split('\n')
    return lines.some(line => line.replace(/#.*/, '').trim().split(/\s+/).slice(1).includes(host.toLowerCase()))
  } catch {
    return false
  }
}

const failed = (host: string, code: string): Error => {
  const what = code === 'ETIMEOUT' ? 'The name servers did not answer in time' : `The name was not found (${code})`
  return Object.assign(new Error(`${what}: ${host}`), { code })
}
