import { timeOfId } from '../../shared/time.ts'
import type { EventType } from '../../shared/vocabulary.ts'
import { marks, rows, run, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { newId } from '../ids.ts'

// A delivery is `pending` exactly while it has a row in `delivery_queue`. Both change in one transaction, and nowhere
// but here and in the settle (`delivery/queue.ts`), which records what attempts have come to.

const ROWS_A_STATEMENT = 500

/** A webhook that may be sent to, as read under a lock that keeps it so until the transaction ends. */
export type ActiveWebhook = { id: string; epoch: number }

/**
 * Writes pending deliveries, due now, and returns their ids in the order of `owed`.
 *
 * @param lease if given, the first attempt is claimed by the caller from the start, until `end`
 */
export const enqueue = async (
  trx: Sql,
  owed: { event: { id: string; type: EventType }; webhook: ActiveWebhook }[],
  now: number,
  lease?: { id: string; end: number },
): Promise<string[]> => {
  const added = owed.map(one => ({ id: newId(now), ...one }))
  for (let from = 0; from < added.length; from += ROWS_A_STATEMENT) {
    const part = added.slice(from, from + ROWS_A_STATEMENT)
    await run(
      trx,
      `INSERT INTO deliveries (id, event_id, event_type, webhook_id, status, next_attempt_at, created_at)
       VALUES ${part.map(() => "(?, ?, ?, ?, 'pending', ?, ?)").join(', ')}`,
      part.flatMap(({ id, event, webhook }) => [id, event.id, event.type, webhook.id, now, now]),
    )
    await run(
      trx,
      `INSERT INTO delivery_queue (delivery_id, event_id, webhook_id, epoch, due_at, lease, attempt)
       VALUES ${part.map(() => '(?, ?, ?, ?, ?, ?, ?)').join(', ')}`,
      part.flatMap(({ id, event, webhook }) => [
        id,
        event.id,
        webhook.id,
        webhook.epoch,
        lease?.end ?? now,
        lease?.id ?? null,
        lease ? 1 : 0,
      ]),
    )
  }
  return added.map(delivery => delivery.id)
}

/** A row of the queue, as far as its end is concerned. */
export type OwedRow = { delivery_id: string; lease: string | null; attempt: number }

/** A row of the queue of a past epoch. */
type PastRow = OwedRow & { event_id: string; epoch: number }

/** Cancels deliveries whose rows of the queue this transaction has locked. */
export const cancel = async (trx: Sql, owed: OwedRow[], now: number): Promise<void> => {
  if (owed.length === 0) return
  const ids = owed.map(row => row.delivery_id)
  await logLost(trx, owed)
  await run(
    trx,
    `UPDATE deliveries SET status = 'cancelled', next_attempt_at = NULL, finished_at = ?,
       attempt_count = COALESCE(
         (SELECT q.attempt FROM delivery_queue q WHERE q.delivery_id = deliveries.id), attempt_count)
     WHERE id IN (${marks(ids)}) AND status = 'pending'`,
    [now, ...ids],
  )
  await run(trx, `DELETE FROM delivery_queue WHERE delivery_id IN (${marks(ids)})`, ids)
}

/** Logs the attempts of those that had these rows leased before and never said what came of it. */
export const logLost = async (trx: Sql, owed: OwedRow[]): Promise<void> => {
  const lost = owed.filter(row => row.lease !== null)
  if (lost.length === 0) return
  // One that has recorded its attempt in this very moment is believed.
  const recorded = dialectOf(trx).onDuplicateUpdate(['delivery_id', 'number'], ['number'])
  await run(
    trx,
    `INSERT INTO attempts (delivery_id, number, started_at, failure, failure_detail)
     VALUES ${lost.map(() => "(?, ?, ?, 'lost', ?)").join(', ')}${recorded}`,
    lost.flatMap(row => [row.delivery_id, row.attempt, timeOfId(row.lease!), LOST]),
  )
}

const LOST = 'The process that made this attempt ended before it recorded an answer. The receiver may have had it.'

// A webhook's epoch grows with each change that ends what was pending for it, and one row says so: claims pass over
// what has an older one. A few such rows are swept in the transaction of the change, the others in transactions of
// their own, by any process (`delivery/sweeper.ts`), until none is left.

/** Rows of one sweep: a transaction of some ten milliseconds. */
const SWEEP = 500

/** A webhook as its sweep needs it. */
export type Swept = { id: string; epoch: number; ended_epoch: number }

/**
 * Takes some deliveries of past epochs out of the queue, or on to the present one, after a change of a webhook in this
 * transaction; what is left is marked to be swept later.
 */
export const sweepAfterChange = async (trx: Sql, webhookId: string, now: number): Promise<void> => {
  const [webhook] = await rows<Swept>(trx, 'SELECT id, epoch, ended_epoch FROM webhooks WHERE id = ?', [webhookId])
  await sweepSome(trx, webhook!, now)
  const isLeft = await hasPast(trx, webhook!)
  await run(trx, 'UPDATE webhooks SET sweeping = ? WHERE id = ?', [isLeft ? 1 : 0, webhookId])
}

/** Sweeps at most a few hundred deliveries of past epochs, passing over rows that are locked; returns how many. */
export const sweepSome = async (trx: Sql, webhook: Swept, now: number): Promise<number> => {
  const past = await rows<PastRow>(
    trx,
    `SELECT delivery_id, event_id, lease, attempt, epoch FROM delivery_queue
     ${dialectOf(trx).useIndex('delivery_queue_by_webhook')}
     WHERE webhook_id = ? AND epoch < ? LIMIT ?${dialectOf(trx).forUpdateSkipLocked}`,
    [webhook.id, webhook.epoch, SWEEP],
  )
  await sweepRows(trx, webhook, past, now)
  return past.length
}

/**
 * Sweeps rows of past epochs that this transaction has locked: cancels those that have ended, and those that the
 * webhook is not to have any more; the others go to its present url.
 */
export const sweepRows = async (
  trx: Sql,
  { id, epoch, ended_epoch }: Swept,
  past: PastRow[],
  now: number,
): Promise<void> => {
  const open = past.filter(row => row.epoch >= ended_epoch)
  const due = await dueTo(
    trx,
    id,
    open.map(row => row.event_id),
  )
  const moved = open.filter(row => due.has(row.event_id)).map(row => row.delivery_id)
  if (moved.length > 0) {
    await run(trx, `UPDATE delivery_queue SET epoch = ? WHERE delivery_id IN (${marks(moved)})`, [epoch, ...moved])
  }
  const goOn = new Set(moved)
  await cancel(
    trx,
    past.filter(row => !goOn.has(row.delivery_id)),
    now,
  )
}

/** Whether deliveries of a past epoch are in the queue. */
export const hasPast = async (trx: Sql, { id, epoch }: Swept): Promise<boolean> => {
  const found = await rows(
    trx,
    `SELECT 1 FROM delivery_queue ${dialectOf(trx).useIndex('delivery_queue_by_webhook')}
     WHERE webhook_id = ? AND epoch < ? LIMIT 1`,
    [id, epoch],
  )
  return found.length > 0
}

/** Those of some events that a webhook may receive as it is now: by what it names, and what its token sees. */
const dueTo = async (trx: Sql, webhookId: string, eventIds: string[]): Promise<Set<string>> => {
  if (eventIds.length === 0) return new Set()
  const found = await rows<{ id: string }>(
    trx,
    `SELECT e.id FROM events e
     JOIN webhooks w ON w.id = ?
     JOIN access_tokens t ON t.id = w.access_token_id
     WHERE e.id IN (${marks(eventIds)}) AND (e.type = 'ping' OR (
       (w.all_organisations_and_projects = 1
         OR EXISTS (SELECT 1 FROM webhook_organisations wo WHERE wo.webhook_id = w.id AND (
           e.all_organisations = 1 OR wo.organisation_id = e.organisation_id
           OR EXISTS (SELECT 1 FROM event_organisations eo
             WHERE eo.event_id = e.id AND eo.organisation_id = wo.organisation_id)))
         OR EXISTS (SELECT 1 FROM webhook_projects wp WHERE wp.webhook_id = w.id AND wp.project_id = e.project_id))
       AND (t.sees_all_organisations = 1
         OR EXISTS (SELECT 1 FROM access_token_organisations s WHERE s.access_token_id = t.id AND (
           e.all_organisations = 1 OR s.organisation_id = e.organisation_id
           OR EXISTS (SELECT 1 FROM event_organisations eo
             WHERE eo.event_id = e.id AND eo.organisation_id = s.organisation_id))))))`,
    [webhookId, ...eventIds],
  )
  return new Set(found.map(row => row.id))
}
