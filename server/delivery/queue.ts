import { setImmediate as othersTurn } from 'node:timers/promises'
import type { Knex } from 'knex'
import type { EventType } from '../../shared/vocabulary.ts'
import { type Database, marks, Overtaken, rows, run, type Sql } from '../database/connect.ts'
import { dialectOf, STATEMENT_LIMITS } from '../database/dialect.ts'
import type { Transaction } from '../database/transaction.ts'
import { cancel, logLost } from '../domain/deliveries.ts'
import { epochTimeOf, PULL_TIME, TAKEN_TIME } from '../domain/pull-time.ts'
import { outOfSight, type Sight } from '../domain/sight.ts'
import { type Swept, sweepRows } from '../domain/sweep.ts'
import { KEYS_MARK, type KeysMark } from '../keys/signing-keys.ts'
import type { Evidence } from './evidence.ts'
import type { AttemptResult, Outcome } from './outcome.ts'

// The queue: one row for each pending delivery, apart from the history, deleted when the delivery is settled.
//
// Invariants
// 1. A delivery is `pending` exactly while it has a row here. Both change in one transaction, in the settle or in
//    `domain/deliveries.ts`.
// 2. A claim looks at due rows in the order of their due time, of all webhooks or of each. It writes its own id into
//    the `lease` of the rows it takes, and pushes their `due_at` forward as the lease's end: a row whose lease has run
//    out is simply due again, for any process. No transaction is open while sending. A fresh row may be inserted as if
//    the inserting process had claimed it (`after-commit.ts`).
// 3. `attempt` increases with each claim, so no two attempts of a delivery have the same number, whoever makes them.
//    The change itself is conditional on the row being as it was read. Locks only reduce conflicts between claims, and
//    some engines cannot skip locked rows.
// 4. An outcome counts only under the lease of its claim. The exception is a 2XX: the receiver has acknowledged the
//    event, so the delivery is delivered, whichever process has its lease and even if it was cancelled meanwhile.
// 5. Every attempt is logged, even one that no longer counts. A process that dies leaves a row that the next claim logs
//    as lost.
// 6. A delivery that clients take is never due for the loop: its due time is on another scale (`domain/pull-time.ts`).
//    A client's lease is the same kind of lease, with its end on a third scale.
// 7. A row that waits for its turn in a line (`domain/lines.ts`) is never due, and has no lease.

/** A claimed delivery and its lease. */
export type Claim = {
  deliveryId: string
  eventId: string
  webhookId: string
  /** The webhook's epoch in which it was queued. If that is older than the webhook's, the delivery is not sent. */
  epoch: number
  /** Whether it comes after new deliveries. */
  recovered: boolean
  lease: string
  /** The number of the attempt to be made. */
  attempt: number
  failureCount: number
  throttledSinceMs: number | null
  /** The line in which it has the turn, if it keeps an order. */
  line: string | null
}

/** A webhook as its claims need it. */
type JobWebhook = Swept & {
  url: string
  /** What its requests carry besides the token: `domain/webhook-requests.ts`. */
  request_sealed: string | null
  /** The access token that created it. */
  access_token_id: string
  sees_all_organisations: number
  /** Nothing is sent until then. */
  held_until: number | null
  /** Whether it has deliveries of past epochs, which are swept in batches of their own. */
  sweeping: number
}

/** A claim with everything needed to send it. */
export type Job = Claim & {
  url: string
  webhook: Pick<JobWebhook, 'epoch' | 'access_token_id' | 'held_until' | 'transport'>
  requestSealed: string | null
  eventType: EventType
  eventTime: number
  /** The payload as its stored JSON text. */
  payload: string
  /** The trace of its event. */
  traceparent: string | null
}

/** A job as it was read from the queue. */
export type ReadJob = Job & { webhook: JobWebhook }

/** An attempt that was made, and what it means. */
export type Settlement = {
  job: Job
  startedAt: number
  durationMs: number
  result: AttemptResult
  /** Missing if the request had no connection. */
  evidence?: Evidence
  /** A client did not answer before the end of its lease. This counts only if its lease is still there. */
  isLapse?: true
  outcome: Outcome
}

export type QueueRow = {
  delivery_id: string
  event_id: string
  webhook_id: string
  epoch: number
  recovered: number
  due_at: number
  lease: string | null
  attempt: number
  failure_count: number
  throttled_since: number | null
  line: string | null
  /** Who has taken it, if a client has: see `pull/taken.ts`. */
  taken: string | null
}

type HeadRow = Pick<QueueRow, 'webhook_id' | 'epoch' | 'recovered' | 'due_at'>

/** A process's decision about due deliveries: those it takes, and those to postpone. */
export type Triage = { take: Job[]; later: { job: Job; dueAt: number }[] }

/** The first due delivery of a webhook in one of its epochs, new or recovered. */
export type Head = { webhookId: string; epoch: number; recovered: boolean; dueAt: number }

export type Claimed = {
  taken: Job[]
  /** What was looked at. */
  found: Claim[]
  /** Whether some were left. */
  left: boolean
  /** Webhooks, in an epoch, that receive nothing until then; they may have more in the queue. */
  passedOver: { webhookId: string; epoch: number; until: number }[]
  /** Whether some are of past epochs and have to be swept. */
  hasPast: boolean
  /** How many of the taken ones had a lease that ran out under another process. */
  takenOver: number
}

/** When to look again at a webhook that is being swept. */
const SWEPT_AGAIN_MS = 1_000

/**
 * Claims deliveries that are due, in one short transaction, for `leaseMs` from now. Looks at the `limit` longest due
 * rows, or with `quotas` at a number of rows of each webhook. `triage` decides about them, and is called again if the
 * transaction is repeated. Rows that it does not name stay as they are.
 */
export const claim = async (
  database: Database,
  given: {
    lease: string
    now: number
    limit: number
    quotas?: ReadonlyMap<Head, number>
    leaseMs: number
    triage: (due: Job[]) => Triage
  },
): Promise<Claimed> => {
  const { lease, now, limit, quotas, leaseMs, triage } = given
  return database.transaction(async trx => {
    const due = quotas ? await lockDueOf(trx, quotas, now) : await lockDue(trx, limit, now)
    if (due.length === 0) return { taken: [], found: [], left: false, passedOver: [], hasPast: false, takenOver: 0 }
    const found = due.map(row => claimOf(row, lease))
    const jobs = await inSight(trx, await jobsOf(trx, found))
    const active = jobs.filter(job => job.epoch === job.webhook.epoch)
    const wanted = triage(active)
    const read = new Map(due.map(row => [row.delivery_id, row]))
    const take = await takeLeases(trx, wanted.take, read, { now, leaseEnd: now + leaseMs })
    const later = await postpone(trx, wanted.later, read, now)
    const changed = new Set([...take, ...later.map(({ job }) => job)].map(job => job.deliveryId))
    await logLost(
      trx,
      due.filter(row => changed.has(row.delivery_id)),
    )
    const swept = await sweepPast(trx, due, jobs, now)
    const held = later.map(({ job, dueAt }) => ({ ...job, until: dueAt }))
    const passedOver = [...held, ...swept.map(job => ({ ...job, until: now + SWEPT_AGAIN_MS }))]
    const takenOver = take.filter(job => read.get(job.deliveryId)?.lease).length
    return { taken: take, found, left: changed.size < active.length, passedOver, hasPast: swept.length > 0, takenOver }
  })
}

/** The jobs, without those that the tokens of their webhooks no longer see. */
export const inSight = async (sql: Sql, jobs: ReadJob[]): Promise<ReadJob[]> => {
  const unseen = await outOfSight(sql, jobs, sightOf)
  return jobs.filter(job => !unseen.has(job))
}

const sightOf = ({ webhook, eventId }: ReadJob): Sight => ({
  accessTokenId: webhook.access_token_id,
  seesAllOrganisations: webhook.sees_all_organisations === 1,
  eventId,
})

/**
 * Among the rows that a claim has locked, cancels those whose event was purged or is out of sight, and sweeps those of
 * a past epoch. Returns those whose webhook is already being swept.
 */
export const sweepPast = async (trx: Transaction, due: QueueRow[], jobs: ReadJob[], now: number): Promise<Job[]> => {
  const found = new Map(jobs.map(job => [job.deliveryId, job.webhook]))
  await cancel(
    trx,
    due.filter(row => !found.has(row.delivery_id)),
    now,
  )
  const past = due.filter(row => row.epoch < (found.get(row.delivery_id)?.epoch ?? 0))
  for (const [webhook, owed] of Map.groupBy(past, row => found.get(row.delivery_id)!)) {
    if (!webhook.sweeping) await sweepRows(trx, webhook, owed, now)
  }
  return jobs.filter(({ epoch, webhook }) => epoch < webhook.epoch && webhook.sweeping)
}

// Each statement names the index that serves both its condition and its order, so that only the rows looked at are
// locked; MySQL would otherwise read and lock every row of a small table.
//
// Rejected: a status column, indexed, in place of rows that are deleted when they are settled (a quarter of the claims
// a second, MariaDB 10.11); a transaction that stays open while sending (a connection for each request under way).

const lockDue = (trx: Transaction, limit: number, now: number): Promise<QueueRow[]> =>
  rows(
    trx,
    `SELECT * FROM delivery_queue ${dialectOf(trx).useIndex('delivery_queue_by_due_time')}
     WHERE due_at <= ? ORDER BY due_at LIMIT ?${dialectOf(trx).forUpdateSkipLocked}`,
    [now, limit],
  )

const lockDueOf = async (trx: Transaction, quotas: ReadonlyMap<Head, number>, now: number): Promise<QueueRow[]> => {
  const ofOne = `SELECT delivery_id FROM delivery_queue ${dialectOf(trx).useIndex('delivery_queue_by_webhook')}
    WHERE webhook_id = ? AND epoch = ? AND recovered = ? AND due_at <= ? ORDER BY due_at LIMIT ?`
  const found = await rows<{ delivery_id: string }>(
    trx,
    Array.from(quotas, () => dialectOf(trx).member(ofOne)).join(' UNION ALL '),
    [...quotas].flatMap(([{ webhookId, epoch, recovered }, quota]) => [
      webhookId,
      epoch,
      recovered ? 1 : 0,
      now,
      quota,
    ]),
  )
  if (found.length === 0) return []
  // Read without a lock: another process may have claimed them since.
  return rows(
    trx,
    `SELECT * FROM delivery_queue WHERE delivery_id IN (${marks(found)}) ` +
      `AND due_at <= ?${dialectOf(trx).forUpdateSkipLocked}`,
    [...found.map(row => row.delivery_id), now],
  )
}

/** The first due row of each webhook in the queue, earliest first. */
export const headOfEach = async ({ knex, dialect }: Database): Promise<Head[]> => {
  const keys = ['webhook_id', 'epoch', 'recovered']
  const found: HeadRow[] = []
  for (let isLast = false; !isLast; ) {
    const last = found.at(-1)
    const after = last ? [last.webhook_id, last.epoch, last.recovered] : []
    const page = dialect.isEmbedded ? { after, limit: HEADS_AT_ONCE } : undefined
    const { sql, bindings } = dialect.leastOfEach('delivery_queue', keys, 'due_at', 'delivery_queue_by_webhook', page)
    const some = await rows<HeadRow>(knex, sql, bindings)
    found.push(...some)
    isLast = !page || some.length < page.limit
    // Pauses on an embedded engine, which blocks the process, so that other work runs.
    if (!isLast) await othersTurn()
  }
  return found.map(headOf).toSorted((a, b) => a.dueAt - b.dueAt)
}

/** For an embedded engine: a few milliseconds of work. */
const HEADS_AT_ONCE = 250

const headOf = (row: HeadRow): Head => ({
  webhookId: row.webhook_id,
  epoch: row.epoch,
  recovered: row.recovered === 1,
  dueAt: row.due_at,
})

/** The first rows of the webhooks among those that have fallen due since a time, earliest first. */
export const newlyDue = async (database: Database, since: number, now: number): Promise<Head[]> => {
  const found = await rows<HeadRow>(
    database.knex,
    `SELECT webhook_id, epoch, recovered, due_at FROM delivery_queue
     ${database.dialect.useIndex('delivery_queue_by_due_time')}
     WHERE due_at > ? AND due_at <= ? ORDER BY due_at DESC LIMIT ${MOST_NEW}`,
    [since, now],
  )
  return found.map(headOf).toReversed()
}

const MOST_NEW = 500

/** The access tokens that created these webhooks, by webhook. */
export const tenantsOf = async (database: Database, webhookIds: string[]): Promise<[string, string][]> => {
  const found: { id: string; access_token_id: string }[] = []
  for (let from = 0; from < webhookIds.length; from += STATEMENT_LIMITS.keys) {
    const ids = webhookIds.slice(from, from + STATEMENT_LIMITS.keys)
    const sql = `SELECT id, access_token_id FROM webhooks WHERE id IN (${marks(ids)})`
    found.push(...(await rows<{ id: string; access_token_id: string }>(database.knex, sql, ids)))
  }
  return found.map(row => [row.id, row.access_token_id])
}

export const claimOf = (row: QueueRow, lease: string): Claim => ({
  deliveryId: row.delivery_id,
  eventId: row.event_id,
  webhookId: row.webhook_id,
  epoch: row.epoch,
  recovered: row.recovered === 1,
  lease,
  attempt: row.attempt + 1,
  failureCount: row.failure_count,
  throttledSinceMs: row.throttled_since,
  line: row.line,
})

/**
 * Writes leases on the rows that are still as they were read: due, under the same lease, with as many attempts. If
 * reading does not lock, another claim may have been first.
 *
 * Rejected: the end of the lease in a column of its own. A row then takes 27 µs of the database's CPU instead of 68
 * (MySQL 9.7), but each look at the head of the queue reads past everything in flight (decision 18).
 *
 * @param given.taken who takes them, if a client does
 * @returns those that were taken
 */
export const takeLeases = async (
  trx: Transaction,
  jobs: Job[],
  read: ReadonlyMap<string, QueueRow>,
  { now, leaseEnd, taken = null }: { now: number; leaseEnd: number; taken?: string | null },
): Promise<Job[]> => {
  if (jobs.length === 0) return []
  const { lease } = jobs[0]!
  const still = asRead(jobs, read, now)
  const count = await run(
    trx,
    `UPDATE delivery_queue SET lease = ?, due_at = ?, attempt = attempt + 1, taken = ? WHERE ${still.sql}`,
    [lease, leaseEnd, taken, ...still.bindings],
  )
  if (count === jobs.length) return jobs
  const own = await rows<{ delivery_id: string }>(
    trx,
    `SELECT delivery_id FROM delivery_queue WHERE delivery_id IN (${marks(jobs)}) AND lease = ?`,
    [...jobs.map(job => job.deliveryId), lease],
  )
  const ids = new Set(own.map(row => row.delivery_id))
  return jobs.filter(job => ids.has(job.deliveryId))
}

/** Postpones rows that are still as they were read: they are due later, without a lease. */
const postpone = async (
  trx: Transaction,
  later: Triage['later'],
  read: ReadonlyMap<string, QueueRow>,
  now: number,
): Promise<Triage['later']> => {
  if (later.length === 0) return later
  const due = caseOf(
    'delivery_id',
    later.map(({ job, dueAt }) => [job.deliveryId, dueAt]),
  )
  const jobs = later.map(({ job }) => job)
  const still = asRead(jobs, read, now)
  const put = await run(trx, `UPDATE delivery_queue SET lease = NULL, due_at = ${due.sql} WHERE ${still.sql}`, [
    ...due.bindings,
    ...still.bindings,
  ])
  if (put < later.length) throw new Overtaken()
  // For rows without a lease, the delivery's next attempt is the queue's due time.
  const next = caseOf(
    'id',
    later.map(({ job, dueAt }) => [job.deliveryId, Math.max(now, epochTimeOf(dueAt))]),
  )
  await run(trx, `UPDATE deliveries SET next_attempt_at = ${next.sql} WHERE id IN (${marks(jobs)})`, [
    ...next.bindings,
    ...jobs.map(job => job.deliveryId),
  ])
  return later
}

/** The condition that due rows are as they were read. The engine finds them by their key. */
const asRead = (
  jobs: Job[],
  read: ReadonlyMap<string, QueueRow>,
  now: number,
): { sql: string; bindings: Knex.RawBinding[] } => {
  const ids = jobs.map(job => job.deliveryId)
  const was = ids.map(id => read.get(id)!)
  const leases = [...new Set(was.flatMap(({ lease }) => lease ?? []))]
  const [first] = was
  const attempt = was.every(row => row.attempt === first!.attempt)
    ? { sql: '?', bindings: [first!.attempt] }
    : caseOf(
        'delivery_id',
        was.map(row => [row.delivery_id, row.attempt]),
      )
  const ofLease = leases.length === 0 ? 'lease IS NULL' : `(lease IS NULL OR lease IN (${marks(leases)}))`
  return {
    sql: `delivery_id IN (${marks(ids)}) AND due_at + 0 <= ? AND ${ofLease} AND attempt = ${attempt.sql}`,
    bindings: [...ids, now, ...leases, ...attempt.bindings],
  }
}

/**
 * Makes all claimed deliveries due at once, except those taken by clients. For an embedded engine at its start: every
 * process that holds a lease is gone.
 *
 * @returns how many deliveries were claimed
 */
export const freeLeases = (database: Database, now: number): Promise<number> =>
  database.transaction(async trx => {
    const ofProcesses = `lease IS NOT NULL AND due_at < ${PULL_TIME}`
    const leased = await rows<QueueRow>(trx, `SELECT * FROM delivery_queue WHERE ${ofProcesses}`)
    await logLost(trx, leased)
    return run(trx, `UPDATE delivery_queue SET lease = NULL, due_at = ? WHERE ${ofProcesses}`, [now])
  })

/** Loads everything needed to send the claims. Shared rows are read once. Leaves out claims whose event was purged. */
export const jobsOf = async (sql: Sql, claims: Claim[]): Promise<ReadJob[]> => {
  if (claims.length === 0) return []
  type EventDetails = { id: string; type: EventType; payload: string; created_at: number; traceparent: string | null }
  const read = async <Row extends { id: string }>(columns: string, table: string, ids: Set<string>) => {
    const found = await rows<Row>(sql, `SELECT id, ${columns} FROM ${table} WHERE id IN (${marks([...ids])})`, [...ids])
    return new Map(found.map(row => [row.id, row]))
  }
  const eventIds = new Set(claims.map(({ eventId }) => eventId))
  const events = await read<EventDetails>('type, payload, created_at, traceparent', 'events', eventIds)
  // Read last, because an event does not change, and a webhook may be disabled at any moment.
  const webhookIds = new Set(claims.map(({ webhookId }) => webhookId))
  const webhooks = await read<JobWebhook>(
    `url, request_sealed, epoch, ended_epoch, sweeping, transport, access_token_id, held_until,
     (SELECT t.sees_all_organisations FROM access_tokens t WHERE t.id = webhooks.access_token_id)
       AS sees_all_organisations`,
    'webhooks',
    webhookIds,
  )
  return claims.flatMap(claimed => {
    const webhook = webhooks.get(claimed.webhookId)
    const event = events.get(claimed.eventId)
    if (!webhook || !event) return []
    return {
      ...claimed,
      url: webhook.url,
      requestSealed: webhook.request_sealed,
      webhook,
      eventType: event.type,
      eventTime: event.created_at,
      payload: event.payload,
      traceparent: event.traceparent,
    }
  })
}

/** Loads everything needed to send a claim; undefined if its webhook has ended it meanwhile. */
export const presentJobOf = async (database: Database, claimed: Claim): Promise<Job | undefined> => {
  const [job] = await jobsOf(database.knex, [claimed])
  return job && job.epoch === job.webhook.epoch ? job : undefined
}

/**
 * Gives unsent claims back, due again at `dueAt`, as if they had never been claimed. Those that now go to another URL
 * are due at `now`, because that endpoint has not asked to wait.
 */
export const putBack = async (
  database: Database,
  claims: Claim[],
  { dueAt, now }: { dueAt: number; now: number },
): Promise<void> => {
  if (claims.length === 0) return
  const leases = [...new Set(claims.map(claimed => claimed.lease))]
  const given = claims.map(claimed => claimed.deliveryId).toSorted()
  await database.transaction(async trx => {
    const own = await rows<{ delivery_id: string; epoch: number }>(
      trx,
      `SELECT delivery_id, epoch FROM delivery_queue
       WHERE delivery_id IN (${marks(given)}) AND lease IN (${marks(leases)})
       ORDER BY delivery_id${dialectOf(trx).forUpdate}`,
      [...given, ...leases],
    )
    const epochs = new Map(claims.map(claimed => [claimed.deliveryId, claimed.epoch]))
    const isMoved = (row: { delivery_id: string; epoch: number }) => row.epoch > epochs.get(row.delivery_id)!
    const [moved, others] = [own.filter(isMoved), own.filter(row => !isMoved(row))]
    await giveBack(trx, others, { dueAt, leases })
    await giveBack(trx, moved, { dueAt: Math.min(dueAt, now), leases })
    const ids = new Set(own.map(row => row.delivery_id))
    await forgetLost(
      trx,
      claims.filter(claimed => !ids.has(claimed.deliveryId)),
    )
  })
}

const giveBack = async (
  trx: Transaction,
  own: { delivery_id: string }[],
  { dueAt, leases }: { dueAt: number; leases: string[] },
): Promise<void> => {
  if (own.length === 0) return
  const ids = own.map(row => row.delivery_id)
  const freed = await run(
    trx,
    'UPDATE delivery_queue SET lease = NULL, attempt = attempt - 1, due_at = ? ' +
      `WHERE delivery_id IN (${marks(ids)}) AND lease IN (${marks(leases)})`,
    [dueAt, ...ids, ...leases],
  )
  if (freed < ids.length) throw new Overtaken()
  await run(trx, `UPDATE deliveries SET next_attempt_at = ? WHERE id IN (${marks(ids)})`, [dueAt, ...ids])
}

/** Gives back all rows of a claim whose commit is in doubt. None was sent. */
export const forgetClaim = (
  database: Database,
  { lease, end, now }: { lease: string; end: number; now: number },
): Promise<void> =>
  database.transaction(async trx => {
    const own = await rows<{ delivery_id: string }>(
      trx,
      `SELECT delivery_id FROM delivery_queue ${dialectOf(trx).useIndex('delivery_queue_by_due_time')}
       WHERE due_at = ? AND lease = ? ORDER BY delivery_id${dialectOf(trx).forUpdate}`,
      [end, lease],
    )
    await giveBack(trx, own, { dueAt: now, leases: [lease] })
  })

/**
 * Corrects attempts logged as lost: the claims were cancelled before they were sent, which the canceller could not
 * know.
 */
const forgetLost = async (trx: Transaction, unsent: Claim[]): Promise<void> => {
  for (const [attempt, group] of Map.groupBy(unsent, claimed => claimed.attempt)) {
    const ids = group.map(claimed => claimed.deliveryId)
    const cancelled = await rows<{ id: string }>(
      trx,
      `SELECT id FROM deliveries WHERE id IN (${marks(ids)}) AND status = 'cancelled' AND attempt_count = ?
       ORDER BY id${dialectOf(trx).forUpdate}`,
      [...ids, attempt],
    )
    if (cancelled.length === 0) continue
    const found = cancelled.map(row => row.id)
    await run(trx, `UPDATE deliveries SET attempt_count = ? WHERE id IN (${marks(found)})`, [attempt - 1, ...found])
    await run(trx, `DELETE FROM attempts WHERE delivery_id IN (${marks(found)}) AND number = ? AND failure = 'lost'`, [
      ...found,
      attempt,
    ])
  }
}

/**
 * When the next delivery falls due, undefined when none is waiting, whether leases of clients have ended, and how the
 * signing keys stand. Reads two ranges of an index, and the few keys.
 */
export const nextDue = async (
  { knex }: Database,
  now: number,
): Promise<{ dueAt: number | undefined; hasLapsed: boolean; keys: KeysMark }> => {
  type Next = KeysMark & { due_at: number | null; lapsed: number | null }
  const [first] = await rows<Next>(
    knex,
    `SELECT (SELECT due_at FROM delivery_queue ORDER BY due_at LIMIT 1) AS due_at,
       (SELECT due_at FROM delivery_queue WHERE due_at >= ? AND due_at <= ? ORDER BY due_at LIMIT 1) AS lapsed,
       ${KEYS_MARK}`,
    [TAKEN_TIME, TAKEN_TIME + now],
  )
  return { dueAt: first!.due_at ?? undefined, hasLapsed: first!.lapsed !== null, keys: first! }
}

/** `CASE key WHEN ? THEN ? … END`: a value for each row of one statement. */
export const caseOf = (
  key: string,
  values: [string, number | null][],
): { sql: string; bindings: (string | number | null)[] } => ({
  sql: `CASE ${key} ${values.map(() => 'WHEN ? THEN ?').join(' ')} END`,
  bindings: values.flat(),
})
