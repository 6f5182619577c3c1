import { setTimeout as sleep } from 'node:timers/promises'
import { TidingsError } from '../../shared/errors.ts'
import type { WebhookTransport } from '../../shared/vocabulary.ts'
import { type Database, rows, run } from '../database/connect.ts'
import type { Transaction } from '../database/transaction.ts'
import type { Change } from '../domain/change.ts'
import { enqueue } from '../domain/deliveries.ts'
import { recordPing } from '../domain/events.ts'
import { errorCodeIn } from '../domain/explain-answers.ts'
import { pingSoon } from '../domain/missed.ts'
import type { WebhookRow } from '../domain/resources.ts'
import { lockActive } from '../domain/webhooks.ts'
import { newId } from '../ids.ts'
import { currentTrace } from '../tracing/tracing.ts'
import { type AttemptTools, type Message, sendOnce } from './attempt.ts'
import type { Evidence } from './evidence.ts'
import { LEASE_MS, newLease } from './leases.ts'
import type { DeliveryLoop } from './loop.ts'
import { type AttemptResult, LONGEST_THROTTLE_MS } from './outcome.ts'
import { PING_MS, type PulledPing, type PullPings } from './pull/pings.ts'
import { parseRetryAfter } from './retry-after.ts'

/** When the next key signs is unknown if this process cannot open the present one. */
const LONGEST_WAIT_MS = 60_000

/** A ping that was answered with 200, to be recorded once the webhook is stored. */
export type AnsweredPing = {
  deliveryId: string
  eventId: string
  eventTime: number
  sentAt: number
  durationMs: number
  response: string
  evidence?: Evidence
}

/** Throws UNAVAILABLE while no key may sign. */
export const requireSigning = ({ clock, keyring }: Pick<AttemptTools, 'clock' | 'keyring'>): void => {
  const waitMs = keyring.signsFrom() - clock.now()
  if (waitMs <= 0) return
  throw new TidingsError(
    'UNAVAILABLE',
    'The signing key was revoked, and receivers do not know the next one yet. Nothing was done.',
    { retryAfterSeconds: Math.ceil(Math.min(waitMs, LONGEST_WAIT_MS) / 1000) },
  )
}

type Unstored = { webhookId: string; url: string; requestSealed: string | null }
type Send = (message: Message) => Promise<PulledPing>

/** Sends a ping of which nothing is stored yet; `answered` if the answer is exactly 200. */
const sendPing = async (tools: AttemptTools, of: Unstored, send: Send) => {
  const eventTime = tools.clock.now()
  requireSigning(tools)
  const [deliveryId, eventId] = [newId(eventTime), newId(eventTime)]
  const { startedAt, durationMs, result, evidence } = await send({
    ...of,
    deliveryId,
    eventId,
    eventType: 'ping',
    eventTime,
    payload: '{}',
    traceparent: currentTrace() ?? null,
  })
  if (result.kind !== 'response' || result.statusCode !== 200) return { result, durationMs }
  const answered: AnsweredPing = {
    ...{ deliveryId, eventId, eventTime, sentAt: startedAt, durationMs, response: result.body },
    ...(evidence && { evidence }),
  }
  return { result, durationMs, answered }
}

/**
 * Pings an endpoint, and throws PING_FAILED with what happened unless it answers exactly 200. Nothing is stored.
 *
 * @param send has the ping answered; by default sends it to the URL
 */
export const pingBeforeStoring = async (
  tools: AttemptTools,
  { webhookId, url, requestSealed }: Unstored,
  send: Send = message => sendOnce(message, tools),
): Promise<AnsweredPing> => {
  const { answered, result, durationMs } = await sendPing(tools, { webhookId, url, requestSealed }, send)
  if (answered) return answered
  throw new TidingsError(
    'PING_FAILED',
    `${url} must answer the ping with 200, but ${inWords(result)}. Nothing was stored.`,
    {
      url,
      durationMs,
      ...(result.kind === 'response'
        ? { statusCode: result.statusCode, response: toldToStranger(result.statusCode, result.body) }
        : { failure: result.reason, detail: result.detail }),
    },
  )
}

/**
 * What a refused caller learns of the answer. An endpoint that refuses may say whom it would let in, and the caller may
 * be a stranger to it: of a 401 or 403 only the code in `error` is passed on.
 */
const toldToStranger = (statusCode: number, body: string): string => {
  if (statusCode !== 401 && statusCode !== 403) return body
  const code = errorCodeIn(body)
  return code === undefined ? '' : JSON.stringify({ error: code })
}

const inWords = (result: AttemptResult): string =>
  result.kind === 'response'
    ? `it answered ${result.statusCode}`
    : `it gave no answer: ${result.detail} (${result.reason})`

/** How a ping is answered: by a client of this access token if the webhook is pulled, else by its URL. */
export const wayOf = (
  { transport, accessTokenId }: { transport: WebhookTransport; accessTokenId: string },
  pings: Pick<PullPings, 'ping'>,
): ((message: Message) => Promise<PulledPing>) | undefined =>
  transport === 'pull' ? message => pings.ping(message, accessTokenId) : undefined

/**
 * Pings a stored webhook's endpoint, or its clients. Resolves to what records the ping if it was answered with exactly
 * 200, or else to the milliseconds for which it was asked to be left alone. Throws UNAVAILABLE if nothing can be signed
 * now.
 */
export const pingOnce = async (
  tools: AttemptTools,
  pings: Pick<PullPings, 'ping'>,
  { id: webhookId, url, request_sealed: requestSealed, transport, access_token_id: accessTokenId }: WebhookRow,
): Promise<((trx: Transaction) => Promise<void>) | number> => {
  const of = { webhookId, url, requestSealed }
  const send = wayOf({ transport, accessTokenId }, pings) ?? (message => sendOnce(message, tools))
  const { answered, result } = await sendPing(tools, of, send)
  if (answered) return trx => recordAnsweredPing(trx, webhookId, answered)
  const asked = result.kind === 'response' && result.statusCode === 429 ? result.retryAfter : undefined
  return Math.min(parseRetryAfter(asked ?? '', tools.clock.now()) ?? 0, LONGEST_THROTTLE_MS)
}

/** Records an answered ping in the history of the webhook that it admitted. */
export const recordAnsweredPing = async (
  trx: Transaction,
  webhookId: string,
  { deliveryId, eventId, eventTime, sentAt, durationMs, response, evidence }: AnsweredPing,
): Promise<void> => {
  await recordPing(trx, eventTime, eventId)
  const finishedAt = sentAt + durationMs
  await run(
    trx,
    `INSERT INTO deliveries (id, event_id, event_type, webhook_id, status, attempt_count, created_at, finished_at)
     VALUES (?, ?, 'ping', ?, 'delivered', 1, ?, ?)`,
    [deliveryId, eventId, webhookId, sentAt, finishedAt],
  )
  await run(
    trx,
    `INSERT INTO attempts (delivery_id, number, started_at, duration_ms, status_code, response, evidence)
     VALUES (?, 1, ?, ?, 200, ?, ?)`,
    [deliveryId, sentAt, durationMs, response, evidence === undefined ? null : JSON.stringify(evidence)],
  )
}

/**
 * Sends a ping to a stored webhook and resolves with the delivery's id when the first attempt has been recorded. From
 * then on it is a delivery like any other, retried and dropped by the same rules.
 */
export const pingStored = async (
  {
    change,
    loop,
    database,
  }: { change: <T>(work: (change: Change) => Promise<T>) => Promise<T>; loop: DeliveryLoop; database: Database },
  webhookId: string,
): Promise<{ deliveryId: string }> => {
  const { deliveryId, eventId, epoch, transport, lease, now } = await change(async within => {
    const { trx } = within
    const webhook = await lockActive(within, webhookId)
    const now = within.now()
    const lease = newLease(now)
    const eventId = await recordPing(trx, now)
    const owed = { event: { id: eventId, type: 'ping' as const }, webhook }
    const { epoch, transport } = webhook
    const [id] = await enqueue(trx, [owed], now, transport === 'push' ? { id: lease, end: now + LEASE_MS } : undefined)
    return { deliveryId: id!, eventId, epoch, transport, lease, now }
  })
  if (transport === 'pull') {
    loop.waits?.look(webhookId)
    await attemptOf(database, deliveryId)
    await healSoon(database, { deliveryId, webhookId, now })
    return { deliveryId }
  }
  const first = { lease, attempt: 1, failureCount: 0, throttledSinceMs: null, line: null }
  const claimed = { deliveryId, eventId, webhookId, epoch, recovered: false, ...first }
  // What could not begin in time is given back, and whoever claims it sends it.
  if (!(await loop.deliverNow(claimed))) await attemptOf(database, deliveryId)
  await healSoon(database, { deliveryId, webhookId, now })
  return { deliveryId }
}

/** A webhook that heals itself and has just answered need not wait for its next ping. */
const healSoon = async (
  { knex }: Database,
  { deliveryId, webhookId, now }: { deliveryId: string; webhookId: string; now: number },
): Promise<void> => {
  const answered = await rows(knex, `SELECT 1 FROM deliveries WHERE id = ? AND status = 'delivered'`, [deliveryId])
  if (answered.length > 0) await pingSoon(knex, webhookId, now)
}

/** How often it is looked up whether an attempt was made. */
const LOOK_MS = 250

/** Waits for the attempt of a client or another claim, but no longer than an endpoint may take. */
const attemptOf = async ({ knex }: Database, deliveryId: string): Promise<void> => {
  const waiting = `SELECT 1 FROM deliveries WHERE id = ? AND status = 'pending' AND attempt_count = 0`
  for (const until = performance.now() + PING_MS; performance.now() < until; await sleep(LOOK_MS)) {
    if ((await rows(knex, waiting, [deliveryId])).length === 0) return
  }
}
