import { v7 as uuid } from 'uuid'
import type { EventType } from '../../shared/vocabulary.ts'
import { marks, run, type Sql } from '../database/connect.ts'
import { STATEMENT_LIMITS } from '../database/dialect.ts'
import type { Change } from './change.ts'
import { events } from './resources.ts'
import { visibleTo } from './visibility.ts'

// A delivery is `pending` exactly while it has a row in `delivery_queue`. Both change in one transaction, and nowhere
// but here and in the settle (`delivery/queue.ts`), which records what attempts have come to.

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
      query.select('events.id').from('events').modify(visibleTo(token)(events))
    })
    .pluck('id')
  for (let from = 0; from < unseen.length; from += STATEMENT_LIMITS.keys) {
    await cancel(trx, unseen.slice(from, from + STATEMENT_LIMITS.keys), now)
  }
}
