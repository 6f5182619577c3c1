import { notFound, TidingsError } from '../../shared/errors.ts'
import type { EventType } from '../../shared/vocabulary.ts'
import type { Clock } from '../clock.ts'
import { type Database, marks, partOfMany, rows, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import type { Change } from './change.ts'
import { enqueue, enqueueRecovered, type PastEvent } from './deliveries.ts'
import { SHOULD_HAVE } from './matching.ts'
import type { AccessToken } from './permissions.ts'
import { type DeliveryRow, deliveries, events, type WebhookRow } from './resources.ts'
import { sweepUntil } from './sweep.ts'
import { requireVisible, visibleRow, visibleTo } from './visibility.ts'
import { lockActive, requireWebhook } from './webhooks.ts'

/**
 * The events that one transaction of a recovery queues, and those that it looks at. Meanwhile it locks the webhook, and
 * on an embedded engine it blocks the process, for a few tens of milliseconds.
 */
const PAGES = { server: { batch: 500, window: 5_000 }, embedded: { batch: 50, window: 500 } }
/** The most by which an event that another process wrote before the recovery began may have a later time. */
export const CLOCKS_APART_MS = 1_000
/** A recovery that takes longer stops and returns where to continue. */
const BUDGET_MS = 15_000

/**
 * The progress of a recovery of the events up to `end`: it has come to `after`, and has queued `queued` deliveries that
 * the caller sees.
 */
export type Recovery = {
  webhookId: string
  queued: number
  after: { time: number; id: string }
  end: number
  isComplete: boolean
}

type Transact = <T>(work: (change: Change) => Promise<T>) => Promise<T>

/** Sends the event of a delivery to its webhook again, as a new delivery. Throws NOT_FOUND or CONFLICT. */
export const redeliver = async (change: Change, deliveryId: string): Promise<string> => {
  const { trx, token, now } = change
  const delivery = await visibleRow<DeliveryRow>(trx, token, deliveries, deliveryId)
  const webhook = await lockActive(change, delivery.webhook_id)
  const event = { id: delivery.event_id, type: delivery.event_type }
  const isThere = (await lockEvents(trx, [event])).length > 0
  // If the webhook may no longer receive the event, or the event was purged, the delivery is now out of sight.
  if (!isThere) throw notFound('delivery', [deliveryId])
  await requireVisible(trx, token, deliveries, [deliveryId])
  const [id] = await enqueue(trx, [{ event, webhook }], now())
  return id!
}

/** Those of these events that still exist, locked so that they are not purged before they are queued. */
export const lockEvents = async (trx: Sql, events: { id: string }[]): Promise<PastEvent[]> => {
  const { forShare } = dialectOf(trx)
  if (events.length === 0) return []
  const found = await rows<{ id: string; type: EventType; created_at: number; project_id: string | null }>(
    trx,
    `SELECT id, type, created_at, project_id FROM events WHERE id IN (${marks(events)}) ORDER BY id${forShare}`,
    events.map(event => event.id),
  )
  return found.map(({ created_at, project_id, ...event }) => ({
    ...event,
    createdAt: created_at,
    projectId: project_id,
  }))
}

/**
 * Queues every event since a time that a webhook should have received and that is neither acknowledged, nor handled
 * before, nor pending. Each page is one transaction under the webhook's lock: two concurrent recoveries queue nothing
 * twice, and an interrupted one finds the rest when it is repeated. With `dryRun` nothing is queued, and the result is
 * the number that would be. Throws NOT_FOUND or CONFLICT.
 *
 * @param earlier earlier progress, from which it continues
 */
export const recoverDeliveries = async (
  { database, clock, change, look }: { database: Database; clock: Clock; change: Transact; look: Transact },
  webhookId: string,
  { since, until, dryRun = false }: { since: number; until: number | undefined; dryRun?: boolean | undefined },
  earlier?: Recovery,
): Promise<Recovery> => {
  const deadline = performance.now() + BUDGET_MS
  const nothing = { webhookId, queued: 0, after: { time: since, id: '' }, isComplete: false }
  let recovery = earlier ?? { ...nothing, end: until ?? clock.now() + CLOCKS_APART_MS }
  await look(({ trx, token }) => requireWebhook(trx, token, webhookId))
  // Deliveries of a past epoch that are still pending count as missed once they are cancelled.
  if (!(await sweepUntil(database, clock, webhookId, deadline))) return recovery
  for (let hasBegun = earlier !== undefined; !recovery.isComplete; hasBegun = true) {
    const soFar = recovery
    try {
      recovery = await partOfMany(() =>
        dryRun ? look(within => countPage(within, soFar)) : change(within => recoverPage(within, soFar)),
      )
    } catch (error) {
      // Queued deliveries stay queued: the result says where to continue.
      if (hasBegun && error instanceof TidingsError && error.code === 'UNAVAILABLE') break
      throw error
    }
    if (performance.now() > deadline) break
  }
  return recovery
}

const pageOf = (sql: Sql) => (dialectOf(sql).isEmbedded ? PAGES.embedded : PAGES.server)

/** Queues the next page of a recovery, and returns its progress. */
const recoverPage = async (within: Change, { webhookId, queued, after, end }: Recovery): Promise<Recovery> => {
  const { trx, token } = within
  const webhook = await lockActive(within, webhookId, 'forUpdate')
  const { events, ...progress } = await queueMissed(trx, webhook, { after, end }, within.now)
  return { webhookId, queued: queued + (await countSeen(trx, token, events)), end, ...progress }
}

/** Counts the next page of a recovery, and returns its progress. */
const countPage = async (within: Change, { webhookId, queued, after, end }: Recovery): Promise<Recovery> => {
  const { trx, token } = within
  const { missed, ...progress } = await missedFrom(trx, await lockActive(within, webhookId), { after, end })
  return { webhookId, queued: queued + (await countSeen(trx, token, missed)), end, ...progress }
}

/** The next page of what a webhook has missed, and the progress that it makes. */
export type MissedPage = Pick<Recovery, 'after' | 'isComplete'> & { events: PastEvent[] }

/**
 * Queues the next page of the events after a position and up to `end` that a webhook should have received and that are
 * neither acknowledged, nor handled before, nor pending. The transaction has locked the webhook, which is active.
 *
 * @param most if fewer than a page
 */
export const queueMissed = async (
  trx: Sql,
  webhook: WebhookRow,
  { after, end }: Pick<Recovery, 'after' | 'end'>,
  now: () => number,
  most = Number.POSITIVE_INFINITY,
): Promise<MissedPage> => {
  const { missed, ...progress } = await missedFrom(trx, webhook, { after, end }, most)
  const there = await lockEvents(trx, missed)
  await enqueueRecovered(trx, there, webhook, now)
  return { events: there, ...progress }
}

/** Finds that page, and does nothing about it. */
const missedFrom = async (
  trx: Sql,
  webhook: WebhookRow,
  { after, end }: Pick<Recovery, 'after' | 'end'>,
  most = Number.POSITIVE_INFINITY,
): Promise<Pick<Recovery, 'after' | 'isComplete'> & { missed: { id: string }[] }> => {
  const from = {
    time: Math.max(after.time, webhook.created_at),
    id: after.time >= webhook.created_at ? after.id : '',
  }
  const { batch: page, window } = pageOf(trx)
  const batch = Math.min(page, most)
  const edge = await edgeOf(trx, from, end, window)
  const missed = await rows<{ id: string; created_at: number }>(trx, missedOf(trx), [
    from.time,
    from.time,
    from.id,
    edge.time,
    edge.time,
    edge.id,
    webhook.id,
    batch,
  ])
  const last = missed.at(-1)
  const isLooked = missed.length < batch
  return {
    missed,
    after: isLooked ? { time: edge.time, id: edge.id } : { time: last!.created_at, id: last!.id },
    isComplete: isLooked && edge.isLast,
  }
}

/** A limited admin may recover any webhook that it sees, but must not learn what happened in other organisations. */
const countSeen = async (sql: Sql, token: AccessToken, missed: { id: string }[]): Promise<number> => {
  if (token.seesAllOrganisations) return missed.length
  const ids = missed.map(event => event.id)
  const [found] = await sql('events').whereIn('events.id', ids).modify(visibleTo(token)(events)).count({ seen: '*' })
  return Number(found!.seen)
}

/** A position in the order of events. */
type Mark = { time: number; id: string }

/** The last of the events after `from` that one transaction looks at, or else `end`, with all events of that time. */
const edgeOf = async (trx: Sql, from: Mark, end: number, window: number): Promise<Mark & { isLast: boolean }> => {
  const [last] = await rows<{ created_at: number; id: string }>(
    trx,
    `SELECT e.created_at, e.id FROM events e ${dialectOf(trx).useIndex('events_by_time')}
     WHERE ${AFTER} AND e.created_at <= ? ORDER BY e.created_at, e.id LIMIT 1 OFFSET ${window - 1}`,
    [from.time, from.time, from.id, end],
  )
  return last ? { time: last.created_at, id: last.id, isLast: false } : { time: end, id: LAST_ID, isLast: true }
}

/** Sorts after every id. */
const LAST_ID = 'g'
const AFTER = 'e.created_at >= ? AND (e.created_at > ? OR e.id > ?)'

/** SQL: whether a delivery `d` leaves nothing to send: its event was acknowledged, or handled before, or is pending. */
export const LEAVES_NOTHING = "(d.status IN ('delivered', 'pending') OR d.handled_before = 1)"

/**
 * The events that a webhook should have and has no delivery of.
 *
 * Rows read for a page of 1,000 among 100,000 events with five deliveries each, and for all of them at once:
 * - this join: 2,050 and 204,004 on MySQL 9.7 and on MariaDB 10.11, two of each event
 * - NOT EXISTS or NOT IN: 2,050 and 299,005 on MySQL; 2,250 and 204,204 on MariaDB
 * - the join without the indexes' names: the same, on MariaDB also without statistics; the names leave nothing to them
 */
const missedOf = (trx: Sql): string => `
  SELECT e.id, e.created_at FROM events e ${dialectOf(trx).useIndex('events_by_time')}
  JOIN webhooks w ON 1 = 1
  JOIN access_tokens t ON t.id = w.access_token_id
  LEFT JOIN deliveries d ${dialectOf(trx).useIndex('deliveries_by_event')}
    ON d.event_id = e.id AND d.webhook_id = w.id AND ${LEAVES_NOTHING}
  WHERE ${AFTER} AND e.created_at <= ? AND (e.created_at < ? OR e.id <= ?)
    AND w.id = ?
    AND ${SHOULD_HAVE}
    AND d.id IS NULL
  ORDER BY e.created_at, e.id LIMIT ?`
