import { lookup } from 'node:dns/promises'
import { connect as connectTcp, isIP, type Socket } from 'node:net'
import { connect as connectTls, type TLSSocket } from 'node:tls'
import { type Check, note, ok, problem } from './checks.ts'
import { duration } from './output/time.ts'

const TIMEOUT_MS = 5_000
const EXPIRES_SOON_MS = 14 * 86_400_000

/**
 * Whether a URL's host has an address, takes a connection, and shows a certificate that is good. Nothing is sent: an endpoint
 * may do something on whatever request it gets.
 */
export const checkReachable = async (name: string, url: URL): Promise<Check> => {
  const host = url.hostname.replace(/^\[|\]$/g, '')
  const port = Number(url.port) || (url.protocol === 'https:' ? 443 : 80)
  let address = host
  try {
    if (!isIP(host)) address = (await lookup(host)).address
  } catch (error) {
    return problem(
      name,
      `${host} has no address here (${(error as NodeJS.ErrnoException).code})`,
      'Check the host name in the URL, and its DNS record.',
    )
  }
  const startedAt = performance.now()
  try {
    const socket = await connected(url.protocol === 'https:', host, port)
    const took = duration(performance.now() - startedAt)
    const at = address === host ? `port ${port}` : `${address}, port ${port}`
    const certificate = 'getPeerCertificate' in socket ? socket.getPeerCertificate() : undefined
    socket.destroy()
    if (certificate === undefined) return ok(name, `${host} takes connections (${at}, after ${took})`)
    const goodUntil = Date.parse(certificate.valid_to)
    const found = `${host} takes connections (${at}, after ${took}); its certificate is good until ${new Date(goodUntil).toISOString().slice(0, 10)}`
    if (goodUntil - Date.now() > EXPIRES_SOON_MS) return ok(name, found)
    return note(name, found, 'Renew the certificate: without a good one nothing is delivered.')
  } catch (error) {
    const { code = '', message } = error as NodeJS.ErrnoException
    return problem(name, `${host}, port ${port}: ${message}`, adviceOn(code))
  }
}

const connected = (tls: boolean, host: string, port: number): Promise<Socket | TLSSocket> =>
  new Promise((resolve, reject) => {
    const servername = isIP(host) ? {} : { servername: host }
    const socket = tls ? connectTls({ host, port, ...servername }) : connectTcp({ host, port })
    const timer = setTimeout(
      () =>
        socket.destroy(Object.assign(new Error(`no connection within ${TIMEOUT_MS / 1000} s`), { code: 'ETIMEDOUT' })),
      TIMEOUT_MS,
    )
    socket.once('close', () => clearTimeout(timer))
    socket.once('error', reject)
    socket.once(tls ? 'secureConnect' : 'connect', () => resolve(socket))
  })

const adviceOn = (code: string): string => {
  if (/CERT|SELF_SIGNED|ISSUER|SIGNATURE|ALTNAME/.test(code)) {
    return code === 'ERR_TLS_CERT_ALTNAME_INVALID'
      ? 'The certificate is for another name: use that name in the URL, or have a certificate made for this one.'
      : 'Its certificate is not accepted: it needs one from a public authority, in date, sent with the intermediate ones.'
  }
  if (code === 'EPROTO' || code.startsWith('ERR_SSL'))
    return 'What listens there does not speak TLS: is the scheme http, or the port another?'
  if (code === 'ECONNREFUSED') return 'Nothing listens on that port: is the program running, and the port right?'
  return 'Is there a firewall between, or the machine off?'
}
