import { type Database, rows, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { GIVE_UP_MS, type HealingRow, type Missed, noteMissed } from './missed.ts'
import { LEAVES_NOTHING } from './recovery.ts'
import { isOnDemand } from './sight.ts'

// A process of version 0.2 that was frozen, and thought dead when a webhook was set to heal itself, may wake and drop
// one of its deliveries. It notes nothing. So what was dropped lately is compared with what is noted.

/** Webhooks of one look, which on an embedded engine blocks the process. */
const PAGE = { server: 20, embedded: 1 }
/** What a look covers. It is far more than the pause between two, since a process may freeze before it commits. */
const LATELY_MS = 60 * 60_000

type Known = Pick<HealingRow, 'missed_since' | 'answered_at' | 'again_since' | 'recovered_at' | 'given_up_at'>
type Row = { id: string; automatic_since: number } & (Known | { [column in keyof Known]: null })

/** A position in the order of the webhooks that heal themselves. */
export type Position = { since: number; id: string }

/**
 * Notes what some webhooks have missed lately that nobody has noted, as the transaction of the drop would have.
 *
 * @returns the last of these webhooks; undefined if there was none
 */
export const noteUnnoted = async (
  { knex, transaction }: Pick<Database, 'knex' | 'transaction'>,
  after: Position,
  now: number,
): Promise<Position | undefined> => {
  const found = await rows<Row>(
    knex,
    `SELECT w.id, w.automatic_since, r.missed_since, r.answered_at, r.again_since, r.recovered_at, r.given_up_at
     FROM webhooks w ${dialectOf(knex).useIndex('webhooks_by_automatic_since')}
     LEFT JOIN webhook_recoveries r ON r.webhook_id = w.id
     WHERE w.automatic_since >= ? AND (w.automatic_since > ? OR w.id > ?) AND w.deleted_at IS NULL
     ORDER BY w.automatic_since, w.id LIMIT ?`,
    [after.since, after.since, after.id, dialectOf(knex).isEmbedded ? PAGE.embedded : PAGE.server],
  )
  const last = found.at(-1)
  if (last === undefined) return undefined
  const missed: Missed[] = []
  for (const span of found.flatMap(spansOf)) {
    const earliest = await earliestOf(knex, span, now)
    if (earliest) missed.push(earliest)
  }
  if (missed.length > 0) await transaction(trx => noteMissed(trx, missed, now))
  return { since: Number(last.automatic_since), id: last.id }
}

/** Drops from a time on, of events from before a time, that are not noted. */
type Span = { webhookId: string; droppedFrom: number; before: number }

const spansOf = (row: Row): Span[] => {
  const any = { webhookId: row.id, droppedFrom: Number(row.automatic_since), before: Number.MAX_SAFE_INTEGER }
  if (row.missed_since === null) return [any]
  // It begins anew with the first drop after an acknowledgement.
  if (row.given_up_at !== null) return []
  const earlier = { ...any, before: Number(row.missed_since) }
  if (row.answered_at === null) return [earlier]
  const sinceAnswer = { ...any, droppedFrom: Math.max(any.droppedFrom, Number(row.answered_at) + 1) }
  if (row.recovered_at !== null) return [sinceAnswer]
  return [earlier, { ...sinceAnswer, before: Number(row.again_since ?? any.before) }]
}

/** The earliest event of a span that was missed and is young enough to be sent again by itself. */
const earliestOf = async (
  sql: Sql,
  { webhookId, droppedFrom, before }: Span,
  now: number,
): Promise<Missed | undefined> => {
  const { joinInOrder, useIndex } = dialectOf(sql)
  const [earliest] = await rows<{ id: string; created_at: number }>(
    sql,
    `SELECT e.id, e.created_at FROM deliveries dropped ${useIndex('deliveries_by_webhook')}
     ${joinInOrder} events e ON e.id = dropped.event_id
     LEFT JOIN deliveries d ${useIndex('deliveries_by_event')}
       ON d.event_id = e.id AND d.webhook_id = dropped.webhook_id AND ${LEAVES_NOTHING}
     WHERE dropped.webhook_id = ? AND dropped.status = 'dropped' AND dropped.finished_at >= ?
       AND e.created_at >= ? AND e.created_at < ? AND NOT ${isOnDemand('e')} AND d.id IS NULL
     ORDER BY e.created_at LIMIT 1`,
    [webhookId, Math.max(droppedFrom, now - LATELY_MS), now - GIVE_UP_MS, before],
  )
  return earliest && { webhookId, eventId: earliest.id, eventTime: Number(earliest.created_at) }
}
