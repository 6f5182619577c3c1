import type { Knex } from 'knex'
import { TidingsError } from '../../shared/errors.ts'
import { run } from '../database/connect.ts'
import type { Change } from '../domain/change.ts'
import { enqueue } from '../domain/deliveries.ts'
import { recordPing } from '../domain/events.ts'
import { lockActive } from '../domain/webhooks.ts'
import { newId } from '../ids.ts'
import { currentTrace } from '../tracing/tracing.ts'
import { type AttemptTools, sendOnce } from './attempt.ts'
import { LEASE_MS, newLease } from './leases.ts'
import type { DeliveryLoop } from './loop.ts'
import type { AttemptResult } from './outcome.ts'

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
}

/** Pings an endpoint, and throws PING_FAILED with what happened unless it answers exactly 200. Nothing is stored. */
export const pingBeforeStoring = async (
  tools: AttemptTools,
  { webhookId, url }: { webhookId: string; url: string },
): Promise<AnsweredPing> => {
  const eventTime = tools.clock.now()
  const waitMs = tools.keyring.signsFrom() - eventTime
  if (waitMs > 0) {
    throw new TidingsError(
      'UNAVAILABLE',
      'The signing key was revoked, and receivers do not know the next one yet. Nothing was done.',
      { retryAfterSeconds: Math.ceil(Math.min(waitMs, LONGEST_WAIT_MS) / 1000) },
    )
  }
  const [deliveryId, eventId] = [newId(eventTime), newId(eventTime)]
  const { startedAt, durationMs, result } = await sendOnce(
    {
      deliveryId,
      eventId,
      webhookId,
      url,
      eventType: 'ping',
      eventTime,
      payload: '{}',
      traceparent: currentTrace() ?? null,
    },
    tools,
  )
  if (result.kind === 'response' && result.statusCode === 200) {
    return { deliveryId, eventId, eventTime, sentAt: startedAt, durationMs, response: result.body }
  }
  throw new TidingsError(
    'PING_FAILED',
    `${url} must answer the ping with 200, but ${inWords(result)}. Nothing was stored.`,
    {
      url,
      durationMs,
      ...(result.kind === 'response'
        ? { statusCode: result.statusCode, response: result.body }
        : { failure: result.reason, detail: result.detail }),
    },
  )
}

const inWords = (result: AttemptResult): string =>
  result.kind === 'response'
    ? `it answered ${result.statusCode}`
    : `it gave no answer: ${result.detail} (${result.reason})`

/** Records an answered ping in the history of the webhook that it admitted. */
export const recordAnsweredPing = async (
  trx: Knex.Transaction,
  webhookId: string,
  { deliveryId, eventId, eventTime, sentAt, durationMs, response }: AnsweredPing,
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
    `INSERT INTO attempts (delivery_id, number, started_at, duration_ms, status_code, response)
     VALUES (?, 1, ?, ?, 200, ?)`,
    [deliveryId, sentAt, durationMs, response],
  )
}

/**
 * Sends a ping to a stored webhook and resolves with the delivery's id when the first attempt has been recorded. From
 * then on it is a delivery like any other, retried and dropped by the same rules.
 */
export const pingStored = async (
  { change, loop }: { change: <T>(work: (change: Change) => Promise<T>) => Promise<T>; loop: DeliveryLoop },
  webhookId: string,
): Promise<{ deliveryId: string }> => {
  const { deliveryId, eventId, epoch, lease } = await change(async held => {
    const { trx } = held
    const webhook = await lockActive(held, webhookId)
    const now = held.now()
    const lease = newLease(now)
    const eventId = await recordPing(trx, now)
    const owed = { event: { id: eventId, type: 'ping' as const }, webhook }
    const [id] = await enqueue(trx, [owed], now, { id: lease, end: now + LEASE_MS })
    return { deliveryId: id!, eventId, epoch: webhook.epoch, lease }
  })
  const first = { lease, attempt: 1, failureCount: 0, throttledSinceMs: null, line: null }
  const claimed = { deliveryId, eventId, webhookId, epoch, recovered: false, ...first }
  await loop.deliverNow(claimed)
  return { deliveryId }
}
