import type { RequestOptions } from 'node:http'
import { request as httpsRequest } from 'node:https'
import type { Socket } from 'node:net'
import { request as httpRequest } from '../../shared/node-http.ts'

/** The proxy did not open a connection to the endpoint. The message names the proxy, and is for the operator. */
export class ProxyError extends Error {
  /** Node's code for the failed connection to the proxy, or `proxy_refused`. */
  readonly code: string

  constructor(proxy: URL, what: string, code: string) {
    super(`By way of the proxy ${proxy.host}: ${what}`)
    this.name = 'ProxyError'
    this.code = code
  }
}

/**
 * Connects to an address through an HTTP proxy (CONNECT, RFC 9110 section 9.3.6), for http as for https. A user name
 * and password in the proxy's URL are sent as Basic credentials. Ended by `signal`.
 *
 * @param proxy its URL, http: or https:
 * @param target an IP address and a port, no name, so that the proxy connects to the address that was checked
 * @throws ProxyError
 */
export const tunnel = (proxy: URL, target: { address: string; port: number }, signal: AbortSignal): Promise<Socket> => {
  const { address, port } = target
  const authority = `${address.includes(':') ? `[${address}]` : address}:${port}`
  const request = proxy.protocol === 'https:' ? httpsRequest : httpRequest
  return new Promise((resolve, reject) => {
    const fail = (what: string, code: string) => reject(new ProxyError(proxy, what, code))
    request({ ...addressOf(proxy), method: 'CONNECT', path: authority, headers: headersOf(proxy, authority), signal })
      .on('connect', ({ statusCode }, socket: Socket, head) => {
        if (statusCode === undefined || statusCode < 200 || statusCode > 299) {
          socket.destroy()
          return fail(`it answered ${statusCode} to CONNECT ${authority}`, 'proxy_refused')
        }
        if (head.length > 0) socket.unshift(head)
        resolve(socket)
      })
      .on('response', response => {
        response.destroy()
        fail(`it answered ${response.statusCode} to CONNECT ${authority}`, 'proxy_refused')
      })
      .on('error', (error: NodeJS.ErrnoException) => fail(error.message, error.code ?? 'proxy_refused'))
      .end()
  })
}

const addressOf = (proxy: URL): RequestOptions => ({
  host: proxy.hostname.replace(/^\[|\]$/g, ''),
  port: proxy.port || (proxy.protocol === 'https:' ? 443 : 80),
  agent: false,
})

const headersOf = (proxy: URL, authority: string): Record<string, string> => {
  const credentials = [proxy.username, proxy.password].map(decodeURIComponent).join(':')
  const authorization = `Basic ${Buffer.from(credentials).toString('base64')}`
  return { host: authority, ...(proxy.username && { 'proxy-authorization': authorization }) }
}
