import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { sign } from '../connection/client.ts'
import type { Connection } from '../connection/connection.ts'
import { listenHere } from '../listen/here.ts'

/** The server's own limit. */
const MOST_BODY_BYTES = 1024 * 1024
const HERE = '127.0.0.1'

/** A request that was forwarded, or refused here. */
export type Passed = { method: string; path: string; status: number; durationMs: number; refused?: string }

export type SigningProxy = { url: string; close(): Promise<void> }

type ProxyOptions = { allowOrigin?: string; onPassed: (passed: Passed) => void }

/**
 * Signs requests from this machine and forwards them. Any program that reaches it acts with the access token, so it
 * listens on loopback only, and refuses web pages, through which any visited site could reach it.
 *
 * @param options.port 0 takes any free one
 * @param options.allowOrigin the one origin whose pages are accepted
 * @throws CliError when the port is taken
 */
export const startSigningProxy = async (
  connection: Connection,
  { port, ...options }: ProxyOptions & { port: number },
): Promise<SigningProxy> => {
  const server = createServer((request, response) => {
    pass(connection, options, request, response).catch(() => response.destroy())
  })
  await listenHere(server, port)
  return {
    url: `http://${HERE}:${(server.address() as AddressInfo).port}`,
    async close() {
      const closed = new Promise<void>(resolve => server.close(() => resolve()))
      server.closeAllConnections()
      await closed
    },
  }
}

const pass = async (
  connection: Connection,
  { allowOrigin, onPassed }: ProxyOptions,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> => {
  const startedAt = performance.now()
  const { method = 'GET', url: path = '/' } = request
  const passed = (status: number, refused?: string) => {
    const durationMs = Math.round(performance.now() - startedAt)
    onPassed({ method, path: path.split('?')[0]!, status, durationMs, ...(refused && { refused }) })
  }
  const refuse = (status: number, message: string): void => {
    response.writeHead(status, { 'content-type': 'application/json; charset=utf-8', connection: 'close' })
    response.end(JSON.stringify({ errors: [{ message, extensions: { code: 'PROXY' } }] }))
    passed(status, message)
  }
  const stranger = strangerIn(request, allowOrigin)
  if (stranger) return refuse(403, stranger)
  if (allowOrigin !== undefined && request.headers.origin === allowOrigin) allow(request, response, allowOrigin)
  if (method === 'OPTIONS' && request.headers['access-control-request-method']) {
    response.writeHead(204).end()
    return
  }
  const body = await readBody(request)
  if (body === undefined) return refuse(413, `The body is larger than ${MOST_BODY_BYTES} bytes.`)
  const gone = new AbortController()
  response.once('close', () => gone.abort())
  let answer: Response
  try {
    answer = await send(connection, { method, path, body, headers: request.headers, signal: gone.signal })
  } catch (error) {
    if (gone.signal.aborted) return
    const { message, cause } = error as Error
    return refuse(502, `${connection.url.origin} was not reached: ${cause instanceof Error ? cause.message : message}.`)
  }
  passed(answer.status)
  for (const [name, value] of answer.headers) if (!NOT_PASSED.has(name)) response.setHeader(name, value)
  response.writeHead(answer.status)
  // Streams are forwarded as they come, and end when either side ends.
  await pipeline(answer.body ? Readable.fromWeb(answer.body as never) : Readable.from([]), response).catch(() => {})
}

/** Why a request is refused; undefined if it is accepted. */
const strangerIn = ({ headers, socket }: IncomingMessage, allowOrigin: string | undefined): string | undefined => {
  // Another host name that resolves here belongs to a web site (DNS rebinding).
  const names = [HERE, 'localhost', '[::1]'].map(name => `${name}:${socket.localPort}`)
  if (!names.includes(headers.host ?? '')) return `The Host must be ${names[0]}.`
  const { origin, 'sec-fetch-site': site } = headers
  if (allowOrigin !== undefined && origin === allowOrigin) return undefined
  // The server's own pages, which are served through this proxy.
  const isOwn = origin === undefined || origin === `http://${headers.host}`
  if (!isOwn || (site !== undefined && site !== 'none' && site !== 'same-origin')) {
    return 'Web pages are refused. Allow one origin with: tidings proxy --allow-origin ORIGIN'
  }
  return undefined
}

const allow = (request: IncomingMessage, response: ServerResponse, origin: string): void => {
  response.setHeader('access-control-allow-origin', origin)
  response.setHeader('access-control-allow-methods', 'GET, POST')
  response.setHeader('access-control-allow-headers', request.headers['access-control-request-headers'] ?? '*')
  response.setHeader('vary', 'Origin')
}

const readBody = async (request: IncomingMessage): Promise<Buffer | undefined> => {
  const chunks: Buffer[] = []
  let length = 0
  for await (const chunk of request) {
    length += chunk.length
    if (length > MOST_BODY_BYTES) return undefined
    chunks.push(chunk)
  }
  return Buffer.concat(chunks)
}

type Outgoing = {
  method: string
  path: string
  body: Buffer
  headers: IncomingMessage['headers']
  signal: AbortSignal
}

const send = ({ url: base, apiKey, apiSecret }: Connection, sent: Outgoing): Promise<Response> => {
  const { method, path, body, headers, signal } = sent
  const url = new URL(base.href.replace(/\/$/, '') + path)
  const key = headers['idempotency-key']
  const idempotencyKey = typeof key === 'string' ? key : undefined
  const { host: _, ...signed } = sign({ method, url, body, credentials: { apiKey, apiSecret }, idempotencyKey })
  const own = Object.fromEntries(PASSED_ON.flatMap(name => (headers[name] ? [[name, String(headers[name])]] : [])))
  return fetch(url, {
    method,
    headers: { ...own, ...signed, 'accept-encoding': 'identity' },
    ...(method === 'GET' || method === 'HEAD' ? {} : { body }),
    redirect: 'manual',
    signal,
  })
}

/** The client's headers that the server uses. */
const PASSED_ON = ['accept', 'content-type', 'content-encoding', 'idempotency-key', 'last-event-id']
/** Hop-by-hop headers, which are not forwarded. */
const NOT_PASSED = new Set(['connection', 'keep-alive', 'transfer-encoding', 'content-length', 'content-encoding'])
