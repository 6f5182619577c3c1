import type { Knex } from 'knex'
import { v7 as uuid } from 'uuid'
import { type DeliveryStatus, deliveryStatuses, type EventType, eventTypes } from '../../shared/vocabulary.ts'
import { marks, run, type Sql } from '../database/connect.ts'
import type { Resource } from '../mango/resource.ts'
import { type AccessToken, may } from './access-tokens.ts'
import type { Change } from './change.ts'
import { events, visibleEvents } from './events.ts'
import { visibleWebhooks } from './webhook-visibility.ts'
import { webhooks } from './webhooks.ts'

export type DeliveryRow = {
  id: string
  event_id: string
  webhook_id: string
  event_type: EventType
  status: DeliveryStatus
  attempt_count: number
  next_attempt_at: number | null
  created_at: number
  finished_at: number | null
}

export type AttemptRow = {
  delivery_id: string
  number: number
  started_at: number
  duration_ms: number | null
  status_code: number | null
  failure: string | null
  failure_detail: string | null
  response: string | null
  retry_after: number | null
}

export const attempts: Resource = {
  name: 'attempts',
  table: 'attempts',
  fields: {
    number: { kind: 'column', column: 'number', type: 'integer' },
    startedAt: { kind: 'column', column: 'started_at', type: 'time' },
    durationMs: { kind: 'column', column: 'duration_ms', type: 'integer', nullable: true },
    statusCode: { kind: 'column', column: 'status_code', type: 'integer', nullable: true },
    failure: { kind: 'column', column: 'failure', type: 'string', nullable: true },
    failureDetail: { kind: 'column', column: 'failure_detail', type: 'string', nullable: true },
    response: { kind: 'column', column: 'response', type: 'string', nullable: true },
    retryAfter: { kind: 'column', column: 'retry_after', type: 'time', nullable: true },
  },
}

export const deliveries: Resource = {
  name: 'deliveries',
  table: 'deliveries',
  fields: {
    id: { kind: 'column', column: 'id', type: 'uuid' },
    webhookId: { kind: 'column', column: 'webhook_id', type: 'uuid' },
    webhook: { kind: 'related', column: 'webhook_id', resource: () => webhooks },
    eventId: { kind: 'column', column: 'event_id', type: 'uuid' },
    eventType: { kind: 'column', column: 'event_type', type: 'string', values: eventTypes },
    event: { kind: 'related', column: 'event_id', resource: () => events },
    status: { kind: 'column', column: 'status', type: 'string', values: deliveryStatuses },
    attemptCount: { kind: 'column', column: 'attempt_count', type: 'integer' },
    nextAttemptAt: { kind: 'column', column: 'next_attempt_at', type: 'time', nullable: true },
    createdAt: { kind: 'column', column: 'created_at', type: 'time' },
    finishedAt: { kind: 'column', column: 'finished_at', type: 'time', nullable: true },
    attempts: { kind: 'children', resource: () => attempts, key: 'delivery_id', orderBy: 'number' },
  },
}

/** A delivery is visible where both its webhook and its event are: what a webhook was sent before it named less is not for all who see it now. */
export const visibleDeliveries =
  (token: AccessToken) =>
  (builder: Knex.QueryBuilder): void => {
    if (token.seesAllOrganisations) return
    if (!may(token, 'admin')) {
      builder.whereIn('deliveries.webhook_id', query => {
        query.select('webhooks.id').from('webhooks').modify(visibleWebhooks(token))
      })
    }
    builder.whereIn('deliveries.event_id', query => {
      query.select('events.id').from('events').modify(visibleEvents(token))
    })
  }

// A delivery is `pending` exactly while it has a row in `delivery_queue`. Both change in one transaction, and nowhere but here and in
// the settle (`delivery/queue.ts`), which records what attempts have come to.

const ROWS_A_STATEMENT = 500

/**
 * Writes pending deliveries, due now, and returns their ids in the order of `owed`.
 *
 * @param lease if given, the first attempt is claimed by the caller from the start, until `end`
 */
export const enqueue = async (
  trx: Sql,
  owed: { event: { id: string; type: EventType }; webhookId: string }[],
  now: number,
  lease?: { id: string; end: number },
): Promise<string[]> => {
  const added = owed.map(one => ({ id: uuid(), ...one }))
  for (let from = 0; from < added.length; from += ROWS_A_STATEMENT) {
    const part = added.slice(from, from + ROWS_A_STATEMENT)
    await run(
      trx,
      `INSERT INTO deliveries (id, event_id, event_type, webhook_id, status, next_attempt_at, created_at)
       VALUES ${part.map(() => "(?, ?, ?, ?, 'pending', ?, ?)").join(', ')}`,
      part.flatMap(({ id, event, webhookId }) => [id, event.id, event.type, webhookId, now, now]),
    )
    await run(
      trx,
      `INSERT INTO delivery_queue (delivery_id, event_id, webhook_id, due_at, lease, attempt)
       VALUES ${part.map(() => '(?, ?, ?, ?, ?, ?)').join(', ')}`,
      part.flatMap(({ id, event, webhookId }) => [
        id,
        event.id,
        webhookId,
        lease?.end ?? now,
        lease?.id ?? null,
        lease ? 1 : 0,
      ]),
    )
  }
  return added.map(delivery => delivery.id)
}

/** Cancels those of these deliveries that are pending. */
export const cancel = async (trx: Sql, ids: string[], now: number): Promise<void> => {
  if (ids.length === 0) return
  await run(trx, `${CANCEL} WHERE id IN (${marks(ids)}) AND status = 'pending'`, [now, ...ids])
  await run(trx, `DELETE FROM delivery_queue WHERE delivery_id IN (${marks(ids)})`, ids)
}

/** Cancels all that is pending for a webhook. */
export const cancelOfWebhook = async (trx: Sql, webhookId: string, now: number): Promise<void> => {
  await run(trx, `${CANCEL} WHERE webhook_id = ? AND status = 'pending'`, [now, webhookId])
  await run(trx, 'DELETE FROM delivery_queue WHERE webhook_id = ?', [webhookId])
}

const CANCEL = "UPDATE deliveries SET status = 'cancelled', next_attempt_at = NULL, finished_at = ?"

/** Cancels what is pending for a webhook of events that the caller does not see. */
export const cancelUnseen = async ({ trx, token, now }: Change, webhookId: string): Promise<void> => {
  if (token.seesAllOrganisations) return
  const unseen: string[] = await trx('deliveries')
    .where({ webhook_id: webhookId, status: 'pending' })
    .whereNotIn('event_id', query => {
      query.select('events.id').from('events').modify(visibleEvents(token))
    })
    .pluck('id')
  for (let from = 0; from < unseen.length; from += ROWS_A_STATEMENT) {
    await cancel(trx, unseen.slice(from, from + ROWS_A_STATEMENT), now)
  }
}
