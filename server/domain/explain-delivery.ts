import { notFound } from '../../shared/errors.ts'
import { rows, type Sql } from '../database/connect.ts'
import type { Facts } from './explain-facts.ts'
import { reasonsFor } from './explain-reasons.ts'
import type { Explained } from './explain-words.ts'
import { heals } from './healing.ts'
import { NEVER } from './lines.ts'
import { CONDITIONS } from './matching.ts'
import type { HealingRow } from './missed.ts'
import { type AccessToken, may } from './permissions.ts'
import { epochTimeOf } from './pull-time.ts'
import {
  type AttemptRow,
  type DeliveryRow,
  deliveries,
  type Entity,
  type EventRow,
  events,
  organisations,
  projects,
  type WebhookRow,
  webhooks,
} from './resources.ts'
import { visibleRow, visibleTo } from './visibility.ts'
import { turnsOf } from './waits-for.ts'

/**
 * Why an event did or did not go to a webhook: the facts of both, as a caller sees them, and the reasons that follow
 * (`explain-reasons.ts`). Whether the webhook should have had the event is decided by the conditions that matching and
 * recovery use.
 *
 * @throws NOT_FOUND for a webhook or an event that the token does not see
 */
export const explainDelivery = async (
  sql: Sql,
  token: AccessToken,
  { webhookId, eventId }: { webhookId: string; eventId: string },
  now: number,
): Promise<Explained & { delivery: DeliveryRow | null }> => {
  const webhook = await webhookOf(sql, token, webhookId)
  const event = await visibleRow<EventRow>(sql, token, events, eventId)
  const sent = await sentOf(sql, token, { webhookId, eventId })
  const last = sent.at(-1)
  const facts: Facts = {
    webhook,
    event,
    conditions: await conditionsOf(sql, webhookId, eventId),
    types: await typesOf(sql, webhookId),
    chosen: await chosenOf(sql, token, webhookId),
    sent,
    attempts: last === undefined ? [] : await attemptsOf(sql, last.id),
    queued: last?.status === 'pending' ? await queuedOf(sql, last.id) : undefined,
    healing: heals(webhook) ? await healingOf(sql, webhookId) : undefined,
    turnOf:
      last?.status === 'pending'
        ? (await turnsOf(sql, [last.id], visibleTo(token)(deliveries))).get(last.id)
        : undefined,
    // Only who may read the audit log is told what it says.
    ender:
      last?.status === 'cancelled' && may(token, 'admin') && token.seesAllOrganisations
        ? await enderOf(sql, webhookId, last.finished_at)
        : undefined,
    around: last === undefined ? await aroundOf(sql, token, webhookId, event.created_at) : {},
    now,
  }
  return { ...reasonsFor(facts), delivery: last ?? null }
}

/** A deleted webhook too, which is in no list: its deliveries lead to it. */
const webhookOf = async (sql: Sql, token: AccessToken, id: string): Promise<WebhookRow> => {
  const query = sql('webhooks').select('webhooks.*').where('webhooks.id', id)
  const found: WebhookRow | undefined = await query.modify(visibleTo(token)(webhooks)).first()
  if (!found) throw notFound(webhooks.singular, [id])
  return found
}

/** The deliveries of the event to the webhook that the token sees, oldest first. */
const sentOf = async (
  sql: Sql,
  token: AccessToken,
  { webhookId, eventId }: { webhookId: string; eventId: string },
): Promise<DeliveryRow[]> =>
  sql('deliveries')
    .select('deliveries.*')
    .where({ 'deliveries.event_id': eventId, 'deliveries.webhook_id': webhookId })
    .modify(visibleTo(token)(deliveries))
    .orderBy([{ column: 'deliveries.created_at' }, { column: 'deliveries.id' }])

/** Each condition of `matching.ts` by itself. */
const conditionsOf = async (sql: Sql, webhookId: string, eventId: string): Promise<Facts['conditions']> => {
  const columns = Object.entries(CONDITIONS).map(
    ([name, condition]) => `CASE WHEN ${condition} THEN 1 ELSE 0 END AS ${name}`,
  )
  const [found] = await rows<Record<keyof typeof CONDITIONS, number>>(
    sql,
    `SELECT ${columns.join(', ')} FROM webhooks w JOIN access_tokens t ON t.id = w.access_token_id
     JOIN events e ON e.id = ? WHERE w.id = ?`,
    [eventId, webhookId],
  )
  return Object.fromEntries(
    Object.keys(CONDITIONS).map(name => [name, Number(found?.[name as keyof typeof CONDITIONS]) === 1]),
  ) as Facts['conditions']
}

const typesOf = async (sql: Sql, webhookId: string): Promise<string[]> =>
  sql('webhook_events').where('webhook_id', webhookId).orderBy('event_type').pluck('event_type')

const chosenOf = async (sql: Sql, token: AccessToken, webhookId: string): Promise<Facts['chosen']> => {
  const named = async (resource: Entity, choices: string, column: string) => {
    const all: string[] = await sql(choices).where('webhook_id', webhookId).orderBy(column).pluck(column)
    const seen: string[] = await sql(resource.table)
      .whereIn(`${resource.table}.id`, sql(choices).select(column).where('webhook_id', webhookId))
      .modify(visibleTo(token)(resource))
      .pluck(`${resource.table}.id`)
    return { ids: all.filter(id => seen.includes(id)), areMore: seen.length < all.length }
  }
  const ofOrganisations = await named(organisations, 'webhook_organisations', 'organisation_id')
  const ofProjects = await named(projects, 'webhook_projects', 'project_id')
  const areMore = ofOrganisations.areMore || ofProjects.areMore
  return { organisations: ofOrganisations.ids, projects: ofProjects.ids, areMore }
}

const attemptsOf = async (sql: Sql, deliveryId: string): Promise<AttemptRow[]> =>
  sql('attempts').where('delivery_id', deliveryId).orderBy('number')

const queuedOf = async (sql: Sql, deliveryId: string): Promise<Facts['queued']> => {
  const [row] = await rows<{ due_at: number; lease: string | null; recovered: number }>(
    sql,
    'SELECT due_at, lease, recovered FROM delivery_queue WHERE delivery_id = ?',
    [deliveryId],
  )
  return (
    row && {
      dueAt: epochTimeOf(Number(row.due_at)),
      isInLine: Number(row.due_at) === NEVER,
      isLeased: row.lease !== null,
      isRecovered: row.recovered === 1,
    }
  )
}

const healingOf = async (sql: Sql, webhookId: string): Promise<HealingRow | undefined> =>
  sql('webhook_recoveries').where('webhook_id', webhookId).first()

/** Mutations so long before and after the end of a delivery may have ended it: a sweep takes its time. */
const ENDED_BEFORE_MS = 30_000
const ENDED_AFTER_MS = 1_000

/** Who changed the webhook when the delivery was cancelled. */
const enderOf = async (sql: Sql, webhookId: string, endedAt: number | null): Promise<Facts['ender']> => {
  if (endedAt === null) return undefined
  const [row] = await rows<{ operation: string; created_at: number; name: string | null; actor: string | null }>(
    sql,
    `SELECT a.operation, a.created_at, a.actor, t.name FROM audit_log a
     LEFT JOIN access_tokens t ON t.id = a.access_token_id
     WHERE a.created_at BETWEEN ? AND ? AND a.operation IN ('upsertWebhook', 'deleteWebhook')
       AND (a.subject_id = ? OR a.arguments LIKE ?)
     ORDER BY a.created_at DESC, a.id DESC LIMIT 1`,
    [endedAt - ENDED_BEFORE_MS, endedAt + ENDED_AFTER_MS, webhookId, `%${webhookId}%`],
  )
  return (
    row && { who: row.name ?? row.actor ?? 'an access token', operation: row.operation, at: Number(row.created_at) }
  )
}

/** When the deliveries nearest to a time were queued, before and after it. */
const aroundOf = async (sql: Sql, token: AccessToken, webhookId: string, at: number): Promise<Facts['around']> => {
  const nearest = async (sign: '<=' | '>', order: 'asc' | 'desc'): Promise<number | undefined> => {
    const row: { created_at: number } | undefined = await sql('deliveries')
      .select('deliveries.created_at')
      .where('deliveries.webhook_id', webhookId)
      .where('deliveries.created_at', sign, at)
      .modify(visibleTo(token)(deliveries))
      .orderBy('deliveries.created_at', order)
      .first()
    return row && Number(row.created_at)
  }
  return { before: await nearest('<=', 'desc'), after: await nearest('>', 'asc') }
}
