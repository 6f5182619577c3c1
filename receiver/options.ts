import type { Jwk } from '../shared/delivery-token.ts'
import { isObject } from '../shared/token-format.ts'
import type { Ping, TidingsEvent } from './event.ts'
import type { FaultCode, FaultDetails } from './fault.ts'
import { hasMethods, isFunction, requireClock, requireGiven } from './given.ts'
import { isUsable, jwksUrl, type KeySource, keysIn, remoteKeys } from './keys.ts'
import { memoryReplayStore, type ReplayStore } from './replay-store.ts'

/** Less than the service waits for an answer, 15 s. */
const HANDLER_TIMEOUT_MS = 14_000
const LONGEST_TIMEOUT_MS = 2 ** 31 - 1

export interface VerifyOptions {
  /** What `iss` must equal: the address of the Tidings server, exactly as it is written in its tokens. */
  issuer: string
  /**
   * What `aud` must equal: this endpoint's URL, exactly as it was registered; several, if it is registered under
   * several; or what says of a token's `aud` whether it is one, asked only once the signature is verified.
   */
  audience: string | readonly string[] | ((audience: string) => boolean | Promise<boolean>)
  /** The issuer's keys, or the URL they are published at. Its `/.well-known/jwks.json` unless given. */
  keys?: string | readonly Jwk[] | { keys: readonly Jwk[] } | KeySource
  /**
   * The receiver's own webhooks: one id, several, or what says of an id whether it is one. Others may register a
   * webhook for this endpoint's URL, and what they send is as well signed. Not checked unless given.
   */
  webhookId?:
    | string
    | readonly string[]
    | ((webhookId: string, event: TidingsEvent | Ping) => boolean | Promise<boolean>)
  /** The time in epoch milliseconds; the machine's unless given. */
  now?: () => number
}

export interface ReceiverOptions extends VerifyOptions {
  /** In this process's memory unless given; processes that share an endpoint share a store. */
  replayStore?: ReplayStore
  /**
   * What is handled once: each `delivery` (its `jti`), or with `event` each event (its `id`), so that a redelivery or a
   * recovery of one that was handled is answered 200 and not handled again. `delivery` unless given.
   */
  dedupe?: 'delivery' | 'event'
  /**
   * What a delivery that was handled before is answered: `refuse` is the specification's 401, and `acknowledge` a 200
   * if its token was made after the one it was handled with, as that of a retry is. `refuse` unless given.
   */
  replays?: 'refuse' | 'acknowledge'
  /**
   * Milliseconds from a request's arrival to a 503, if it is not
   * answered before. 14,000 unless given: the service waits 15 s.
   */
  handlerTimeoutMs?: number
  /**
   * Told what went wrong on the receiver's side, of which the
   * sender learns no more than that. `console.error` unless given.
   */
  onError?: (error: unknown, context: { eventId?: string }) => unknown
  /** Told of every request that was not answered 200, and why. */
  onRefused?: (refusal: Refusal) => unknown
  /** Told of every event that was handled. */
  onHandled?: (handled: Handled) => unknown
}

export interface Refusal extends FaultDetails {
  code: FaultCode
  status: number
  message: string
}

export interface Handled {
  event: TidingsEvent
  /** How often this process has been given this delivery, this time included. */
  attempt: number
  durationMs: number
  /** It had been answered 503 before the handler ended. */
  isLate: boolean
}

type Complete<Options, Name extends keyof Options> = Required<Pick<Options, Name>>
export type CheckedVerifyOptions = Complete<VerifyOptions, 'issuer' | 'audience' | 'now'> &
  Pick<VerifyOptions, 'webhookId'> & { keys: KeySource }
export type CheckedOptions = CheckedVerifyOptions & Required<Omit<ReceiverOptions, keyof VerifyOptions>>

/** Every option, checked. Throws a TypeError that names the one that is wrong, and what it should be. */
export const checkOptions = (options: ReceiverOptions): CheckedOptions => {
  refuseOthers(options, [...VERIFY_OPTIONS, ...RECEIVER_OPTIONS])
  const verify = checkVerifyOptions(options)
  const {
    replayStore = memoryReplayStore({ now: verify.now }),
    dedupe = 'delivery',
    replays = 'refuse',
    handlerTimeoutMs = HANDLER_TIMEOUT_MS,
    onError = logError,
    onRefused = ignore,
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

/** Of all options those of the verification, checked; `keysAt` makes the source of keys that are published at a URL. */
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
  const isWebhook = webhookId === undefined || isId(webhookId) || isFunction(webhookId) || isListOf(webhookId, isId)
  requireGiven(isWebhook, 'webhookId', webhookId, 'the id of your webhook, a list of ids, or a function')
  requireClock(now)
  const keys = keySource(options.keys ?? jwksUrl(issuer), keysAt)
  return { issuer, audience, keys, now, ...(webhookId !== undefined && { webhookId }) }
}

const VERIFY_OPTIONS = ['issuer', 'audience', 'keys', 'webhookId', 'now']
const RECEIVER_OPTIONS = ['replayStore', 'dedupe', 'replays', 'handlerTimeoutMs', 'onError', 'onRefused', 'onHandled']

/** A misspelt option would be a check that is not made. */
const refuseOthers = (options: object, names: string[]): void => {
  if (!isObject(options)) return
  const other = Object.keys(options).find(name => !names.includes(name))
  if (other !== undefined) throw new TypeError(`${other} is no option; these are: ${names.join(', ')}.`)
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
