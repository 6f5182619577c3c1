import { TidingsError } from '../../shared/errors.ts'
import type { EventType } from '../../shared/vocabulary.ts'
import type { Clock } from '../clock.ts'
import { type Database, rows, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import type { Change } from './change.ts'
import { enqueue } from './deliveries.ts'
import type { AccessToken } from './permissions.ts'
import { type DeliveryRow, deliveries, events, type WebhookRow } from './resources.ts'
import { requireVisible, visibleTo } from './visibility.ts'

/** Events of one transaction of a recovery. */
const BATCH = 500
/** A recovery that takes longer answers with where to go on. */
const BUDGET_MS = 15_000

/**
 * What a recovery has done: how many deliveries that the caller sees it has queued. `resumeSince` is null when it is
 * complete.
 */
export type Recovery = { webhookId: string; queued: number; resumeSince: number | null }

/** Sends the event of a delivery to its webhook again, as a delivery of its own. */
export const redeliver = async ({ trx, token, now }: Change, deliveryId: string): Promise<string> => {
  const [found] = await requireVisible<DeliveryRow>(trx, token, deliveries, [deliveryId])
  const delivery = found!
  const [webhook] = await rows<WebhookRow>(trx, `SELECT * FROM webhooks WHERE id = ?${dialectOf(trx).forShare}`, [
    delivery.webhook_id,
  ])
  requireActive(webhook!)
  const event = { id: delivery.event_id, type: delivery.event_type }
  const [id] = await enqueue(trx, [{ event, webhook: webhook! }], now)
  return id!
}

/**
 * Queues every event since a time that a webhook should have had, and has neither acknowledged nor pending. A page a
 * transaction, each under the webhook's lock: two recoveries at once queue nothing twice, and one that is cut short has
 * queued what it did, and finds the rest when it is made again.
 */
export const recoverDeliveries = async (
  database: Database,
  clock: Clock,
  token: AccessToken,
  webhookId: string,
  { since, until }: { since: number; until: number | undefined },
  onQueued: () => void,
): Promise<Recovery> => {
  const end = until ?? clock.now()
  const deadline = performance.now() + BUDGET_MS
  let queued = 0
  let after = { time: since, id: '' }
  while (true) {
    const page = await database.transaction(async trx => {
      const [webhook] = await rows<WebhookRow>(trx, `SELECT * FROM webhooks WHERE id = ?${dialectOf(trx).forUpdate}`, [
        webhookId,
      ])
      requireActive(webhook!)
      const from = {
        time: Math.max(after.time, webhook!.created_at),
        id: after.time >= webhook!.created_at ? after.id : '',
      }
      const missed = await rows<{ id: string; type: EventType; created_at: number }>(trx, MISSED, [
        from.time,
        from.time,
        from.id,
        end,
        webhookId,
        BATCH,
      ])
      await enqueue(
        trx,
        missed.map(event => ({ event, webhook: webhook! })),
        clock.now(),
      )
      return { missed, seen: await countSeen(trx, token, missed) }
    })
    queued += page.seen
    if (page.missed.length > 0) onQueued()
    if (page.missed.length < BATCH) return { webhookId, queued, resumeSince: null }
    const last = page.missed.at(-1)!
    after = { time: last.created_at, id: last.id }
    if (performance.now() > deadline) return { webhookId, queued, resumeSince: last.created_at }
  }
}

/** An admin who sees some organisations may recover any webhook, and is not told by it what happened in the others. */
const countSeen = async (sql: Sql, token: AccessToken, missed: { id: string }[]): Promise<number> => {
  if (token.seesAllOrganisations) return missed.length
  const ids = missed.map(event => event.id)
  const [found] = await sql('events').whereIn('events.id', ids).modify(visibleTo(token)(events)).count({ seen: '*' })
  return Number(found!.seen)
}

const requireActive = ({ id, status }: WebhookRow): void => {
  if (status === 'active') return
  throw new TidingsError('CONFLICT', `The webhook is ${status}. Set its status to active first.`, {
    webhookId: id,
    status,
  })
}

/** The same rules as for a new event (webhooksFor), asked the other way round: of one webhook, which events. */
const MISSED = `
  SELECT e.id, e.type, e.created_at FROM events e
  JOIN webhooks w ON 1 = 1
  JOIN access_tokens t ON t.id = w.access_token_id
  WHERE (e.created_at > ? OR (e.created_at = ? AND e.id > ?)) AND e.created_at <= ?
    AND w.id = ?
    AND e.type <> 'ping'
    AND (w.all_events = 1
      OR EXISTS (SELECT 1 FROM webhook_events we WHERE we.webhook_id = w.id AND we.event_type = e.type))
    AND (w.all_organisations_and_projects = 1
      OR EXISTS (SELECT 1 FROM webhook_organisations wo WHERE wo.webhook_id = w.id AND (
        e.all_organisations = 1 OR wo.organisation_id = e.organisation_id
        OR EXISTS (SELECT 1 FROM event_organisations eo
          WHERE eo.event_id = e.id AND eo.organisation_id = wo.organisation_id)))
      OR EXISTS (SELECT 1 FROM webhook_projects wp WHERE wp.webhook_id = w.id AND wp.project_id = e.project_id))
    AND (t.sees_all_organisations = 1
      OR EXISTS (SELECT 1 FROM access_token_organisations s WHERE s.access_token_id = t.id AND (
        e.all_organisations = 1 OR s.organisation_id = e.organisation_id
        OR EXISTS (SELECT 1 FROM event_organisations eo
          WHERE eo.event_id = e.id AND eo.organisation_id = s.organisation_id))))
    AND NOT EXISTS (SELECT 1 FROM deliveries d
      WHERE d.event_id = e.id AND d.webhook_id = w.id AND d.status IN ('delivered', 'pending'))
  ORDER BY e.created_at, e.id LIMIT ?`
