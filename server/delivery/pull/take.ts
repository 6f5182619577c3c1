import type { WebhookTransport } from '../../../shared/vocabulary.ts'
import { marks, rows, run, type Sql } from '../../database/connect.ts'
import { dialectOf } from '../../database/dialect.ts'
import type { Transaction } from '../../database/transaction.ts'
import type { AccessToken } from '../../domain/permissions.ts'
import { PULL_TIME, scaleOf, TAKEN_TIME } from '../../domain/pull-time.ts'
import { deliveries, type WebhookRow } from '../../domain/resources.ts'
import { seesAnyway, visibleTo } from '../../domain/visibility.ts'
import { claimOf, inSight, type Job, jobsOf, type QueueRow, sweepPast, takeLeases } from '../queue.ts'

/**
 * Takes deliveries of a webhook that are due, for a client: claims them like the loop does (`queue.ts`), by webhook,
 * and writes the end of the lease on the scale of taken deliveries. New ones come before recovered ones.
 *
 * @param given.webhook locked by this transaction, active, with `transport: pull`
 */
export const take = async (
  trx: Transaction,
  given: {
    webhook: WebhookRow
    token: AccessToken
    /** Who takes them: `takerJson`. */
    taker: string
    lease: string
    limit: number
    now: number
    leaseEnd: number
  },
): Promise<Job[]> => {
  const { webhook, token, taker, lease, limit, now, leaseEnd } = given
  if (webhook.held_until !== null && webhook.held_until > PULL_TIME + now) return []
  const due = await lockDue(trx, webhook, { now, limit })
  if (due.length === 0) return []
  const claims = due.map(row => claimOf(row, lease))
  const jobs = await inSight(trx, await jobsOf(trx, claims))
  const seen = seesAnyway(token, webhook) ? jobs : await seenBy(trx, token, jobs)
  const read = new Map(due.map(row => [row.delivery_id, row]))
  const times = { now: PULL_TIME + now, leaseEnd: TAKEN_TIME + leaseEnd }
  const taken = await takeLeases(trx, seen, read, { ...times, taken: taker })
  await sweepPast(trx, due, jobs, now)
  return taken
}

const lockDue = (
  trx: Transaction,
  { id, epoch }: WebhookRow,
  { now, limit }: { now: number; limit: number },
): Promise<QueueRow[]> =>
  rows<QueueRow>(
    trx,
    `SELECT * FROM delivery_queue ${dialectOf(trx).useIndex('delivery_queue_by_webhook')}
     WHERE webhook_id = ? AND epoch = ? AND recovered IN (0, 1) AND due_at >= ? AND due_at <= ?
     ORDER BY recovered, due_at LIMIT ?${dialectOf(trx).forUpdateSkipLocked}`,
    [id, epoch, PULL_TIME, PULL_TIME + now, limit],
  )

/** A client whose token sees less than the webhook's gets only what it sees itself. */
const seenBy = async (sql: Sql, token: AccessToken, jobs: Job[]): Promise<Job[]> => {
  if (jobs.length === 0) return jobs
  const found: { id: string }[] = await sql('deliveries')
    .select('deliveries.id')
    .whereIn(
      'deliveries.id',
      jobs.map(job => job.deliveryId),
    )
    .modify(visibleTo(token)(deliveries))
  const ids = new Set(found.map(({ id }) => id))
  return jobs.filter(job => ids.has(job.deliveryId))
}

/** The queue rows that clients have taken and not answered in time. */
export const lapsedRows = (sql: Sql, now: number, limit: number): Promise<QueueRow[]> =>
  rows<QueueRow>(
    sql,
    `SELECT * FROM delivery_queue ${dialectOf(sql).useIndex('delivery_queue_by_due_time')}
     WHERE due_at >= ? AND due_at <= ? ORDER BY due_at LIMIT ?`,
    [TAKEN_TIME, TAKEN_TIME + now, limit],
  )

/**
 * Makes deliveries of a webhook due again as if they had never been taken: their client did not get them. If the
 * webhook has another transport by now, they are due on its scale.
 */
export const giveBackTaken = async (
  trx: Transaction,
  webhookId: string,
  jobs: Pick<Job, 'deliveryId' | 'lease'>[],
  now: number,
): Promise<void> => {
  if (jobs.length === 0) return
  const deliveryIds = jobs.map(({ deliveryId }) => deliveryId)
  const leases = [...new Set(jobs.map(({ lease }) => lease))]
  // A change of the webhook that comes later finds these rows free, and moves them.
  const own = await rows<{ delivery_id: string }>(
    trx,
    `SELECT delivery_id FROM delivery_queue WHERE delivery_id IN (${marks(deliveryIds)}) AND lease IN (${marks(leases)})
     ORDER BY delivery_id${dialectOf(trx).forUpdate}`,
    [...deliveryIds, ...leases],
  )
  if (own.length === 0) return
  const [webhook] = await rows<Pick<WebhookRow, 'transport'>>(trx, 'SELECT transport FROM webhooks WHERE id = ?', [
    webhookId,
  ])
  await run(
    trx,
    `UPDATE delivery_queue SET lease = NULL, taken = NULL, attempt = attempt - 1, due_at = ?
     WHERE delivery_id IN (${marks(own)}) AND lease IN (${marks(leases)})`,
    [scaleOf(webhook?.transport as WebhookTransport) + now, ...own.map(row => row.delivery_id), ...leases],
  )
}
