import { isIP } from 'node:net'
import ipaddr from 'ipaddr.js'

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
