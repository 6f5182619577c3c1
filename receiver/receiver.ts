import { type Check, type Jwk, verifyDeliveryToken } from '../shared/delivery-token.ts'
import { MAX_BODY_BYTES, tooLarge } from './body.ts'
import { type Ping, readEvent, type TidingsEvent } from './event.ts'
import { type Answer, Fault } from './fault.ts'
import { jwksUrl, type KeySource, kidOf, remoteKeys } from './keys.ts'
import { memoryReplayStore, type ReplayStore } from './replay-store.ts'

/**
 * How long a claim of a `jti` holds, in seconds: four times what the service waits for an answer. A process that dies
 * while it handles an event leaves its claim behind, and the event can be handled only after that.
 */
const CLAIM_SECONDS = 60
/**
 * How long a handled `jti` is remembered, in seconds. Its tokens are valid for 5 minutes, but the service may make new
 * ones with the same `jti` for as long as it has not seen the 2XX: the schedule of retries takes 85 minutes, and a
 * webhook that answers 429 is waited for 72 hours, and once more 24 at most.
 */
const HANDLED_SECONDS = 96 * 3600

export interface ReceiverOptions {
  /** What `iss` must equal: the address of the Tidings server, exactly as it is written in its tokens. */
  issuer: string
  /** What `aud` must equal: this endpoint's URL, exactly as it was registered. */
  audience: string
  /** The issuer's keys, or the URL they are published at. Its `/.well-known/jwks.json` unless given. */
  keys?: string | readonly Jwk[] | KeySource
  /** In this process's memory unless given; processes that share an endpoint share a store. */
  replayStore?: ReplayStore
  /**
   * Told what went wrong on the receiver's side, of which the
   * sender learns no more than that. `console.error` unless given.
   */
  onError?: (error: unknown) => void
  /** The time in epoch milliseconds; the machine's unless given. */
  now?: () => number
}

/** A request as it came. */
export interface DeliveryRequest {
  /** POST unless given; anything else is answered 405. */
  method?: string | undefined
  /** The `Authorization` header. */
  authorization: string | null | undefined
  /** The raw body, or what reads it when it is needed. */
  body: Uint8Array | string | (() => Promise<Uint8Array | string>)
}

/**
 * Handles an event. When it returns (or its promise resolves), the event counts as handled, is answered 200 and does
 * not come again; when it throws, it does.
 */
export type Handler = (event: TidingsEvent) => unknown

/**
 * Thrown by a handler: the delivery is answered 429, and nothing
 * comes to the webhook for so many seconds. It is no failure.
 */
export class RetryLater extends Error {
  readonly seconds: number

  constructor(seconds: number) {
    // What the service cannot read counts as no Retry-After, which makes the webhook inactive.
    if (!Number.isFinite(seconds) || seconds < 0) throw new RangeError(`${seconds} is no number of seconds to wait.`)
    super(`Not now: again in ${Math.ceil(seconds)} s.`)
    this.name = 'RetryLater'
    this.seconds = Math.ceil(seconds)
  }
}

export interface Receiver {
  /**
   * Verifies a delivery, gives its event to `handler` if it is new, and answers with
   * what to send back. A delivery that comes while it is being handled, or after it
   * was, does not reach `handler` again. Rejects only when `onError` throws.
   */
  receive(request: DeliveryRequest, handler: Handler): Promise<Answer>
}

/**
 * What every receiver of Tidings' deliveries does, without a framework.
 *
 * @throws TypeError when issuer or audience are no URLs
 */
export const createReceiver = (options: ReceiverOptions): Receiver => {
  const { issuer, audience, now = Date.now } = options
  const { replayStore = memoryReplayStore({ now }), onError = logError } = options
  requireUrl('issuer', issuer, 'the address of the Tidings server, such as https://tidings.example.com')
  requireUrl('audience', audience, 'this endpoint’s URL as it was registered, such as https://example.com/hooks')
  const keys = keySource(options.keys ?? jwksUrl(issuer))

  const verify = async ({ method = 'POST', authorization, body }: DeliveryRequest): Promise<TidingsEvent | Ping> => {
    if (method !== 'POST') throw new Fault('method', 'Deliveries come with POST.', { allow: 'POST' })
    const token = bearerToken(authorization)
    if (token === undefined) throw new Fault('token_missing', 'There is no “Authorization: Bearer …” header.')
    const bytes = typeof body === 'function' ? await body() : body
    if (Buffer.byteLength(bytes) > MAX_BODY_BYTES) throw tooLarge()
    const text = typeof bytes === 'string' ? bytes : Buffer.from(bytes).toString('utf8')

    const { checks } = await verifyDeliveryToken(token, {
      keys: await published(token),
      issuer,
      audience,
      body: text,
      at: new Date(now()),
    })
    const failed = checks.find(({ status }) => status === 'failed')
    if (failed) throw new Fault(failed.name, describe(failed))
    const event = readEvent(text)
    if (typeof event === 'string') throw new Fault('body', event)
    return event
  }

  /** Keys that cannot be had are not the sender's fault, so no 4XX, which would end the delivery. */
  const published = async (token: string): Promise<readonly Jwk[]> => {
    try {
      return await keys(kidOf(token))
    } catch (error) {
      throw new Fault('keys_unavailable', 'The issuer’s keys could not be had.', {}, error)
    }
  }

  const handleOnce = async (event: TidingsEvent | Ping, handler: Handler): Promise<void> => {
    const claim = await claimed(event.eventId)
    if (claim === 'handled') throw new Fault('replay', 'This event was handled before; it is not handled again.')
    if (claim === 'in_progress') throw new Fault('in_progress', 'This event is being handled right now.')
    try {
      if (event.eventType !== 'ping') await handler(event)
    } catch (error) {
      await settle(() => replayStore.release(event.eventId))
      if (error instanceof RetryLater) {
        throw new Fault('retry_later', error.message, { 'retry-after': String(error.seconds) })
      }
      throw new Fault('handler_failed', 'The event could not be handled; the receiver’s log says why.', {}, error)
    }
    await settle(() => replayStore.record(event.eventId, HANDLED_SECONDS))
  }

  const claimed = async (jti: string) => {
    try {
      return await replayStore.claim(jti, CLAIM_SECONDS)
    } catch (error) {
      throw new Fault('replay_store_unavailable', 'The replay store could not be asked.', {}, error)
    }
  }

  /** What became of the event stands, and is answered, whether or not the store could take it. */
  const settle = async (change: () => unknown): Promise<void> => {
    try {
      await change()
    } catch (error) {
      onError(error)
    }
  }

  return {
    async receive(request, handler) {
      try {
        await handleOnce(await verify(request), handler)
        return { status: 200, headers: {}, body: '' }
      } catch (error) {
        if (!(error instanceof Fault)) throw error
        const { answer } = error
        if (answer.status >= 500 && error.code !== 'in_progress') onError(error.cause ?? error)
        return answer
      }
    },
  }
}

/** What follows “Bearer ” in an Authorization header (RFC 6750 section 2.1; the scheme's case does not matter). */
export const bearerToken = (header: string | null | undefined): string | undefined =>
  /^Bearer +(\S.*)$/i.exec(header ?? '')?.[1]?.trimEnd()

const keySource = (keys: string | readonly Jwk[] | KeySource): KeySource => {
  if (typeof keys === 'function') return keys
  if (typeof keys !== 'string') return async () => keys
  requireUrl('keys', keys, 'the URL of a JSON Web Key Set, or the keys themselves')
  return remoteKeys(keys)
}

const requireUrl = (name: string, value: unknown, meaning: string): void => {
  if (typeof value === 'string' && /^https?:$/.test(URL.parse(value)?.protocol ?? '')) return
  throw new TypeError(`${name} is ${JSON.stringify(value)}; it should be ${meaning}.`)
}

const describe = ({ expected, found, advice }: Check): string =>
  `${expected === undefined ? '' : `expected ${expected}, found ${found}. `}${advice ?? ''}`.trim()

const logError = (error: unknown): void => console.error('tidings/receiver:', error)
