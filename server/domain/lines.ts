import { createHash } from 'node:crypto'
import type { WebhookOrdering } from '../../shared/vocabulary.ts'
import { insertMany, marks, Overtaken, rows, run, type Sql } from '../database/connect.ts'
import { dialectOf, STATEMENT_LIMITS } from '../database/dialect.ts'
import { lockFree } from '../database/lock-free.ts'
import { PULL_TIME } from './pull-time.ts'

// Ordered deliveries: the deliveries of one project's events to one webhook with `ordering: project` form a line, in
// the order in which the events happened. Deliveries that `redeliver` queues are in no line.
//
// Invariants
// 1. A pending delivery that keeps an order has its line in `delivery_queue.line`, and a row in `ordered_deliveries`,
//    until it ends. Both are written in the transaction that queues it, and deleted in the one that ends it.
// 2. In a line that is not empty, one delivery has the turn and the others wait: their queue rows are never due, so
//    that claims need not know of lines. The transaction that ends a delivery passes the turn to the earliest that
//    waits. Only deliveries that were pending before the webhook was given an order share the turn.
// 3. A change of a line locks its row in `delivery_lines` and writes it, so that two changes are serial even on
//    engines whose locking reads lock nothing.
// 4. An event gets its time while its lines are locked, later than any before in them: in a line, the order of events
//    is the order of the commits.

/** The due time of deliveries that wait for their turn: never. It is the latest time of a JavaScript Date. */
export const NEVER = 8_640_000_000_000_000

/** The part of a webhook that its lines need, locked until the transaction ends. */
export type OrderedWebhook = { id: string; ordering: WebhookOrdering; ordered_since: number }

/** The part of a queue row that its line needs. */
export type InLine = { delivery_id: string; line: string | null; due_at: number }

type Line = { id: string; webhook: OrderedWebhook; projectId: string }

/** The lines that a transaction has locked, by id, and whether a delivery in each has the turn. */
export type LockedLines = Map<string, { id: string; isTaken: boolean }>

/** The line of a delivery that is being queued, and whether it waits for its turn. */
type Standing = { line: string | null; waits: boolean }

const ROWS_A_STATEMENT = 500
/** The most by which a delivery queued before a change of its webhook may have a later time. */
const CLOCKS_APART_MS = 1_000

const lineOf = (webhookId: string, projectId: string): string =>
  createHash('sha256').update(`${webhookId} ${projectId}`).digest('base64url')

/**
 * Locks the lines of webhooks and projects for new deliveries, and waits for other holders. A webhook without an order
 * has none.
 *
 * @param now called when the lines are locked
 * @returns the lines by id, and the time of an event for all of them: now, or after their last event
 */
export const lockLines = async (
  trx: Sql,
  wanted: { webhook: OrderedWebhook; projectId: string | null }[],
  now: () => number,
): Promise<{ lines: LockedLines; time: number }> => {
  const lines = new Map<string, Line>()
  for (const { webhook, projectId } of wanted) {
    if (webhook.ordering === 'none' || projectId === null) continue
    const id = lineOf(webhook.id, projectId)
    lines.set(id, { id, webhook, projectId })
  }
  // Every transaction locks them in the same order.
  const sorted = [...lines.values()].toSorted((a, b) => (a.id < b.id ? -1 : 1))
  const locked: LockedLines = new Map()
  let time = 0
  for (let from = 0; from < sorted.length; from += ROWS_A_STATEMENT) {
    for (const found of await lock(trx, sorted.slice(from, from + ROWS_A_STATEMENT))) {
      time = Math.max(time, found.used_at + 1)
      const line = lines.get(found.id)!
      const isAdopted = found.ordered_since !== line.webhook.ordered_since && (await adopt(trx, line))
      locked.set(found.id, { id: found.id, isTaken: found.is_taken === 1 || isAdopted })
    }
  }
  time = Math.max(time, now())
  for (const part of partsOf(sorted.map(({ id }) => id))) {
    await run(trx, `UPDATE delivery_lines SET used_at = ? WHERE id IN (${marks(part)})`, [time, ...part])
  }
  return { lines: locked, time }
}

type LineRow = { id: string; ordered_since: number; used_at: number; is_taken: number }

const lock = async (trx: Sql, lines: Line[]): Promise<LineRow[]> => {
  await run(
    trx,
    `INSERT INTO delivery_lines (id, webhook_id, project_id) VALUES ${lines.map(() => '(?, ?, ?)').join(', ')}
     ${dialectOf(trx).onDuplicate(['id'])} changes = changes + 1`,
    lines.flatMap(({ id, webhook, projectId }) => [id, webhook.id, projectId]),
  )
  return rows(
    trx,
    `SELECT l.id, l.ordered_since, l.used_at,
       CASE WHEN EXISTS (SELECT 1 FROM ordered_deliveries o WHERE o.line = l.id) THEN 1 ELSE 0 END AS is_taken
     FROM delivery_lines l WHERE l.id IN (${marks(lines)})`,
    lines.map(({ id }) => id),
  )
}

/**
 * Adds to a line the deliveries of its project that were pending when the webhook was given an order. They stay as they
 * are, and later ones wait for them. Returns whether there are any.
 */
const adopt = async (trx: Sql, { id, webhook, projectId }: Line): Promise<boolean> => {
  const { useIndex, forUpdate } = dialectOf(trx)
  const pending = await rows<{ delivery_id: string; event_id: string; event_at: number }>(
    trx,
    `SELECT d.id AS delivery_id, e.id AS event_id, e.created_at AS event_at
     FROM events e ${useIndex('events_by_project')}
     JOIN deliveries d ${useIndex('deliveries_by_event')} ON d.event_id = e.id
     WHERE e.project_id = ? AND d.webhook_id = ? AND d.status = 'pending' AND d.created_at <= ?`,
    [projectId, webhook.id, webhook.ordered_since + CLOCKS_APART_MS],
  )
  let adopted = 0
  for (const part of partsOf(pending)) {
    const ids = part.map(row => row.delivery_id)
    const still = await rows<{ delivery_id: string }>(
      trx,
      `SELECT delivery_id FROM delivery_queue WHERE delivery_id IN (${marks(ids)}) AND line IS NULL
       ORDER BY delivery_id${forUpdate}`,
      ids,
    )
    if (still.length === 0) continue
    const found = still.map(row => row.delivery_id)
    await run(trx, `UPDATE delivery_queue SET line = ? WHERE delivery_id IN (${marks(found)})`, [id, ...found])
    const free = new Set(found)
    const entering = part.filter(row => free.has(row.delivery_id)).map(row => ({ ...row, line: id, waits: 0 }))
    await insertMany(trx, 'ordered_deliveries', entering)
    adopted += found.length
  }
  await run(trx, 'UPDATE delivery_lines SET ordered_since = ? WHERE id = ?', [webhook.ordered_since, id])
  return adopted > 0
}

/** A delivery that is being queued. */
type Entering = {
  id: string
  webhook: { id: string }
  event: { id: string; createdAt: number; projectId: string | null }
}

/** Adds deliveries to their lines, in the order of their events. */
export const enterLines = async <One extends Entering>(
  trx: Sql,
  lines: LockedLines,
  deliveries: One[],
): Promise<(One & Standing)[]> => {
  if (lines.size === 0) return deliveries.map(delivery => ({ ...delivery, line: null, waits: false }))
  const sorted = deliveries.toSorted(
    ({ event: a }, { event: b }) => a.createdAt - b.createdAt || (a.id < b.id ? -1 : 1),
  )
  const standing = sorted.map(delivery => ({ ...delivery, ...standIn(lines, delivery) }))
  const entered = standing.flatMap(({ id, line, waits, event }) =>
    line === null ? [] : { delivery_id: id, line, waits: waits ? 1 : 0, event_at: event.createdAt, event_id: event.id },
  )
  await insertMany(trx, 'ordered_deliveries', entered)
  return standing
}

const standIn = (lines: LockedLines, { webhook, event }: Entering): Standing => {
  const line = event.projectId === null ? undefined : lines.get(lineOf(webhook.id, event.projectId))
  if (!line) return { line: null, waits: false }
  const waits = line.isTaken
  line.isTaken = true
  return { line: line.id, waits }
}

/**
 * Locks the lines of rows that are about to end, skipping lines that another transaction has locked.
 *
 * @returns the rows in no line, or in one that is locked now
 */
export const inLockedLines = async <Row extends InLine>(trx: Sql, ending: Row[]): Promise<Row[]> => {
  const ids = [...new Set(ending.flatMap(row => row.line ?? []))].toSorted()
  if (ids.length === 0) return ending
  const select = (keys: string) => `SELECT id FROM delivery_lines WHERE id IN (${keys}) ORDER BY id`
  const locked = await lockFree<{ id: string }>(trx, ids, select)
  const free = new Set(locked.map(({ id }) => id))
  return ending.filter(({ line }) => line === null || free.has(line))
}

/**
 * Locks the lines of some queued deliveries, and waits for other holders. A line that transactions queue up for is
 * never free for one that skips it.
 *
 * @returns the deliveries that were queued
 */
export const waitForLines = async (trx: Sql, deliveryIds: string[]): Promise<Set<string>> => {
  const found = await rows<{ delivery_id: string; line: string | null }>(
    trx,
    `SELECT delivery_id, line FROM delivery_queue WHERE delivery_id IN (${marks(deliveryIds)})`,
    deliveryIds,
  )
  const queued = new Set(found.map(row => row.delivery_id))
  const ids = [...new Set(found.flatMap(({ line }) => line ?? []))].toSorted()
  if (ids.length === 0) return queued
  const select = `SELECT id FROM delivery_lines WHERE id IN (${marks(ids)}) ORDER BY id`
  await rows(trx, select + dialectOf(trx).forUpdate, ids)
  return queued
}

/** Removes ended deliveries from lines that this transaction has locked, and passes their turns on. */
export const leaveLines = async (trx: Sql, ended: InLine[], now: number): Promise<void> => {
  const left = ended.filter(({ line }) => line !== null)
  if (left.length === 0) return
  const ids = left.map(row => row.delivery_id)
  await run(trx, `DELETE FROM ordered_deliveries WHERE delivery_id IN (${marks(ids)})`, ids)
  const lines = [...new Set(left.map(({ line }) => line!))]
  await run(trx, `UPDATE delivery_lines SET changes = changes + 1 WHERE id IN (${marks(lines)})`, lines)
  const first = await firstOf(trx, lines)
  if (first.length === 0) return
  // A line belongs to one webhook: if one of its deliveries was on the scale of clients, the next one is. Otherwise
  // the loop finds it, and moves it there.
  const pulled = new Set(left.filter(row => row.due_at >= PULL_TIME && row.due_at < NEVER).map(({ line }) => line))
  for (const [scale, own] of Map.groupBy(first, ({ line }) => (pulled.has(line) ? PULL_TIME : 0))) {
    const ids = own.map(row => row.delivery_id)
    const given = await run(
      trx,
      `UPDATE delivery_queue SET due_at = ? WHERE delivery_id IN (${marks(ids)}) AND due_at = ${NEVER}`,
      [scale + now, ...ids],
    )
    if (given < ids.length) throw new Overtaken()
  }
  const next = first.map(row => row.delivery_id)
  await run(trx, `UPDATE ordered_deliveries SET waits = 0 WHERE delivery_id IN (${marks(next)})`, next)
  await run(trx, `UPDATE deliveries SET next_attempt_at = ? WHERE id IN (${marks(next)})`, [now, ...next])
}

/**
 * The first waiting delivery of each line in which no delivery has the turn.
 *
 * Rows read for 20 lines of 5,000 that wait: 20, one of each line. ROW_NUMBER() over the same lines: 100,023 on MySQL
 * 9.7, and 694,003 on MariaDB 10.11.
 */
const firstOf = async (trx: Sql, lines: string[]): Promise<{ delivery_id: string; line: string }[]> => {
  const first = dialectOf(trx).member(
    `SELECT delivery_id, line, waits FROM ordered_deliveries ${dialectOf(trx).useIndex('ordered_deliveries_by_line')}
     WHERE line = ? ORDER BY waits, event_at, event_id LIMIT 1`,
  )
  const found: { delivery_id: string; line: string; waits: number }[] = []
  for (const part of partsOf(lines, STATEMENT_LIMITS.selects)) {
    found.push(...(await rows<(typeof found)[number]>(trx, part.map(() => first).join(' UNION ALL '), part)))
  }
  return found.filter(({ waits }) => waits === 1)
}

const partsOf = <T>(all: T[], size = ROWS_A_STATEMENT): T[][] =>
  Array.from({ length: Math.ceil(all.length / size) }, (_, n) => all.slice(n * size, (n + 1) * size))

/** Deletes lines that have been empty since a time; returns their number. */
export const deleteIdleLines = async (sql: Sql, before: number, limit: number): Promise<number> => {
  const idle = await rows<{ id: string }>(
    sql,
    `SELECT l.id FROM delivery_lines l ${dialectOf(sql).useIndex('delivery_lines_by_use')} WHERE l.used_at < ?
     AND NOT EXISTS (SELECT 1 FROM ordered_deliveries o WHERE o.line = l.id) LIMIT ?`,
    [before, limit],
  )
  if (idle.length === 0) return 0
  // A delivery that joins a line meanwhile updates its time of use.
  return run(sql, `DELETE FROM delivery_lines WHERE id IN (${marks(idle)}) AND used_at < ?`, [
    ...idle.map(({ id }) => id),
    before,
  ])
}
