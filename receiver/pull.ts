import type { Handler } from './handler.ts'
import type { ReceiverOptions } from './options.ts'
import { type AskServer, type Pulling, startPulling, type TakenDelivery } from './pulling.ts'
import { createReceiver } from './receiver.ts'

/** The options of {@link pullDeliveries}. */
export interface PullOptions extends Partial<Omit<ReceiverOptions, 'audience'>> {
  /** The URL of the Tidings server. */
  server: string
  /** An access token with the permission `webhooks` that sees the webhook. */
  credential: { apiKey: string; apiSecret: string }
  /** A webhook with `transport: pull`. Its id may be new: then create it with `upsertWebhook` while this runs. */
  webhookId: string
  /** Handles an event, exactly as for `createReceiver`. */
  handler: Handler<TakenDelivery>
  /** The most events that are handled at once; 10 by default. */
  concurrency?: number
  /** The `aud` of its tokens; `{server}/pull/{webhookId}` by default. */
  audience?: string
  /** Called with an error after which pulling goes on; logged by default. */
  onPullError?: (error: unknown) => void
}

/**
 * Takes the deliveries of a webhook from the server, verifies each and gives it to the handler, and answers for it. It
 * needs no address that the server can reach. It waits for a server that is away; `stop` ends it when everything that
 * it has taken is answered.
 *
 * @throws TypeError when an option is wrong
 * @example
 *   const pulling = pullDeliveries({ server, credential, webhookId, handler: event => queue.push(event) })
 *   process.once('SIGTERM', () => pulling.stop())
 *   await pulling.ended
 */
export const pullDeliveries = ({
  server,
  credential,
  webhookId,
  handler,
  concurrency = 10,
  audience,
  onPullError = error => console.error('tidings: deliveries cannot be pulled; trying again:', error),
  ...options
}: PullOptions): Pulling => {
  const base = server.replace(/\/$/, '')
  if (!(concurrency >= 1)) throw new TypeError(`The concurrency is ${concurrency}; it must be a number from 1.`)
  const receiver = createReceiver<TakenDelivery>({
    issuer: base,
    handlerTimeoutMs: HANDLER_TIMEOUT_MS,
    ...options,
    audience: audience ?? `${options.issuer ?? base}/pull/${webhookId}`,
  })
  const answer = async (taken: TakenDelivery) => {
    const given = { authorization: taken.headers.authorization, body: taken.body, request: taken }
    const { status, headers, body } = await receiver.receive(given, handler)
    return { status, headers, body }
  }
  return startPulling({ ask: askServer(base, credential), webhookId, concurrency, answer, onError: onPullError })
}

/** Less than the 15 minutes for which a lease can be extended. */
const HANDLER_TIMEOUT_MS = 14 * 60_000
/** Longer than the server waits for a delivery. */
const TIMEOUT_MS = 45_000

const askServer =
  (base: string, credential: PullOptions['credential']): AskServer =>
  async (document, variables, signal) => {
    const url = new URL(`${base}/graphql`)
    const body = JSON.stringify({ query: document, variables })
    const response = await fetch(url, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...(await signed(url, body, credential)) },
      body,
      signal: AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT_MS)]),
    })
    const answer = (await response.json()) as { data?: unknown; errors?: { message: string; extensions: object }[] }
    const [error] = answer.errors ?? []
    if (error) throw Object.assign(new Error(error.message), error.extensions)
    return answer.data
  }

/** The headers that sign a request to the API: see “Signing requests”. */
const signed = async (url: URL, body: string, { apiKey, apiSecret }: PullOptions['credential']) => {
  const encoder = new TextEncoder()
  const secret = Uint8Array.from(atob(apiSecret), character => character.charCodeAt(0))
  const key = await crypto.subtle.importKey('raw', secret, { name: 'HMAC', hash: 'SHA-256' }, false, ['sign'])
  const digest = base64(await crypto.subtle.digest('SHA-256', encoder.encode(body)))
  const headers = { 'x-date': new Date().toUTCString(), 'x-content-sha256': digest, 'x-nonce': crypto.randomUUID() }
  const values = [headers['x-date'], url.host, digest, headers['x-nonce']]
  const text = `POST\n${url.pathname}${url.search}\n${values.join(';')}`
  const signature = base64(await crypto.subtle.sign('HMAC', key, encoder.encode(text)))
  const names = 'x-date;host;x-content-sha256;x-nonce'
  return { ...headers, authorization: `HMAC-SHA256 Credential=${apiKey}&SignedHeaders=${names}&Signature=${signature}` }
}

const base64 = (bytes: ArrayBuffer): string => btoa(String.fromCharCode(...new Uint8Array(bytes)))
