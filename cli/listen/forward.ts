import type { IncomingMessage } from 'node:http'
import { proxyFor } from '../connection/network.ts'

/** As long as Tidings waits for an answer. */
const TIMEOUT_MS = 15_000

/** Of the connection, not of the delivery (RFC 9110 section 7.6.1), or set by the request that forwards it. */
const NOT_FORWARDED =
  /^(:.*|accept-encoding|connection|content-length|expect|host|keep-alive|proxy-.*|te|trailer|transfer-encoding|upgrade)$/
const PASSED_BACK = ['content-type', 'retry-after', 'www-authenticate'] as const

/** The answer of the target, with the headers that are passed back. */
export interface ForwardedAnswer {
  status: number
  headers: Record<string, string>
  body: Buffer
}

type Forward = (request: IncomingMessage, body: string) => Promise<ForwardedAnswer>

/**
 * Forwards deliveries to a target, by HTTP/2 where that is what it speaks. `insecure` accepts any certificate. Rejects
 * with the reason if the target does not answer.
 */
export const forwardTo = (to: URL, insecure: boolean): Forward => {
  const isDirect = to.protocol === 'https:' && proxyFor(to, process.env) === undefined
  let send: typeof fetch = insecure || isDirect ? fetchByTls(insecure) : fetch
  return async (request, body) => {
    const init = { method: 'POST', headers: headersOf(request), body, redirect: 'manual' } as const
    const answered = async (): Promise<ForwardedAnswer> => {
      const response = await send(to, { ...init, signal: AbortSignal.timeout(TIMEOUT_MS) })
      const passedBack = PASSED_BACK.filter(name => response.headers.has(name))
      return {
        status: response.status,
        headers: Object.fromEntries(passedBack.map(name => [name, response.headers.get(name)!])),
        body: Buffer.from(await response.arrayBuffer()),
      }
    }
    try {
      return await answered().catch(error => {
        if (to.protocol !== 'http:' || send === fetchInClear || !isHttp2(error.cause)) throw error
        // Without TLS nothing is negotiated.
        send = fetchInClear
        return answered()
      })
    } catch (error) {
      throw (error as Error).cause ?? error
    }
  }
}

const headersOf = (request: IncomingMessage): Record<string, string> =>
  Object.fromEntries(
    Object.entries(request.headers).flatMap(([name, value]) =>
      value === undefined || NOT_FORWARDED.test(name) ? [] : [[name, String(value)]],
    ),
  )

/**
 * Whether what came in place of an answer begins with a SETTINGS frame, as all that a server sends by HTTP/2 does: it
 * has not handled the request (RFC 9113 sections 3.4 and 4.1).
 */
const isHttp2 = (cause: unknown): boolean => {
  const { data } = (cause ?? {}) as { data?: unknown }
  return typeof data === 'string' && data.charCodeAt(3) === 4 && /^\0{4}$/.test(data.slice(5, 9))
}

/** Speaks HTTP/2 where the target prefers it, as the server's deliveries do. */
const fetchByTls =
  (insecure: boolean): typeof fetch =>
  async (to, init) => {
    const { Agent } = await import('undici')
    return fetchOnce(to, init, new Agent({ allowH2: true, connect: { rejectUnauthorized: !insecure } }))
  }

/** Speaks HTTP/2 without TLS (RFC 9113 section 3.3). */
const fetchInClear: typeof fetch = async (to, init) => {
  const { H2CClient } = await import('undici')
  return fetchOnce(to, init, new H2CClient((to as URL).origin))
}

/** Fetches by a dispatcher of its own. */
const fetchOnce = async (
  to: Parameters<typeof fetch>[0],
  init: RequestInit | undefined,
  dispatcher: import('undici').Dispatcher,
): Promise<Response> => {
  const { fetch } = await import('undici')
  try {
    const response = await fetch(to as URL, { ...(init as object), dispatcher })
    const body = await response.arrayBuffer()
    const { status } = response
    const answered = { status, headers: [...response.headers] }
    return new Response([204, 205, 304].includes(status) ? null : body, answered as ResponseInit)
  } finally {
    dispatcher.close().catch(() => {})
  }
}
