import { toIso } from '../../shared/time.ts'
import type { DeliveryStatus, WebhookStatus } from '../../shared/vocabulary.ts'
import { marks, rows, run, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import type { Field } from '../mango/resource.ts'
import { epochTimeOf } from './pull-time.ts'

// A webhook with `recovery: automatic` heals itself. The transaction that drops one of its deliveries notes what was
// missed. Then its endpoint is pinged: after 10 minutes, then after twice as long each time, up to an hour, for seven
// days. At the first 200, everything missed since the first miss is queued, by the rule of `recoverDeliveries`.
//
// No storms. An event is sent again by itself for seven days after it was first dropped. While queued events are
// dropped again, the wait before the next ping goes on growing. If nothing at all was acknowledged since the first
// miss, the next healing is a trial: the rest is queued once the endpoint has answered one of the first few events.
//
// Invariants
// 1. A process works on a row of `webhook_recoveries` under a lease: it writes its own id, and pushes `due_at` forward
//    as the lease's end. Each of its changes requires that lease. If it dies, the row is due again for any process.
// 2. A page of missed events and the progress that it makes commit together, so no event is queued twice.
// 3. A webhook that is not active is neither pinged nor queued for. Its row waits for the next ping's time.

const MINUTE_MS = 60_000
/** The wait before the first ping, and the longest one. */
export const PING_WAITS_MS = { first: 10 * MINUTE_MS, longest: 60 * MINUTE_MS }
/** How long an endpoint is pinged that acknowledges nothing, and how long an event is sent again by itself. */
export const GIVE_UP_MS = 7 * 24 * 60 * MINUTE_MS
/** When a row is due that is over. */
export const NEVER = 8_640_000_000_000_000
export type HealingRow = {
  webhook_id: string
  missed_since: number
  began_at: number
  due_at: number
  pings: number
  lease: string | null
  answered_at: number | null
  after_time: number | null
  after_id: string | null
  until_time: number | null
  again_since: number | null
  queued: number
  recovered_at: number | null
  given_up_at: number | null
  /** 1 if the last healing led to no acknowledgement. */
  on_trial: number
}

/** The wait after so many pings without a 200. */
export const pingWait = (pings: number): number =>
  Math.min(PING_WAITS_MS.longest, PING_WAITS_MS.first * 2 ** Math.min(pings, 10))

/** An event whose delivery was dropped, to a webhook that heals itself. */
export type Missed = { webhookId: string; eventId: string; eventTime: number }

/**
 * Notes what webhooks have missed, in the transaction that dropped it.
 *
 * @returns when each of these webhooks is pinged next; null for one that is not pinged any more. An event that was
 *   first dropped more than seven days ago is not noted.
 */
export const noteMissed = async (trx: Sql, dropped: Missed[], now: number): Promise<Map<string, number | null>> => {
  const missed = await sentAgain(trx, dropped, now)
  const since = new Map<string, number>()
  for (const { webhookId, eventTime } of missed) {
    since.set(webhookId, Math.min(eventTime, since.get(webhookId) ?? eventTime))
  }
  const ids = [...since.keys()].toSorted()
  if (ids.length === 0) return new Map()
  const fresh = ids.flatMap(id => [id, since.get(id)!, now, now + pingWait(0)])
  // Also locks the rows that exist, in the same order in every transaction.
  await run(
    trx,
    `INSERT INTO webhook_recoveries (webhook_id, missed_since, began_at, due_at)
     VALUES ${ids.map(() => '(?, ?, ?, ?)').join(', ')}${dialectOf(trx).onDuplicate(['webhook_id'])} pings = pings + 0`,
    fresh,
  )
  const found = await rows<HealingRow>(trx, `SELECT * FROM webhook_recoveries WHERE webhook_id IN (${marks(ids)})`, ids)
  const next = new Map<string, number | null>()
  for (const row of found) next.set(row.webhook_id, await missAgain(trx, row, since.get(row.webhook_id)!, now))
  return next
}

/** Those of the missed events that are sent again by themselves: not the ones first dropped long ago. */
const sentAgain = async (trx: Sql, missed: Missed[], now: number): Promise<Missed[]> => {
  const old = missed.filter(({ eventTime }) => eventTime < now - GIVE_UP_MS)
  if (old.length === 0) return missed
  const [events, webhooks] = [old.map(({ eventId }) => eventId), old.map(({ webhookId }) => webhookId)]
  const found = await rows<{ event_id: string; webhook_id: string }>(
    trx,
    `SELECT event_id, webhook_id FROM deliveries ${dialectOf(trx).useIndex('deliveries_by_event')}
     WHERE event_id IN (${marks(events)}) AND webhook_id IN (${marks(webhooks)})
       AND status = 'dropped' AND finished_at < ?`,
    [...events, ...webhooks, now - GIVE_UP_MS],
  )
  const over = new Set(found.map(row => `${row.event_id} ${row.webhook_id}`))
  return missed.filter(({ eventId, webhookId }) => !over.has(`${eventId} ${webhookId}`))
}

/** Notes a miss in an existing row, and returns when the webhook is pinged next. */
const missAgain = async (trx: Sql, row: HealingRow, since: number, now: number): Promise<number | null> => {
  if (row.recovered_at !== null || row.given_up_at !== null) return beginAgain(trx, row, since, now)
  const column = row.answered_at === null ? 'missed_since' : 'again_since'
  const earliest = Math.min(since, row[column] ?? since)
  if (earliest !== row[column]) {
    await run(trx, `UPDATE webhook_recoveries SET ${column} = ? WHERE webhook_id = ?`, [earliest, row.webhook_id])
  }
  return row.answered_at === null ? row.due_at : now + pingWait(row.pings + 1)
}

/**
 * Begins anew after a healing that has ended, because an event since a time was missed.
 *
 * @returns when the webhook is pinged next; null if that was given up, and nothing was acknowledged since
 */
export const beginAgain = async (trx: Sql, row: HealingRow, since: number, now: number): Promise<number | null> => {
  const isWell = await hasAcknowledgedSince(trx, row.webhook_id, row.given_up_at ?? row.began_at)
  if (row.given_up_at !== null && !isWell) return null
  // An event from before the answer was queued by the healing, which has not helped.
  const isNew = since > (row.answered_at ?? 0)
  const pings = isWell && isNew ? 0 : row.pings + 1
  const dueAt = now + pingWait(pings)
  // An endpoint that answers pings alone has not been well: it is given up seven days after the first miss.
  await run(
    trx,
    `UPDATE webhook_recoveries SET missed_since = ?, began_at = ?, due_at = ?, pings = ?, on_trial = ?, lease = NULL,
       answered_at = NULL, after_time = NULL, after_id = NULL, until_time = NULL, again_since = NULL, queued = 0,
       recovered_at = NULL, given_up_at = NULL
     WHERE webhook_id = ?`,
    [since, isWell ? now : row.began_at, dueAt, pings, isWell ? 0 : 1, row.webhook_id],
  )
  return dueAt
}

/** Deliveries to look back on: an endpoint that is well has acknowledged one of the last. */
const LAST_DELIVERIES = 1_000

/** What has become of the last deliveries of a webhook since a time, pings aside. */
const lastStatuses = async (trx: Sql, webhookId: string, since: number): Promise<Set<DeliveryStatus>> => {
  const last = `SELECT status, event_type FROM deliveries ${dialectOf(trx).useIndex('deliveries_of_webhook_by_time')}
    WHERE webhook_id = ? AND created_at >= ? ORDER BY created_at DESC LIMIT ${LAST_DELIVERIES}`
  const found = await rows<{ status: DeliveryStatus }>(
    trx,
    `SELECT DISTINCT status FROM (${last}) d WHERE event_type <> 'ping'`,
    [webhookId, since],
  )
  return new Set(found.map(({ status }) => status))
}

/** Whether a webhook has acknowledged an event since a time, or was changed since. */
const hasAcknowledgedSince = async (trx: Sql, webhookId: string, since: number): Promise<boolean> => {
  if ((await lastStatuses(trx, webhookId, since)).has('delivered')) return true
  const changed = await rows(trx, 'SELECT 1 FROM webhooks WHERE id = ? AND updated_at > ?', [webhookId, since])
  return changed.length > 0
}

/** How a trial stands: the endpoint has answered one of its events, or none and one is pending, or none. */
export const trialOf = async (trx: Sql, row: HealingRow): Promise<'passed' | 'under_way' | 'failed'> => {
  const statuses = await lastStatuses(trx, row.webhook_id, row.answered_at!)
  if (statuses.has('delivered') || statuses.has('rejected')) return 'passed'
  return row.again_since === null && statuses.has('pending') ? 'under_way' : 'failed'
}

/** The endpoint has just answered a ping: a webhook that waits for its next one need not. */
export const pingSoon = async (trx: Sql, webhookId: string, now: number): Promise<void> => {
  await run(
    trx,
    `UPDATE webhook_recoveries SET due_at = ? WHERE webhook_id = ? AND lease IS NULL AND due_at > ? AND due_at < ?`,
    [now, webhookId, now, NEVER],
  )
}

/** When a webhook is pinged next, not before its endpoint wants it; null if it is not, or while it is not active. */
export const nextPingOf = (
  { recovered_at, given_up_at, answered_at, due_at }: HealingRow,
  { status, held_until }: { status: WebhookStatus; held_until: number | null },
): number | null =>
  recovered_at !== null || given_up_at !== null || answered_at !== null || status !== 'active'
    ? null
    : Math.max(Number(due_at), epochTimeOf(Number(held_until)))

/** For each webhook, a time of its healing: since when it has missed events, its next ping, or when it was healed. */
export const healingTimeOf = (
  what: 'missedSince' | 'nextPingAt' | 'recoveredAt',
): Extract<Field, { kind: 'derived' }> => ({
  kind: 'derived',
  load: async (source, webhookIds) => {
    const found = await rows<HealingRow & { status: WebhookStatus; held_until: number | null }>(
      source.connection,
      `SELECT r.*, w.status, w.held_until FROM webhook_recoveries r JOIN webhooks w ON w.id = r.webhook_id
       WHERE r.webhook_id IN (${marks(webhookIds)})`,
      webhookIds,
    )
    return new Map(
      found.flatMap((row): [string, string][] => {
        const times = {
          missedSince: row.recovered_at === null ? row.missed_since : null,
          nextPingAt: nextPingOf(row, row),
          recoveredAt: row.recovered_at,
        }
        const time = times[what]
        return time === null ? [] : [[row.webhook_id, toIso(Number(time))]]
      }),
    )
  },
})
