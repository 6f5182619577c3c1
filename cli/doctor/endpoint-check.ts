import { lookup } from 'node:dns/promises'
import { connect as connectTcp, isIP, type Socket } from 'node:net'
import { connect as connectTls, type PeerCertificate, type TLSSocket } from 'node:tls'
import { duration, relativeTime } from '../output/time.ts'
import { type Finding, note, ok, problem } from './findings.ts'

const TIMEOUT_MS = 5_000
const EXPIRES_SOON_MS = 14 * 86_400_000

/** The addresses of a URL's host as resolved here; empty if it has none. */
const addressesOf = async (url: URL): Promise<string[]> => {
  const host = hostOf(url)
  if (isIP(host)) return [host]
  return (await lookup(host, { all: true }).catch(() => [])).map(({ address }) => address)
}

/**
 * Whether a URL's host has an address, accepts a connection, and has a valid certificate. Sends no request, because an
 * endpoint may act on any.
 */
export const checkReachable = async (name: string, url: URL): Promise<Finding> => {
  const host = hostOf(url)
  const port = Number(url.port) || (url.protocol === 'https:' ? 443 : 80)
  const [address] = await addressesOf(url)
  if (address === undefined) {
    return problem(name, `${host} has no address here`, 'Check the host name in the URL, and its DNS record.')
  }
  const at = address === host ? `port ${port}` : `${address}, port ${port}`
  const startedAt = performance.now()
  let socket: Socket | TLSSocket
  try {
    socket = await connected(url.protocol === 'https:', host, port)
  } catch (error) {
    const { code = '', message } = error as NodeJS.ErrnoException
    return problem(name, `${host}, ${at}: ${message || code}`, adviceOn(code))
  }
  const found = `${host} takes connections (${at}, after ${duration(performance.now() - startedAt)})`
  if (!('getPeerCertificate' in socket)) {
    socket.destroy()
    return ok(name, found)
  }
  const certificate = socket.getPeerCertificate()
  const fault = socket.authorized ? undefined : String(socket.authorizationError)
  socket.destroy()
  return fault === undefined
    ? certificateInDate(name, found, certificate)
    : problem(name, ...certificateFault(fault, host, certificate))
}

const hostOf = (url: URL): string => url.hostname.replace(/^\[|\]$/g, '')

/** An invalid certificate does not end the connection here, so that its fault can be reported. */
const connected = (tls: boolean, host: string, port: number): Promise<Socket | TLSSocket> =>
  new Promise((resolve, reject) => {
    const servername = isIP(host) ? {} : { servername: host }
    const socket = tls
      ? connectTls({ host, port, ...servername, rejectUnauthorized: false })
      : connectTcp({ host, port })
    const timer = setTimeout(
      () =>
        socket.destroy(Object.assign(new Error(`no connection within ${TIMEOUT_MS / 1000} s`), { code: 'ETIMEDOUT' })),
      TIMEOUT_MS,
    )
    socket.once('close', () => clearTimeout(timer))
    socket.once('error', reject)
    socket.once(tls ? 'secureConnect' : 'connect', () => resolve(socket))
  })

const certificateInDate = (name: string, found: string, { valid_to }: PeerCertificate): Finding => {
  const goodUntil = Date.parse(valid_to)
  const said = `${found}; its certificate is valid until ${day(goodUntil)}`
  if (goodUntil - Date.now() > EXPIRES_SOON_MS) return ok(name, said)
  return note(name, said, 'Renew the certificate: without a valid one nothing is delivered.')
}

/** The fault of a certificate and what to do, by the codes of OpenSSL and Node's own code for the name. */
const certificateFault = (
  code: string,
  host: string,
  { valid_from, valid_to, subjectaltname = '', issuer }: PeerCertificate,
): [found: string, next: string] => {
  switch (code) {
    case 'CERT_HAS_EXPIRED':
      return [
        `the certificate of ${host} expired on ${day(Date.parse(valid_to))}, ` +
          `${relativeTime(Date.parse(valid_to), Date.now())}`,
        'Renew it, and have the program that uses it load the new one.',
      ]
    case 'CERT_NOT_YET_VALID':
      return [
        `the certificate of ${host} is only valid from ${day(Date.parse(valid_from))} on`,
        'If that day is past, this machine’s clock is behind: switch network time on.',
      ]
    case 'ERR_TLS_CERT_ALTNAME_INVALID': {
      const names = subjectaltname.replaceAll(/(DNS|IP Address):/g, '')
      return [
        `the certificate is not for ${host}, but for ${names || 'no name at all'}`,
        'Use one of its names in the URL, or have a certificate made for this one.',
      ]
    }
    case 'DEPTH_ZERO_SELF_SIGNED_CERT':
      return [
        `the certificate of ${host} is self-signed`,
        'Get one from a public authority, such as Let’s Encrypt: nobody can verify a self-signed one.',
      ]
    case 'UNABLE_TO_VERIFY_LEAF_SIGNATURE':
    case 'UNABLE_TO_GET_ISSUER_CERT_LOCALLY':
    case 'SELF_SIGNED_CERT_IN_CHAIN': {
      const by = [issuer?.O, issuer?.CN].flat().filter(Boolean).join(', ')
      return [
        `the certificate of ${host} is signed by ${by || 'an authority'}, which is not known here`,
        'If that is a public authority, the server must send the intermediate certificates as well (its “full ' +
          'chain”). If it is your own, name its certificate with --ca-file, and for the server in NODE_EXTRA_CA_CERTS.',
      ]
    }
    default:
      return [`the certificate of ${host} is not accepted: ${code}`, 'Get one from a public authority.']
  }
}

const day = (ms: number): string => new Date(ms).toISOString().slice(0, 10)

const adviceOn = (code: string): string => {
  if (code === 'EPROTO' || code.startsWith('ERR_SSL'))
    return 'The program there does not speak TLS: should the scheme be http, or the port another?'
  if (code === 'ECONNREFUSED') return 'Nothing listens on that port: is the program running, and the port right?'
  if (code === 'ECONNRESET') return 'The connection was accepted and then closed: is it a TLS port, or a proxy?'
  return 'Is there a firewall between, or the machine off?'
}
