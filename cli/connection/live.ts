import { resultsOf } from '../../shared/server-sent-events.ts'
import { CliError, exitCodes } from '../errors.ts'
import { type Answer, dataOf, graphql, graphqlRequest, LOOK_TIMEOUT_MS, parseAnswer, sign } from './client.ts'
import type { Connection } from './connection.ts'
import { notReached } from './unreached.ts'

/** When a subscription that hears nothing is given up. */
export const LIVE_TIMES = {
  /** A stream that has not begun is compared with a query. */
  doubtMs: 2_000,
  /** A server begins a stream at once. Later than a query is given up, so that a server away is known as such. */
  beginMs: 12_000,
  /** A server sends a keep-alive every 5 s. */
  silentMs: 11_000,
  /** The pause before subscribing again. */
  againMs: 1_000,
  /** The same where the server limits the token. */
  limitedMs: 15_000,
}

export type Asked = { connection: Connection; document: string; variables: object; signal: AbortSignal }
type From = { lastEventId?: string | undefined; onId?: (id: string) => void }

/**
 * Subscribes, and returns the results once the stream has begun, until its connection breaks, falls silent, or ends.
 * Throws a CliError for a refusal, also one that ends the stream.
 */
export const openLive = async <Data>(
  { connection, document, variables, signal }: Asked,
  { lastEventId, onId = () => {} }: From = {},
  { doubtMs, beginMs, silentMs }: typeof LIVE_TIMES = LIVE_TIMES,
): Promise<AsyncGenerator<Data>> => {
  const { apiKey, apiSecret } = connection
  const { url, body } = graphqlRequest(connection.url, document, variables)
  const { host: _, ...headers } = sign({ method: 'POST', url, body, credentials: { apiKey, apiSecret } })
  const ending = new AbortController()
  const giveUp = (error: CliError) => ending.abort(error)
  const isAnswered = () => graphql(connection, '{ viewer { id } }', {}, { timeoutMs: LOOK_TIMEOUT_MS }).catch(giveUp)
  const doubting = setTimeout(isAnswered, doubtMs)
  const silence = setTimeout(() => giveUp(heldBack(url)), beginMs)
  try {
    const response = await fetch(url, {
      method: 'POST',
      headers: {
        ...headers,
        'content-type': 'application/json',
        accept: 'text/event-stream',
        ...(lastEventId !== undefined && { 'last-event-id': lastEventId }),
      },
      body,
      redirect: 'manual',
      signal: AbortSignal.any([signal, ending.signal]),
    })
    if (!response.headers.get('content-type')?.startsWith('text/event-stream')) {
      dataOf(parseAnswer(await response.text()), url, response, connection)
      throw noStream(url)
    }
    const reader = response.body!.getReader()
    const first = await reader.read()
    const isFirst = [true]
    const beats = { read: async () => (isFirst.pop() ? first : reader.read()) }
    ending.signal.throwIfAborted()
    return streamOf(beats, { response, url, connection, onId, silentMs, end: () => ending.abort() })
  } catch (error) {
    throw error instanceof CliError ? error : notReached(url, error, beginMs)
  } finally {
    clearTimeout(doubting)
    clearTimeout(silence)
  }
}

type Opened = { response: Response; url: URL; connection: Connection; onId: (id: string) => void; silentMs: number }

async function* streamOf<Data>(
  reader: Parameters<typeof resultsOf>[0],
  { response, url, connection, onId, silentMs, end }: Opened & { end: () => void },
): AsyncGenerator<Data> {
  const silence = setTimeout(end, silentMs)
  try {
    for await (const result of resultsOf(reader, { onChunk: () => silence.refresh(), onId })) {
      yield dataOf(result as Answer, url, response, connection) as Data
    }
  } catch (error) {
    if (error instanceof CliError) throw error
    // The connection broke, or was closed.
  } finally {
    clearTimeout(silence)
    end()
  }
}

const heldBack = (url: URL): CliError =>
  new CliError(
    exitCodes.unreachable,
    'NO_STREAM',
    `${url.origin} answers queries, but nothing of a subscription arrives: something in between, such as a proxy, ` +
      'holds event streams back.',
    'Have it pass text/event-stream on unbuffered (docs/reverse-proxy.md), or ask again and again: ' +
      'tidings deliveries list --since 1m',
  )

const noStream = (url: URL): CliError =>
  new CliError(
    exitCodes.unreachable,
    'NO_STREAM',
    `${url.origin} answers a subscription with something else than an event stream.`,
    'A server of Tidings 0.2 or later does. See which server is used with: tidings config',
  )
