import type { Jwk } from '../shared/delivery-token.ts'
import { isObject } from '../shared/token-format.ts'
import type { Ping, TidingsEvent } from './event.ts'
import type { FaultCode, FaultDetails } from './fault.ts'
import { hasMethods, isFunction, requireClock, requireGiven, requireOptions } from './given.ts'
import { isUsable, jwksUrl, type KeySource, keysIn, remoteKeys } from './keys.ts'
import { memoryReplayStore, type ReplayStore } from './replay-store.ts'

/** Less than the 15 s that Tidings waits for an answer. */
const HANDLER_TIMEOUT_MS = 14_000
const LONGEST_TIMEOUT_MS = 2 ** 31 - 1

export interface VerifyOptions {
  /** The value that `iss` must equal: the address of the Tidings server, exactly as in its tokens. */
  issuer: string
  /**
   * The value that `aud` must equal: this endpoint's URL, exactly as it was registered. Several values, or a function
   * that judges the `aud` of a token whose signature is verified, are possible too.
   */
  audience: string | readonly string[] | ((audience: string) => boolean | Promise<boolean>)
  /** The issuer's keys, or the URL at which they are published. By default the issuer's `/.well-known/jwks.json`. */
  keys?: string | readonly Jwk[] | { keys: readonly Jwk[] } | KeySource
  /**
   * The receiver's own webhooks: one id, several ids, or a function that judges an id. Others can register a webhook
   * for this endpoint's URL, and its deliveries are signed as well. Not checked by default.
   */
  webhookId?:
    | string
    | readonly string[]
    | ((webhookId: string, event: TidingsEvent | Ping) => boolean | Promise<boolean>)
  /** The current time in epoch milliseconds; by default the machine's clock. */
  now?: () => number
}

export interface ReceiverOptions extends VerifyOptions {
  /** By default the process's memory. Processes that serve one endpoint must share a store. */
  replayStore?: ReplayStore
  /**
   * What is handled once: each `delivery` (by its `jti`), or each `event` (by its `id`). With `event`, a redelivery or
   * recovery of a handled event is answered 200 and not handled again. By default `delivery`.
   */
  dedupe?: 'delivery' | 'event'
  /**
   * The answer to a delivery that was handled before: `refuse` is the specification's 401. `acknowledge` is a 200 if
   * the token is newer than the one that was handled, as a retry's is. By default `refuse`.
   */
  replays?: 'refuse' | 'acknowledge'
  /**
   * Milliseconds from a request's arrival to a 503 if it is not answered before. By default 14,000, because Tidings
   * waits 15 s.
   */
  handlerTimeoutMs?: number
  /**
   * Called with each error on the receiver's side; the sender learns only that there was one. By default
   * `console.error`.
   */
  onError?: (error: unknown, context: { eventId?: string }) => unknown
  /**
   * Called for every request that was not answered 200, with the reason, which the sender does not learn. By default
   * `console.warn` for a token that the issuer has signed and this receiver refuses, at most once a minute for each
   * check.
   */
  onRefused?: (refusal: Refusal) => unknown
  /** Called for every handled event. */
  onHandled?: (handled: Handled) => unknown
}

export interface Refusal extends FaultDetails {
  code: FaultCode
  status: number
  message: string
}

export interface Handled {
  event: TidingsEvent
  /** How often this process has received this delivery, this time included. */
  attempt: number
  durationMs: number
  /** Whether it was answered 503 before the handler ended. */
  isLate: boolean
}

type Complete<Options, Name extends keyof Options> = Required<Pick<Options, Name>>
export type CheckedVerifyOptions = Complete<VerifyOptions, 'issuer' | 'audience' | 'now'> &
  Pick<VerifyOptions, 'webhookId'> & { keys: KeySource }
export type CheckedOptions = CheckedVerifyOptions & Required<Omit<ReceiverOptions, keyof VerifyOptions>>

/** Checks every option. Throws a TypeError that names the wrong one and what it should be. */
export const checkOptions = (options: ReceiverOptions): CheckedOptions => {
  refuseOthers(options, [...VERIFY_OPTIONS, ...RECEIVER_OPTIONS])
  const verify = checkVerifyOptions(options)
  const {
    replayStore = memoryReplayStore({ now: verify.now }),
    dedupe = 'delivery',
    replays = 'refuse',
    handlerTimeoutMs = HANDLER_TIMEOUT_MS,
    onError = logError,
    onRefused = logRefusals(),
    onHandled = ignore,
  } = options
  const isStore = hasMethods(replayStore, 'claim', 'record', 'release')
  requireGiven(isStore, 'replayStore', replayStore, 'an object with the methods claim, record and release')
  requireGiven(dedupe === 'delivery' || dedupe === 'event', 'dedupe', dedupe, '“delivery” or “event”')
  requireGiven(replays === 'refuse' || replays === 'acknowledge', 'replays', replays, '“refuse” or “acknowledge”')
  const isTime = Number.isFinite(handlerTimeoutMs) && handlerTimeoutMs > 0 && handlerTimeoutMs <= LONGEST_TIMEOUT_MS
  requireGiven(isTime, 'handlerTimeoutMs', handlerTimeoutMs, 'a number of milliseconds, such as 14000')
  for (const [name, value] of Object.entries({ onError, onRefused, onHandled })) {
    requireGiven(isFunction(value), name, value, 'a function')
  }
  return { ...verify, replayStore, dedupe, replays, handlerTimeoutMs, onError, onRefused, onHandled }
}

/** The same for `verifyDelivery`, which makes no other checks: a misspelt option, or one of a receiver, is refused. */
export const checkVerifyOptionsAlone = (options: VerifyOptions, keysAt: typeof remoteKeys): CheckedVerifyOptions => {
  refuseOthers(options, VERIFY_OPTIONS)
  return checkVerifyOptions(options, keysAt)
}

/**
 * Checks the options of the verification. `keysAt` makes the key source for a URL. Throws a TypeError that names the
 * wrong option.
 */
export const checkVerifyOptions = (options: VerifyOptions, keysAt = remoteKeys): CheckedVerifyOptions => {
  if (!isObject(options)) throw new TypeError('The options should be an object with issuer and audience.')
  const { issuer, audience, webhookId, now = Date.now } = options
  requireGiven(
    isUrl(issuer),
    'issuer',
    issuer,
    'the address of the Tidings server, such as https://tidings.example.com',
  )
  const isAudience = isUrl(audience) || isFunction(audience) || isListOf(audience, isUrl)
  const anAudience = 'this endpoint’s URL as it was registered, such as https://example.com/hooks'
  requireGiven(isAudience, 'audience', audience, anAudience)
  const isId = (value: unknown) => typeof value === 'string' && value !== ''
  // One that is undefined, such as a variable of the environment that is not set, would be a check that is not made.
  const isWebhook = !('webhookId' in options) || isId(webhookId) || isFunction(webhookId) || isListOf(webhookId, isId)
  requireGiven(isWebhook, 'webhookId', webhookId, 'the id of your webhook, a list of ids, or a function')
  requireClock(now)
  const keys = keySource(options.keys ?? jwksUrl(issuer), keysAt)
  return { issuer, audience, keys, now, ...(webhookId !== undefined && { webhookId }) }
}

const VERIFY_OPTIONS = ['issuer', 'audience', 'keys', 'webhookId', 'now']
const RECEIVER_OPTIONS = ['replayStore', 'dedupe', 'replays', 'handlerTimeoutMs', 'onError', 'onRefused', 'onHandled']

const refuseOthers = (options: object, names: string[]): void => {
  if (isObject(options)) requireOptions(options, names)
}

const keySource = (keys: unknown, keysAt: (url: string) => KeySource): KeySource => {
  if (isFunction(keys)) return keys as KeySource
  if (isUrl(keys)) return keysAt(keys as string)
  const given = keysIn(keys)
  const isSet = given?.some(isUsable) === true
  const aSet = 'the URL of a JSON Web Key Set, or keys of which at least one is an Ed25519 key with a kid'
  requireGiven(isSet, 'keys', keys, aSet)
  return () => given!
}

const isListOf = (value: unknown, isOne: (value: unknown) => boolean): boolean =>
  Array.isArray(value) && value.length > 0 && value.every(isOne)

const isUrl = (value: unknown): boolean =>
  typeof value === 'string' && URL.canParse(value) && /^https?:$/.test(new URL(value).protocol)

const logError = (error: unknown, { eventId }: { eventId?: string }): void =>
  console.error(`tidings/receiver${eventId === undefined ? '' : ` (event ${eventId})`}:`, error)

const ignore = (): void => {}

/** The least time between two lines for one code, so that strangers cannot fill the log. */
const LEAST_BETWEEN_LINES_MS = 60_000

const logRefusals = (): ((refusal: Refusal) => void) => {
  const lines = new Map<FaultCode, { atMs: number; leftOut: number }>()
  return ({ code, status, message, eventId }) => {
    if (status !== 401 || eventId === undefined || code === 'replay') return
    const last = lines.get(code)
    const atMs = performance.now()
    if (last && atMs - last.atMs < LEAST_BETWEEN_LINES_MS) {
      last.leftOut += 1
      return
    }
    lines.set(code, { atMs, leftOut: 0 })
    const before = last?.leftOut ? ` (and ${last.leftOut} more since the last such line)` : ''
    console.warn(`tidings/receiver: refused event ${eventId} for its ${code}${before}: ${message}`)
  }
}
