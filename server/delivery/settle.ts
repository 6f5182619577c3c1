import type { Knex } from 'knex'
import type { WebhookTransport } from '../../shared/vocabulary.ts'
import { type Database, inOneTrip, marks, Overtaken, rows, run } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { lockFree } from '../database/lock-free.ts'
import type { Transaction } from '../database/transaction.ts'
import { FINISHED_AT, logLost } from '../domain/deliveries.ts'
import { markHours } from '../domain/delivery-hours.ts'
import { inLockedLines, leaveLines, waitForLines } from '../domain/lines.ts'
import { type Dropped, tellOfDropped } from '../domain/notices.ts'
import { scaleOf } from '../domain/pull-time.ts'
import type { Outcome } from './outcome.ts'
import { caseOf, type Job, type QueueRow, type Settlement } from './queue.ts'

/** The lock wait is short: on a conflict the recorder tries the settlements one by one. */
const AGAIN = { againForMs: 500 }
const ONE_TRY = { againForMs: 0 }

/**
 * A delivery waits this long for its webhook to become inactive, which cancels it. If that does not happen, the
 * responsible process has ended, and the delivery is sent again.
 */
const UNTIL_INACTIVE_MS = 5_000

/**
 * Records attempts and their outcomes: log, deliveries and queue in one transaction. Their effect on webhooks is
 * written separately (`webhook-effects.ts`), so nothing here waits for a webhook's row.
 *
 * @param now called when the deliveries are locked
 * @param options.waitsForLines it queues up for lines that others have locked, before it locks anything else
 * @returns the settlements whose queue row or line another transaction has locked; nothing of them was recorded
 */
export const settle = async (
  database: Database,
  settlements: Settlement[],
  now: () => number,
  { waitsForLines = false }: { waitsForLines?: boolean } = {},
): Promise<Settlement[]> => {
  const again = waitsForLines ? ONE_TRY : AGAIN
  return database.transaction(async trx => {
    if (waitsForLines) await waitForLines(trx, idsOf(settlements))
    return settleIn(trx, settlements, now)
  }, again)
}

/**
 * As `settle`, in the caller's transaction.
 *
 * @param rowsLocked the queue rows of the settlements, if the transaction has locked them already
 */
export const settleIn = async (
  trx: Transaction,
  settlements: Settlement[],
  now: () => number,
  rowsLocked?: QueueRow[],
): Promise<Settlement[]> => {
  // Every process locks in the same order, so that two settles do not deadlock.
  const sorted = settlements.toSorted((a, b) => (a.job.deliveryId < b.job.deliveryId ? -1 : 1))
  const { locked, busy } = rowsLocked ? { locked: rowsLocked, busy: new Set<string>() } : await lockRows(trx, sorted)
  const free = sorted.filter(({ job }) => !busy.has(job.deliveryId))
  if (free.length === 0) return sorted
  const queued = new Map(locked.map(row => [row.delivery_id, row]))
  const isOwn = ({ job }: Settlement): boolean => queued.get(job.deliveryId)?.lease === job.lease
  const allOwn = await asOfNow(trx, free.filter(isOwn))
  const allLate = await stillThere(
    trx,
    free.filter(settlement => !isOwn(settlement) && !settlement.isLapse),
  )
  const ending = [...allOwn.filter(isEnd), ...allLate.filter(isAcknowledged)]
  const ended = await lockLines(trx, ending, queued, busy)
  const isFree = ({ job }: Settlement): boolean => !busy.has(job.deliveryId)
  const [own, late] = [allOwn.filter(isFree), allLate.filter(isFree)] as const
  const time = now()
  const attempts = free.filter(settlement => isFree(settlement) && (isOwn(settlement) || late.includes(settlement)))
  // A delivery's end looks at its attempts.
  await inOneTrip([logAttempts(trx, attempts), retry(trx, own), finish(trx, own, time)])
  await tellOfDropped(trx, own.flatMap(droppedOf), time)
  const takenOver = new Set(late.filter(isAcknowledged).map(({ job }) => job.deliveryId))
  await logLost(
    trx,
    locked.filter(row => takenOver.has(row.delivery_id)),
  )
  await recordLate(trx, late, time)
  await markHours(trx, idsOf([...own, ...late].filter(isEnd)), time)
  await leaveLines(trx, ended, time)
  return sorted.filter(({ job }) => busy.has(job.deliveryId))
}

const idsOf = (settlements: Settlement[]): string[] => settlements.map(({ job }) => job.deliveryId)

/** Locks the free queue rows, and returns them with the deliveries whose row another transaction has locked. */
const lockRows = async (
  trx: Transaction,
  settlements: Settlement[],
): Promise<{ locked: QueueRow[]; busy: Set<string> }> => {
  const ids = idsOf(settlements)
  const select = (keys: string) => `SELECT * FROM delivery_queue WHERE delivery_id IN (${keys}) ORDER BY delivery_id`
  const locked = await lockFree<QueueRow>(trx, ids, select)
  const found = new Set(locked.map(row => row.delivery_id))
  const missing = ids.filter(id => !found.has(id))
  if (missing.length === 0) return { locked, busy: new Set() }
  const busy = await rows<{ delivery_id: string }>(
    trx,
    `SELECT delivery_id FROM delivery_queue WHERE delivery_id IN (${marks(missing)})`,
    missing,
  )
  return { locked, busy: new Set(busy.map(row => row.delivery_id)) }
}

/**
 * Locks the lines of deliveries that end. Deliveries whose line another transaction has locked join `busy`.
 *
 * @returns the queue rows of the others
 */
const lockLines = async (
  trx: Transaction,
  ending: Settlement[],
  queued: ReadonlyMap<string, QueueRow>,
  busy: Set<string>,
): Promise<QueueRow[]> => {
  const owed = ending.flatMap(({ job }) => queued.get(job.deliveryId) ?? [])
  const ended = await inLockedLines(trx, owed)
  const inHand = new Set(ended)
  for (const row of owed) if (!inHand.has(row)) busy.add(row.delivery_id)
  return ended
}

/** The settlements whose deliveries still exist; they cannot be purged before this commits. */
const stillThere = async (trx: Transaction, late: Settlement[]): Promise<Settlement[]> => {
  if (late.length === 0) return []
  const ids = late.map(({ job }) => job.deliveryId)
  const found = await rows<{ id: string }>(
    trx,
    `SELECT id FROM deliveries WHERE id IN (${marks(ids)}) ORDER BY id${dialectOf(trx).forUpdate}`,
    ids,
  )
  const there = new Set(found.map(({ id }) => id))
  return late.filter(({ job }) => there.has(job.deliveryId))
}

/**
 * A 429 of an old URL does not apply to the new one: the delivery goes there now. Nor is a delivery cancelled before
 * its webhook is inactive, since the webhook may have another URL by then.
 */
const asOfNow = async (trx: Transaction, own: Settlement[]): Promise<Settlement[]> => {
  const asked = own.filter(({ outcome }) => 'deactivateWebhook' in outcome || 'holdWebhookMs' in outcome)
  if (asked.length === 0) return own
  const ids = [...new Set(asked.map(({ job }) => job.webhookId))]
  const present = new Map(
    (
      await rows<{ id: string; epoch: number }>(
        trx,
        `SELECT id, epoch FROM webhooks WHERE id IN (${marks(ids)}) AND status = 'active'`,
        ids,
      )
    ).map(({ id, epoch }) => [id, epoch]),
  )
  return own.map(settlement => {
    const { webhookId, epoch, failureCount, throttledSinceMs } = settlement.job
    const now = present.get(webhookId)
    if (!asked.includes(settlement) || now === undefined) return settlement
    const isPast = now > epoch
    if (!isPast && settlement.outcome.status === 'pending') return settlement
    const retryInMs = isPast ? 0 : UNTIL_INACTIVE_MS
    return { ...settlement, outcome: { status: 'pending', retryInMs, failureCount, throttledSinceMs } }
  })
}

const ATTEMPT_COLUMNS = [
  'delivery_id',
  'number',
  'started_at',
  'duration_ms',
  'status_code',
  'failure',
  'failure_detail',
  'response',
  'retry_after',
  'evidence',
]

const logAttempts = async (trx: Transaction, settlements: Settlement[]): Promise<void> => {
  if (settlements.length === 0) return
  // A process that was frozen past its lease finds its attempt logged as lost, and replaces that by the answer.
  const truth = dialectOf(trx).onDuplicateUpdate(['delivery_id', 'number'], ATTEMPT_COLUMNS.slice(2))
  await run(
    trx,
    `INSERT INTO attempts (${ATTEMPT_COLUMNS.join(', ')}) ` +
      `VALUES ${settlements.map(() => `(${marks(ATTEMPT_COLUMNS)})`).join(', ')}${truth}`,
    settlements.flatMap(({ job, startedAt, durationMs, result, evidence, outcome }) => [
      job.deliveryId,
      job.attempt,
      startedAt,
      durationMs,
      result.kind === 'response' ? result.statusCode : null,
      result.kind === 'failure' ? result.reason : null,
      result.kind === 'failure' ? result.detail : null,
      result.kind === 'response' ? result.body : null,
      outcome.status === 'pending' && outcome.holdWebhookMs !== undefined
        ? endOf({ startedAt, durationMs }) + outcome.holdWebhookMs
        : null,
      evidence === undefined ? null : dialectOf(trx).boundJson(evidence),
    ]) as Knex.RawBinding[],
  )
}

/** The end of an attempt, from which waits are counted. */
export const endOf = ({ startedAt, durationMs }: { startedAt: number; durationMs: number }): number =>
  startedAt + durationMs

const retry = async (trx: Transaction, own: Settlement[]): Promise<void> => {
  const again = own.flatMap(({ outcome, ...settlement }) =>
    outcome.status === 'pending' ? [{ ...settlement, outcome }] : [],
  )
  if (again.length === 0) return
  // Only rows under the lease of this attempt: otherwise the outcome no longer applies.
  const leases = leasesOf(again)
  const freed = await run(
    trx,
    `UPDATE delivery_queue SET lease = NULL, taken = NULL
     WHERE delivery_id IN (${marks(again)}) AND lease IN (${marks(leases)})`,
    [...again.map(({ job }) => job.deliveryId), ...leases],
  )
  if (freed < again.length) throw new Overtaken()
  const scales = await scalesOf(trx, again)
  const columns = ['event_id', 'webhook_id', 'due_at', 'attempt', 'failure_count', 'throttled_since']
  await run(
    trx,
    `INSERT INTO delivery_queue (delivery_id, ${columns.join(', ')})
     VALUES ${again.map(() => '(?, ?, ?, ?, ?, ?, ?)').join(', ')}
     ${dialectOf(trx).onDuplicateUpdate(['delivery_id'], columns)}`,
    again.flatMap(({ job, outcome, ...settlement }) => [
      job.deliveryId,
      job.eventId,
      job.webhookId,
      (scales.get(job.webhookId) ?? 0) + endOf(settlement) + outcome.retryInMs,
      job.attempt,
      outcome.failureCount,
      outcome.throttledSinceMs,
    ]) as Knex.RawBinding[],
  )
  const next = caseOf(
    'id',
    again.map(({ job, outcome, ...settlement }) => [job.deliveryId, endOf(settlement) + outcome.retryInMs]),
  )
  const counts = caseOf(
    'id',
    again.map(({ job }) => [job.deliveryId, job.attempt]),
  )
  await run(
    trx,
    `UPDATE deliveries SET next_attempt_at = ${next.sql}, attempt_count = ${counts.sql} WHERE id IN (${marks(again)})`,
    [...next.bindings, ...counts.bindings, ...again.map(({ job }) => job.deliveryId)],
  )
}

/**
 * The scales of due times, by webhook, for deliveries that clients took. A webhook that has another transport meanwhile
 * has moved its rows, or does so when it finds them free.
 */
const scalesOf = async (trx: Transaction, again: { job: Job }[]): Promise<Map<string, number>> => {
  const taken = again.filter(({ job }) => job.webhook.transport === 'pull')
  if (taken.length === 0) return new Map()
  const ids = [...new Set(taken.map(({ job }) => job.webhookId))]
  const found = await rows<{ id: string; transport: WebhookTransport }>(
    trx,
    `SELECT id, transport FROM webhooks WHERE id IN (${marks(ids)})`,
    ids,
  )
  return new Map(found.map(({ id, transport }) => [id, scaleOf(transport)]))
}

const finish = async (trx: Transaction, own: Settlement[], now: number): Promise<void> => {
  const finished = own.filter(isEnd)
  if (finished.length === 0) return
  const alike = Map.groupBy(finished, ({ job, outcome }) => `${outcome.status} ${job.attempt} ${wasHandled(outcome)}`)
  const update = (group: Settlement[]): Promise<number> => {
    const { job, outcome } = group[0]!
    return run(
      trx,
      `UPDATE deliveries SET status = ?, next_attempt_at = NULL, finished_at = ${FINISHED_AT}, attempt_count = ?,
       handled_before = ${wasHandled(outcome) ? LEFT_OPEN : '0'}
       WHERE id IN (${marks(group)}) AND status = 'pending'`,
      [outcome.status, now, now, job.attempt, ...group.map(({ job }) => job.deliveryId)],
    )
  }
  const [ended] = await inOneTrip([dequeue(trx, finished, leasesOf(finished)), ...[...alike.values()].map(update)])
  if (ended < finished.length) throw new Overtaken()
}

const droppedOf = ({ job, outcome }: Settlement): Dropped[] =>
  outcome.status === 'dropped' ? [{ deliveryId: job.deliveryId, attempts: job.attempt, reason: outcome.reason }] : []

const wasHandled = (outcome: Outcome): boolean => outcome.status === 'rejected' && outcome.handledBefore === true

/**
 * Whether an earlier attempt may have been handled: it had no answer, or the answer of a gateway or of a receiver out
 * of time. A receiver that answered 500 or 429 has not handled the event; if it calls the retry a replay, it has lost
 * the event, and a recovery has to send it again.
 */
const LEFT_OPEN = `CASE WHEN EXISTS (
  SELECT 1 FROM attempts WHERE attempts.delivery_id = deliveries.id
  AND (attempts.status_code IS NULL OR attempts.status_code > 500)) THEN 1 ELSE 0 END`

/** Deletes deliveries from the queue, under any lease or only under one of these; returns the number deleted. */
const dequeue = (trx: Transaction, finished: Settlement[], leases?: string[]): Promise<number> => {
  const ids = finished.map(({ job }) => job.deliveryId)
  const own = leases ? ` AND lease IN (${marks(leases)})` : ''
  return run(trx, `DELETE FROM delivery_queue WHERE delivery_id IN (${marks(ids)})${own}`, [...ids, ...(leases ?? [])])
}

const leasesOf = (settlements: { job: Job }[]): string[] => [...new Set(settlements.map(({ job }) => job.lease))]

const isEnd = ({ outcome }: Settlement): boolean => outcome.status !== 'pending'

const isAcknowledged = ({ outcome }: Settlement): boolean => outcome.status === 'delivered'

/** Attempts whose lease had ended. */
const recordLate = async (trx: Transaction, late: Settlement[], now: number): Promise<void> => {
  for (const [attempt, group] of Map.groupBy(late, ({ job }) => job.attempt)) {
    await run(trx, `UPDATE deliveries SET attempt_count = ? WHERE id IN (${marks(group)}) AND attempt_count < ?`, [
      attempt,
      ...group.map(({ job }) => job.deliveryId),
      attempt,
    ])
  }
  const acknowledged = late.filter(isAcknowledged)
  if (acknowledged.length === 0) return
  await run(
    trx,
    `UPDATE deliveries SET status = 'delivered', next_attempt_at = NULL, finished_at = ${FINISHED_AT}
     WHERE id IN (${marks(acknowledged)}) AND status IN ('pending', 'cancelled', 'rejected', 'dropped')`,
    [now, now, ...acknowledged.map(({ job }) => job.deliveryId)],
  )
  await dequeue(trx, acknowledged)
}
