import { once } from 'node:events'
import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from 'node:http'
import { text } from 'node:stream/consumers'
import { pipeline } from 'node:stream/promises'
import { setTimeout as wait } from 'node:timers/promises'
import { PATIENCE_MS } from './eventually.ts'
import { freePort } from './ports.ts'

export type ReceivedRequest = {
  method: string
  path: string
  headers: IncomingHttpHeaders
  rawBody: string
  /** The body as JSON; undefined when it is none. */
  // biome-ignore lint/suspicious/noExplicitAny: a test looks into whatever was sent, and fails if it is not there
  body: any
  /** Epoch milliseconds, by the machine's clock. */
  receivedAt: number
}

/**
 * What the receiver does with a request: answers, or misbehaves. `hang` never answers, `reset` breaks the connection,
 * `malformed` sends what is not HTTP, `flood` answers 200 with a body that does not end.
 */
export type Answer =
  | { status: number; headers?: Record<string, string>; body?: string; delayMs?: number }
  | 'hang'
  | 'reset'
  | 'malformed'
  | 'flood'

export type Receiver = {
  /** The address to register as a webhook. */
  url: string
  /** Everything received so far, oldest first, whatever the answer was. */
  requests: ReceivedRequest[]
  /** Waits until `predicate` holds for what has been received, and returns that. Throws after `timeoutMs`. */
  waitFor(predicate: (requests: ReceivedRequest[]) => boolean, timeoutMs?: number): Promise<ReceivedRequest[]>
  /** Stops listening and breaks every connection. */
  close(): Promise<void>
}

/**
 * Starts a webhook receiver on this machine. `answer` gets the
 * request and its number, counted from 1; without it, all get 200.
 */
export const startReceiver = async ({
  answer = () => ({ status: 200 }),
}: {
  answer?: (request: ReceivedRequest, n: number) => Answer | Promise<Answer>
} = {}): Promise<Receiver> => {
  const requests: ReceivedRequest[] = []
  const waiting = new Set<() => void>()
  const server = createServer(async (request, response) => {
    const received = await read(request).catch(() => undefined)
    if (!received) return
    const n = requests.push(received)
    for (const look of waiting) look()
    await give(await answer(received, n), response)
  })
  const port = await freePort()
  server.listen(port, '127.0.0.1')
  await once(server, 'listening')

  const waitFor = (predicate: (requests: ReceivedRequest[]) => boolean, timeoutMs = PATIENCE_MS) =>
    new Promise<ReceivedRequest[]>((resolve, reject) => {
      const settle = (then: () => void) => {
        clearTimeout(timer)
        waiting.delete(look)
        then()
      }
      const look = () => {
        if (predicate(requests)) settle(() => resolve(requests))
      }
      const timer = setTimeout(() => settle(() => reject(new Error(describe(requests, timeoutMs)))), timeoutMs)
      waiting.add(look)
      look()
    })

  const close = () =>
    new Promise<void>(resolve => {
      server.close(() => resolve())
      server.closeAllConnections()
    })

  return { url: `http://127.0.0.1:${port}/webhook`, requests, waitFor, close }
}

const read = async (request: IncomingMessage): Promise<ReceivedRequest> => {
  const rawBody = await text(request)
  const { method, url, headers } = request
  return { method: method!, path: url!, headers, rawBody, body: parse(rawBody), receivedAt: Date.now() }
}

const parse = (json: string): unknown => {
  try {
    return JSON.parse(json)
  } catch {
    return undefined
  }
}

const give = async (answer: Answer, response: ServerResponse): Promise<void> => {
  if (answer === 'hang') return
  if (answer === 'reset') return void response.socket?.resetAndDestroy()
  if (answer === 'malformed') return void response.socket?.end('This is not HTTP.\r\n\r\n')
  if (answer === 'flood') return flood(response)
  if (answer.delayMs) await wait(answer.delayMs, undefined, { ref: false })
  response.writeHead(answer.status, answer.headers).end(answer.body ?? '')
}

const flood = async (response: ServerResponse): Promise<void> => {
  const chunk = Buffer.alloc(65_536, 'x')
  const endless = function* () {
    for (;;) yield chunk
  }
  response.writeHead(200)
  // Ends when the client has had enough and closes the connection.
  await pipeline(endless, response).catch(() => {})
}

const describe = (requests: ReceivedRequest[], timeoutMs: number): string => {
  const seen = requests.map(({ method, path, body }) => `${method} ${path} ${body?.eventType ?? ''}`.trim())
  return `What was waited for did not arrive within ${timeoutMs} ms. Received: ${seen.join('; ') || 'nothing'}.`
}
