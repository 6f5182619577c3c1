import type { Knex } from 'knex'
import type { EventType } from '../../shared/events.ts'
import { type Database, marks, rows, run } from '../database/connect.ts'
import type { DeliveryStatus } from '../domain/deliveries.ts'
import { leaveActive, type WebhookStatus } from '../domain/webhooks.ts'
import type { Answer, Outcome } from './outcome.ts'

// The queue of what is owed: one row a pending delivery, apart from the history and gone when the delivery is settled.
//
// Invariants
// 1. A delivery is `pending` exactly while it has a row here. Both change in one transaction.
// 2. A claim takes due rows in the order of their due time, writes its own id into `lease`, and pushes `due_at` forward as
//    the lease's end: a row whose lease has run out is simply due again, for any process. No transaction is open while sending.
// 3. `attempt` grows with each claim, so no two attempts of a delivery have the same number, whoever makes them.
// 4. An outcome counts only while the lease is still the one it was claimed under. The exception is a 2XX: the receiver has
//    acknowledged the event, so the delivery is delivered, whoever holds its row now and even if it was cancelled meanwhile.
// 5. Every attempt is logged, also one that no longer counts; a process that dies leaves a row that the next claim logs as lost.

/** A claimed delivery: what is owed to whom, under which lease. */
export type Claim = {
  deliveryId: string
  webhookId: string
  lease: string
  /** The number of the attempt to be made. */
  attempt: number
  failureCount: number
  throttledSinceMs: number | null
}

/** A claim with all that is needed to send it. */
export type Job = Claim & {
  url: string
  webhookStatus: WebhookStatus
  heldUntil: number | null
  eventType: EventType
  eventTime: number
  /** The payload as JSON text, as it was written. */
  payload: string
}

/** An attempt that was made, and what it means. */
export type Settlement = {
  job: Job
  startedAt: number
  durationMs: number
  answer: Answer
  outcome: Outcome
}

type QueueRow = {
  delivery_id: string
  webhook_id: string
  due_at: number
  lease: string | null
  attempt: number
  failure_count: number
  throttled_since: number | null
}

/** Claims up to `limit` deliveries that are due, for `leaseMs` from now. */
export const claim = async (
  database: Database,
  { lease, now, limit, leaseMs }: { lease: string; now: number; limit: number; leaseMs: number },
): Promise<Job[]> => {
  const claimed = await database.transaction(async trx => {
    // The index on due_at alone serves both the condition and the order, so that only the rows taken are locked.
    const due = await rows<QueueRow>(
      trx,
      `SELECT * FROM delivery_queue WHERE due_at <= ? ORDER BY due_at LIMIT ?${database.dialect.forUpdateSkipLocked}`,
      [now, limit],
    )
    if (due.length === 0) return []
    await take(trx, due, lease, now + leaseMs)
    await logLost(
      trx,
      database,
      due.filter(row => row.lease !== null),
      leaseMs,
    )
    return due.map(row => claimOf(row, lease))
  })
  return jobsOf(database, claimed)
}

const take = async (trx: Knex.Transaction, due: QueueRow[], lease: string, leaseEnd: number): Promise<void> => {
  await run(
    trx,
    `UPDATE delivery_queue SET lease = ?, due_at = ?, attempt = attempt + 1 WHERE delivery_id IN (${marks(due)})`,
    [lease, leaseEnd, ...due.map(row => row.delivery_id)],
  )
}

const claimOf = (row: QueueRow, lease: string): Claim => ({
  deliveryId: row.delivery_id,
  webhookId: row.webhook_id,
  lease,
  attempt: row.attempt + 1,
  failureCount: row.failure_count,
  throttledSinceMs: row.throttled_since,
})

/** Logs the attempts of those that held these rows before and never said what came of it. */
const logLost = async (trx: Knex.Transaction, database: Database, lost: QueueRow[], leaseMs: number): Promise<void> => {
  if (lost.length === 0) return
  // One that has recorded its attempt in this very moment is believed.
  const recorded = database.dialect.onDuplicateUpdate(['delivery_id', 'number'], ['number'])
  await run(
    trx,
    `INSERT INTO attempts (delivery_id, number, started_at, failure, failure_detail)
     VALUES ${lost.map(() => "(?, ?, ?, 'lost', ?)").join(', ')}${recorded}`,
    lost.flatMap(row => [row.delivery_id, row.attempt, row.due_at - leaseMs, LOST]),
  )
}

const LOST = 'The process that made this attempt ended before it recorded an answer. The receiver may have had it.'

/** Claims with all that is needed to send them. */
export const jobsOf = async (database: Database, claims: Claim[]): Promise<Job[]> => {
  if (claims.length === 0) return []
  type Details = {
    id: string
    url: string
    status: WebhookStatus
    held_until: number | null
    type: EventType
    payload: string
    created_at: number
  }
  const found = await rows<Details>(
    database.knex,
    `SELECT d.id, w.url, w.status, w.held_until, e.type, e.payload, e.created_at
     FROM deliveries d JOIN webhooks w ON w.id = d.webhook_id JOIN events e ON e.id = d.event_id
     WHERE d.id IN (${marks(claims)})`,
    claims.map(claimed => claimed.deliveryId),
  )
  const details = new Map(found.map(row => [row.id, row]))
  return claims.flatMap(claimed => {
    const row = details.get(claimed.deliveryId)
    if (!row) return []
    return {
      ...claimed,
      url: row.url,
      webhookStatus: row.status,
      heldUntil: row.held_until,
      eventType: row.type,
      eventTime: row.created_at,
      payload: row.payload,
    }
  })
}

/** Pushes the end of a lease forward, for what is still claimed under it. */
export const extend = async (database: Database, leases: string[], leaseEnd: number): Promise<void> => {
  if (leases.length === 0) return
  await run(database.knex, `UPDATE delivery_queue SET due_at = ? WHERE lease IN (${marks(leases)})`, [
    leaseEnd,
    ...leases,
  ])
}

/** Gives claims back unsent, each due again at its time, as if they had never been claimed. */
export const putBack = async (database: Database, back: { claim: Claim; dueAt: number }[]): Promise<void> => {
  if (back.length === 0) return
  const cases = caseOf(
    'delivery_id',
    back.map(({ claim, dueAt }) => [claim.deliveryId, dueAt]),
  )
  await database.transaction(trx =>
    run(
      trx,
      `UPDATE delivery_queue SET lease = NULL, attempt = attempt - 1, due_at = ${cases.sql}
       WHERE delivery_id IN (${marks(back)}) AND lease IN (${marks(back)})`,
      [...cases.bindings, ...back.map(({ claim }) => claim.deliveryId), ...back.map(({ claim }) => claim.lease)],
    ),
  )
}

/** When the next delivery falls due; undefined when none is waiting. */
export const nextDue = async (database: Database): Promise<number | undefined> => {
  const [first] = await rows<{ due_at: number }>(
    database.knex,
    'SELECT due_at FROM delivery_queue ORDER BY due_at LIMIT 1',
  )
  return first?.due_at
}

/** Records attempts and what they mean: log, deliveries, queue and webhooks in one transaction. */
export const settle = async (database: Database, settlements: Settlement[], now: number): Promise<void> => {
  // One order of locking in every process: what two settles share, they take in the same order.
  const sorted = settlements.toSorted((a, b) => (a.job.deliveryId < b.job.deliveryId ? -1 : 1))
  const ids = sorted.map(({ job }) => job.deliveryId)
  await database.transaction(async trx => {
    const held = await rows<{ delivery_id: string; lease: string | null }>(
      trx,
      `SELECT delivery_id, lease FROM delivery_queue WHERE delivery_id IN (${marks(ids)}) ORDER BY delivery_id${database.dialect.forUpdate}`,
      ids,
    )
    const leases = new Map(held.map(row => [row.delivery_id, row.lease]))
    const counts = sorted.filter(
      ({ job, outcome }) => outcome.status === 'delivered' || leases.get(job.deliveryId) === job.lease,
    )
    await logAttempts(trx, database, sorted)
    await finish(trx, counts, now)
    await retry(trx, counts)
    await countAttempts(trx, sorted)
    await changeWebhooks(trx, counts, now)
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
]

const logAttempts = async (trx: Knex.Transaction, database: Database, settlements: Settlement[]): Promise<void> => {
  // A process that was frozen past its lease finds its attempt logged as lost, and tells the truth in its place.
  const truth = database.dialect.onDuplicateUpdate(['delivery_id', 'number'], ATTEMPT_COLUMNS.slice(2))
  await run(
    trx,
    `INSERT INTO attempts (${ATTEMPT_COLUMNS.join(', ')}) VALUES ${settlements.map(() => `(${marks(ATTEMPT_COLUMNS)})`).join(', ')}${truth}`,
    settlements.flatMap(({ job, startedAt, durationMs, answer, outcome }) => [
      job.deliveryId,
      job.attempt,
      startedAt,
      durationMs,
      answer.kind === 'response' ? answer.statusCode : null,
      answer.kind === 'failure' ? answer.reason : null,
      answer.kind === 'failure' ? answer.detail : null,
      answer.kind === 'response' ? answer.body : null,
      outcome.status === 'pending' && outcome.holdWebhookMs !== undefined
        ? endOf({ startedAt, durationMs }) + outcome.holdWebhookMs
        : null,
    ]) as Knex.RawBinding[],
  )
}

/** The end of an attempt: what waits are counted from. */
const endOf = ({ startedAt, durationMs }: { startedAt: number; durationMs: number }): number => startedAt + durationMs

const finish = async (trx: Knex.Transaction, settlements: Settlement[], now: number): Promise<void> => {
  const finished = settlements.filter(({ outcome }) => outcome.status !== 'pending')
  if (finished.length === 0) return
  const byStatus = Map.groupBy(finished, ({ outcome }) => outcome.status as DeliveryStatus)
  for (const [status, group] of byStatus) {
    await run(
      trx,
      `UPDATE deliveries SET status = ?, next_attempt_at = NULL, finished_at = ?
       WHERE id IN (${marks(group)}) AND (status = 'pending' OR (? = 'delivered' AND status <> 'delivered'))`,
      [status, now, ...group.map(({ job }) => job.deliveryId), status],
    )
  }
  await run(
    trx,
    `DELETE FROM delivery_queue WHERE delivery_id IN (${marks(finished)})`,
    finished.map(({ job }) => job.deliveryId),
  )
}

const retry = async (trx: Knex.Transaction, settlements: Settlement[]): Promise<void> => {
  const again = settlements.flatMap(settlement => {
    const { job, outcome } = settlement
    if (outcome.status !== 'pending') return []
    return { id: job.deliveryId, dueAt: endOf(settlement) + outcome.retryInMs, outcome }
  })
  if (again.length === 0) return
  const ids = again.map(({ id }) => id)
  const dueAt = (key: string) =>
    caseOf(
      key,
      again.map(({ id, dueAt }) => [id, dueAt]),
    )
  const failures = caseOf(
    'delivery_id',
    again.map(({ id, outcome }) => [id, outcome.failureCount]),
  )
  const throttled = caseOf(
    'delivery_id',
    again.map(({ id, outcome }) => [id, outcome.throttledSinceMs]),
  )
  const queueDue = dueAt('delivery_id')
  await run(
    trx,
    `UPDATE delivery_queue SET lease = NULL, due_at = ${queueDue.sql}, failure_count = ${failures.sql}, throttled_since = ${throttled.sql}
     WHERE delivery_id IN (${marks(ids)})`,
    [...queueDue.bindings, ...failures.bindings, ...throttled.bindings, ...ids],
  )
  const nextAttempt = dueAt('id')
  await run(trx, `UPDATE deliveries SET next_attempt_at = ${nextAttempt.sql} WHERE id IN (${marks(ids)})`, [
    ...nextAttempt.bindings,
    ...ids,
  ])
}

const countAttempts = async (trx: Knex.Transaction, settlements: Settlement[]): Promise<void> => {
  for (const [attempt, group] of Map.groupBy(settlements, ({ job }) => job.attempt)) {
    await run(trx, `UPDATE deliveries SET attempt_count = ? WHERE id IN (${marks(group)}) AND attempt_count < ?`, [
      attempt,
      ...group.map(({ job }) => job.deliveryId),
      attempt,
    ])
  }
}

const changeWebhooks = async (trx: Knex.Transaction, settlements: Settlement[], now: number): Promise<void> => {
  for (const settlement of settlements) {
    const { job, outcome } = settlement
    if (outcome.status === 'pending' && outcome.holdWebhookMs !== undefined) {
      const until = endOf(settlement) + outcome.holdWebhookMs
      await run(
        trx,
        "UPDATE webhooks SET held_until = ? WHERE id = ? AND status = 'active' AND (held_until IS NULL OR held_until < ?)",
        [until, job.webhookId, until],
      )
    }
  }
  const ended = settlements.filter(({ outcome }) => outcome.status === 'cancelled').map(({ job }) => job.webhookId)
  for (const webhookId of new Set(ended)) {
    await leaveActive(trx, webhookId, 'inactive', THROTTLED_WITHOUT_RETRY_AFTER, now)
  }
}

const THROTTLED_WITHOUT_RETRY_AFTER =
  'The endpoint answered 429 without a readable Retry-After. Set the status to active when it can receive again, then recover what it missed.'

/** Cancels claims whose webhook is no longer active. */
export const cancel = async (database: Database, claims: Claim[], now: number): Promise<void> => {
  const ids = claims.map(claimed => claimed.deliveryId)
  await database.transaction(async trx => {
    await run(
      trx,
      `UPDATE deliveries SET status = 'cancelled', next_attempt_at = NULL, finished_at = ? WHERE id IN (${marks(ids)}) AND status = 'pending'`,
      [now, ...ids],
    )
    await run(trx, `DELETE FROM delivery_queue WHERE delivery_id IN (${marks(ids)})`, ids)
  })
}

/** `CASE key WHEN ? THEN ? … END`: a value for each row of one statement. */
const caseOf = (
  key: string,
  values: [string, number | null][],
): { sql: string; bindings: (string | number | null)[] } => ({
  sql: `CASE ${key} ${values.map(() => 'WHEN ? THEN ?').join(' ')} END`,
  bindings: values.flat(),
})
