import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { text } from 'node:stream/consumers'
import { after } from 'node:test'
import {
  bodyHash,
  checkSignedHeaders,
  parseAuthorization,
  signature,
  signaturesMatch,
  stringToSign,
} from '../../shared/hmac.ts'

export const credentials = { apiKey: 'stub-key', apiSecret: Buffer.alloc(32, 7).toString('base64') }

export interface Received {
  query: string
  variables: Record<string, unknown>
  nonce: string | undefined
  idempotencyKey: string | undefined
}

/**
 * The server's answer: data or errors of GraphQL, or a status and text that no GraphQL server would send; or it resets
 * the connection, or never answers. `afterMs` delays it.
 */
export type Answer =
  | 'reset'
  | 'hang'
  | { data?: unknown; errors?: { message: string; extensions?: object }[]; status?: number; afterMs?: number }
  | { text: string; status: number }

export type Streaming = (response: ServerResponse, lastEventId: string | undefined) => void

/** Begins an event stream, or goes on with it: an id without a result, results, or both. */
export const sendEvents = (response: ServerResponse, id: string | undefined, ...results: object[]): void => {
  if (!response.headersSent) response.writeHead(200, { 'content-type': 'text/event-stream' })
  const ids = id === undefined ? '' : `id: ${id}\n`
  for (const result of results) response.write(`event: next\n${ids}data: ${JSON.stringify(result)}\n\n`)
  if (results.length === 0) response.write(`:\n${ids}\n`)
}

/**
 * A GraphQL endpoint that refuses unsigned requests, records what it received, and gives the test's answers. `answer`
 * may be replaced between requests.
 */
export const startStubServer = async (
  answer: (received: Received) => Answer | Promise<Answer> = () => ({ data: {} }),
) => {
  const received: Received[] = []
  /** Answers a subscription; undefined for a server that offers none. */
  const stream = undefined as Streaming | undefined
  const stub = { url: '', received, answer, reset: false, stream }
  const server = createServer(async (request, response) => {
    const body = await text(request)
    const fault = refuse(request.method!, request.url!, request.headers, body)
    if (fault) {
      response.writeHead(401, { 'content-type': 'application/json' })
      response.end(
        JSON.stringify({
          errors: [{ message: fault, extensions: { code: 'UNAUTHENTICATED', reason: 'bad_signature' } }],
        }),
      )
      return
    }
    if (request.headers.accept === 'text/event-stream') {
      if (stub.reset) return void request.socket.resetAndDestroy()
      if (!stub.stream) return void response.writeHead(406).end()
      return stub.stream(response, request.headers['last-event-id'] as string | undefined)
    }
    const { query, variables = {} } = JSON.parse(body)
    const header = (name: string) => (typeof request.headers[name] === 'string' ? request.headers[name] : undefined)
    const one: Received = { query, variables, nonce: header('x-nonce'), idempotencyKey: header('idempotency-key') }
    received.push(one)
    const answered = stub.reset ? 'reset' : await stub.answer(one)
    if (answered === 'reset') return void request.socket.resetAndDestroy()
    if (answered === 'hang') return
    const { status = 200, ...rest } = answered
    if ('afterMs' in rest) await new Promise(resolve => setTimeout(resolve, rest.afterMs))
    response.writeHead(status, { 'content-type': 'text' in rest ? 'text/html' : 'application/json' })
    response.end('text' in rest ? rest.text : JSON.stringify(rest))
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  stub.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  after(() => {
    server.closeAllConnections()
    server.close()
  })
  return stub
}

/** The environment that points the command line to a stub server. */
export const connectedTo = ({ url }: { url: string }): Record<string, string> => ({
  TIDINGS_URL: url,
  TIDINGS_API_KEY: credentials.apiKey,
  TIDINGS_API_SECRET: credentials.apiSecret,
})

const refuse = (
  method: string,
  pathAndQuery: string,
  headers: Record<string, string | string[] | undefined>,
  body: string,
) => {
  const given = parseAuthorization(headers.authorization as string)
  if ('fault' in given) return given.fault
  const signed = checkSignedHeaders(given.signedHeaders, headers)
  if ('fault' in signed) return signed.fault
  if (given.credential !== credentials.apiKey) return 'unknown key'
  if (headers[signed.hashHeader] !== bodyHash(body)) return 'body hash'
  const expected = signature(
    credentials.apiSecret,
    stringToSign({ method, pathAndQuery, signedValues: signed.signedValues }),
  )
  return signaturesMatch(expected, given.signature) ? undefined : 'signature'
}
