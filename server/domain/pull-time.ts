import type { WebhookTransport } from '../../shared/vocabulary.ts'
import { marks, rows, run, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'

// Pulled deliveries are rows of the queue like any other, on a scale of time of their own, far in the future: a claim
// of the delivery loop asks for what is due by now, and never finds them. Three scales in one column, `due_at`:
// - below PULL_TIME: to be sent at that time
// - from PULL_TIME: to be taken by a client from that time minus PULL_TIME on
// - from TAKEN_TIME: taken by a client, whose lease ends at that time minus TAKEN_TIME
//
// An active webhook with `transport: pull` has `held_until` on the second scale, at its beginning unless it asked to
// wait. So whoever finds one of its deliveries among those to send, such as a process of version 0.2 that has queued
// it, follows the rule for a webhook that is held: it does not send, and postpones the delivery to `held_until`. There
// it is due for clients.
//
// By the same rule a process of version 0.2 that was thought dead sends nothing unsigned: an active webhook whose
// requests carry more than the token has `held_until` on a scale of its own, from ASIDE_TIME on. Such a process moves
// the deliveries there, and `takeBack` makes them due again.

export const ASIDE_TIME = 2_000_000_000_000_000
export const PULL_TIME = 4_000_000_000_000_000
export const TAKEN_TIME = 6_000_000_000_000_000

/** The beginning of the scale of a webhook's deliveries. */
export const scaleOf = (transport: WebhookTransport): number => (transport === 'pull' ? PULL_TIME : 0)

/** What decides the scale of `webhooks.held_until`. */
type Holding = { transport: WebhookTransport; request_sealed: string | null }

/** `webhooks.held_until` of an active webhook that is held until a time, or for 0, that is not. */
export const holdOf = ({ transport, request_sealed }: Holding, untilMs = 0): number | null => {
  const scale = scaleOf(transport) || (request_sealed === null ? 0 : ASIDE_TIME)
  return scale + untilMs || null
}

/**
 * Until when a webhook is held, by its `held_until`; 0 if it is not. One that clients take from is held on the loop's
 * scale until PULL_TIME.
 */
export const heldUntilOf = (heldUntil: number | null): number =>
  heldUntil !== null && heldUntil >= ASIDE_TIME && heldUntil < PULL_TIME ? heldUntil - ASIDE_TIME : (heldUntil ?? 0)

/** The epoch milliseconds of a due time on any scale. */
export const epochTimeOf = (dueAt: number): number => dueAt % 2_000_000_000_000_000

/** Makes due what a process of an earlier version has put aside; returns the number. */
export const takeBack = async (sql: Sql, now: number, limit: number): Promise<number> => {
  const isAside = `due_at >= ${ASIDE_TIME} AND due_at < ${PULL_TIME}`
  const found = await rows<{ delivery_id: string }>(
    sql,
    `SELECT delivery_id FROM delivery_queue ${dialectOf(sql).useIndex('delivery_queue_by_due_time')}
     WHERE ${isAside} ORDER BY due_at LIMIT ?`,
    [limit],
  )
  if (found.length === 0) return 0
  const ids = found.map(row => row.delivery_id)
  await run(sql, `UPDATE delivery_queue SET due_at = ? WHERE delivery_id IN (${marks(ids)}) AND ${isAside}`, [
    now,
    ...ids,
  ])
  const pending = `status = 'pending' AND next_attempt_at >= ${ASIDE_TIME}`
  await run(sql, `UPDATE deliveries SET next_attempt_at = ? WHERE id IN (${marks(ids)}) AND ${pending}`, [now, ...ids])
  return ids.length
}
