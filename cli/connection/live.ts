import { resultsOf } from '../../shared/server-sent-events.ts'
import { graphqlRequest, sign } from './client.ts'
import type { Connection } from './connection.ts'

/** The longest silence: a server answers a subscription at once, and sends a keep-alive every 5 s. */
const OPEN_MS = 3_000
const SILENT_MS = 15_000

/** The results of a subscription, until its connection breaks, falls silent, or ends. */
export type LiveStream<Data> = AsyncIterable<Data>

/**
 * Subscribes. Returns 'not offered' if the server does not answer with a stream, undefined if it is unavailable now.
 * The caller then polls, which reports what is wrong.
 */
export const openLive = async <Data>(
  { url: base, apiKey, apiSecret }: Connection,
  document: string,
  variables: object,
  signal: AbortSignal,
): Promise<LiveStream<Data> | 'not offered' | undefined> => {
  const { url, body } = graphqlRequest(base, document, variables)
  const { host: _, ...headers } = sign({ method: 'POST', url, body, credentials: { apiKey, apiSecret } })
  const silent = new AbortController()
  const giveUp = () => silent.abort()
  let timer = setTimeout(giveUp, OPEN_MS)
  try {
    const response = await fetch(url, {
      method: 'POST',
      headers: { ...headers, 'content-type': 'application/json', accept: 'text/event-stream' },
      body,
      redirect: 'manual',
      signal: AbortSignal.any([signal, silent.signal]),
    })
    if (response.headers.get('content-type')?.startsWith('text/event-stream') && response.body) {
      return streamOf(response.body.getReader(), () => {
        clearTimeout(timer)
        timer = setTimeout(giveUp, SILENT_MS)
        timer.unref()
      })
    }
    clearTimeout(timer)
    await response.body?.cancel()
    return PASSING.has(response.status) ? undefined : 'not offered'
  } catch {
    clearTimeout(timer)
    return undefined
  }
}

const PASSING = new Set([429, 502, 503, 504])

async function* streamOf<Data>(
  reader: ReadableStreamDefaultReader<Uint8Array>,
  alive: () => void,
): AsyncGenerator<Data> {
  alive()
  try {
    for await (const result of resultsOf(reader, alive)) {
      const { data, errors } = result as { data?: Data | null; errors?: unknown }
      if (errors || !data) return
      yield data
    }
  } catch {
    // The connection broke, or was closed.
  } finally {
    await reader.cancel().catch(() => {})
  }
}
