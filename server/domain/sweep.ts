import { setTimeout as sleep } from 'node:timers/promises'
import type { WebhookTransport } from '../../shared/vocabulary.ts'
import type { Clock } from '../clock.ts'
import { type Database, marks, rows, run, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { cancel, type OwedRow } from './deliveries.ts'
import { NEVER } from './lines.ts'
import { MAY_HAVE } from './matching.ts'
import { scaleOf } from './pull-time.ts'
import { isOnDemand } from './sight.ts'

// A webhook's epoch increases with each change that ends its pending deliveries. It is one row, and claims skip queue
// rows of an older epoch. The transaction of the change sweeps a few such rows; any process sweeps the others in
// transactions of their own (`delivery/sweeper.ts`).

/** Rows of one sweep: a transaction of some ten milliseconds, in which an embedded engine holds up the process. */
const SWEEP = { server: 500, embedded: 100 }
const LONGEST_REST_MS = 100

/** A webhook as its sweep needs it. */
export type Swept = { id: string; epoch: number; ended_epoch: number; transport: WebhookTransport }

/** A queue row of a past epoch. */
type PastRow = OwedRow & { event_id: string; epoch: number; due_at: number }

/**
 * Cancels some deliveries of past epochs, or moves them to the present one, after a change of a webhook in this
 * transaction; marks the rest to be swept later.
 */
export const sweepAfterChange = async (trx: Sql, webhookId: string, now: number): Promise<void> => {
  const [webhook] = await rows<Swept>(trx, 'SELECT id, epoch, ended_epoch, transport FROM webhooks WHERE id = ?', [
    webhookId,
  ])
  await sweepSome(trx, webhook!, now)
  const isLeft = await hasPast(trx, webhook!)
  await run(trx, 'UPDATE webhooks SET sweeping = ? WHERE id = ?', [isLeft ? 1 : 0, webhookId])
}

/** Sweeps at most a few hundred deliveries of past epochs, skipping locked rows; returns the number swept. */
const sweepSome = async (trx: Sql, webhook: Swept, now: number): Promise<number> => {
  const past = await rows<PastRow>(
    trx,
    `SELECT delivery_id, event_id, lease, attempt, epoch, due_at, line, taken FROM delivery_queue
     ${dialectOf(trx).useIndex('delivery_queue_by_webhook')}
     WHERE webhook_id = ? AND epoch < ? LIMIT ?${dialectOf(trx).forUpdateSkipLocked}`,
    [webhook.id, webhook.epoch, dialectOf(trx).isEmbedded ? SWEEP.embedded : SWEEP.server],
  )
  await sweepRows(trx, webhook, past, now)
  return past.length
}

/**
 * Sweeps rows of past epochs that this transaction has locked: cancels those that have ended and those that the webhook
 * may no longer receive; moves the others to its present URL.
 */
export const sweepRows = async (trx: Sql, webhook: Swept, past: PastRow[], now: number): Promise<void> => {
  const { id, ended_epoch } = webhook
  const open = past.filter(row => row.epoch >= ended_epoch)
  const due = await dueTo(
    trx,
    id,
    open.map(row => row.event_id),
  )
  const moved = open.filter(row => due.has(row.event_id))
  await moveOn(trx, moved, webhook, now)
  const goOn = new Set(moved.map(row => row.delivery_id))
  await cancel(
    trx,
    past.filter(row => !goOn.has(row.delivery_id)),
    now,
  )
}

/**
 * Their waits belonged to the old URL: a pause that it asked for, or a retry. They still wait for their turn. If the
 * transport has changed, they are due on its scale; a lease that a client holds ends as it would have.
 */
const moveOn = async (trx: Sql, moved: PastRow[], { epoch, transport }: Swept, now: number): Promise<void> => {
  if (moved.length === 0) return
  const ids = moved.map(row => row.delivery_id)
  await run(trx, `UPDATE delivery_queue SET epoch = ? WHERE delivery_id IN (${marks(ids)})`, [epoch, ...ids])
  const waiting = moved
    .filter(row => row.lease === null && (row.due_at > now || transport === 'pull') && row.due_at < NEVER)
    .map(row => row.delivery_id)
  if (waiting.length === 0) return
  await run(trx, `UPDATE delivery_queue SET due_at = ? WHERE delivery_id IN (${marks(waiting)}) AND lease IS NULL`, [
    scaleOf(transport) + now,
    ...waiting,
  ])
  await run(trx, `UPDATE deliveries SET next_attempt_at = ? WHERE id IN (${marks(waiting)})`, [now, ...waiting])
}

/** Whether deliveries of a past epoch are in the queue. */
const hasPast = async (trx: Sql, { id, epoch }: Swept): Promise<boolean> => {
  const found = await rows(
    trx,
    `SELECT 1 FROM delivery_queue ${dialectOf(trx).useIndex('delivery_queue_by_webhook')}
     WHERE webhook_id = ? AND epoch < ? LIMIT 1`,
    [id, epoch],
  )
  return found.length > 0
}

/** Those of some events that a webhook may receive now, by its filters and its token's sight. */
const dueTo = async (trx: Sql, webhookId: string, eventIds: string[]): Promise<Set<string>> => {
  if (eventIds.length === 0) return new Set()
  const found = await rows<{ id: string }>(
    trx,
    `SELECT e.id FROM events e
     JOIN webhooks w ON w.id = ?
     JOIN access_tokens t ON t.id = w.access_token_id
     WHERE e.id IN (${marks(eventIds)}) AND (${isOnDemand('e')} OR ${MAY_HAVE})`,
    [webhookId, ...eventIds],
  )
  return new Set(found.map(row => row.id))
}

/** Sweeps a webhook until nothing is left, or until `deadline` by `performance.now()`; returns whether nothing is. */
export const sweepUntil = async (
  database: Database,
  clock: Clock,
  webhookId: string,
  deadline: number,
): Promise<boolean> => {
  while (performance.now() < deadline) {
    const [webhook] = await rows<Swept & { sweeping: number }>(
      database.knex,
      'SELECT id, epoch, ended_epoch, transport, sweeping FROM webhooks WHERE id = ?',
      [webhookId],
    )
    if (!webhook?.sweeping || !(await sweepOnce(database, clock, webhook))) return true
  }
  return false
}

/** Sweeps a batch in a transaction of its own; returns whether there may be more. */
export const sweepOnce = async (database: Database, clock: Clock, webhook: Swept): Promise<boolean> => {
  const startedAt = performance.now()
  const swept = await database.transaction(trx => sweepSome(trx, webhook, clock.now()))
  if (swept > 0) {
    // Leaves the database to others for as long as this used it.
    await sleep(Math.min(LONGEST_REST_MS, performance.now() - startedAt))
    return true
  }
  if (await hasPast(database.knex, webhook)) {
    await sleep(LONGEST_REST_MS)
    return true
  }
  // Rows of an epoch are committed before the epoch ends, so no more can come.
  await run(database.knex, 'UPDATE webhooks SET sweeping = 0 WHERE id = ? AND epoch = ?', [webhook.id, webhook.epoch])
  return false
}
