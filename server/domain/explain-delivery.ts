import { notFound } from '../../shared/errors.ts'
import { rows, type Sql } from '../database/connect.ts'
import { liveProcesses } from '../keys/master-keys.ts'
import type { Facts } from './explain-facts.ts'
import { reasonsFor } from './explain-reasons.ts'
import type { Explained } from './explain-words.ts'
import { heals } from './healing.ts'
import { NEVER } from './lines.ts'
import { CONDITIONS, choosesBy } from './matching.ts'
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
  type ProjectRow,
  projects,
  type WebhookRow,
  webhooks,
} from './resources.ts'
import { findVisible, visibleRow, visibleTo } from './visibility.ts'
import { turnsOf } from './waits-for.ts'
import { endingChange, statusSince, type VersionRow, type WebhookThen, webhookAt } from './webhook-versions.ts'

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
  const attempts = last === undefined ? [] : await attemptsOf(sql, last.id)
  const past = await pastOf(sql, token, { webhook, event, last, attempts })
  const facts: Facts = {
    ...{ webhook, event, sent, attempts, now, ...past },
    conditions: await conditionsOf(sql, webhookId, eventId),
    types: await typesOf(sql, webhookId),
    headers: await sql('webhook_headers').where('webhook_id', webhookId).orderBy('name').pluck('name'),
    redirect: redirectOf(attempts.at(-1)),
    chosen: await chosenOf(sql, token, webhookId),
    ...(await waitOf(sql, token, last)),
    healing: heals(webhook) ? await healingOf(sql, webhookId) : undefined,
    around: last === undefined ? await aroundOf(sql, token, webhookId, event.created_at) : {},
  }
  return { ...reasonsFor(facts), delivery: last ?? null }
}

type Subject = { webhook: WebhookRow; event: EventRow; last: DeliveryRow | undefined; attempts: AttemptRow[] }

/** How the webhook was when the event happened, and at the end of its last delivery. */
const pastOf = async (
  sql: Sql,
  token: AccessToken,
  { webhook, event, last, attempts }: Subject,
): Promise<Pick<Facts, 'since' | 'then' | 'names' | 'urlThen' | 'ender' | 'moved'>> => {
  const asOf = await webhookAt(sql, webhook, event.created_at)
  const then = { ...asOf, chooses: await chosenThen(sql, { webhook, event }, asOf) }
  const since = await statusSince(sql, webhook.id, { status: webhook.status, at: LAST_TIME })
  const ender =
    last?.status === 'cancelled' && last.finished_at !== null
      ? await endingChange(sql, webhook, { from: last.created_at, to: last.finished_at + SWEEP_MS })
      : undefined
  const tried = attempts.at(-1)?.started_at
  const urlThen = tried === undefined ? undefined : (await webhookAt(sql, webhook, tried)).url
  const changes = [since, then.began, then.ended, ender]
  return {
    ...{ since, then, ender, urlThen },
    moved: last === undefined ? await movedOf(sql, token, event) : undefined,
    names: await namesOf(sql, token, changes),
  }
}

const chosenThen = async (
  sql: Sql,
  { webhook, event }: Pick<Subject, 'webhook' | 'event'>,
  { organisationIds, projectIds }: WebhookThen,
): Promise<boolean | undefined> => {
  const lists = [organisationIds, projectIds]
  if (lists.some(kept => kept !== undefined && kept.list === undefined)) return undefined
  const { sql: chooses, bindings } = choosesBy({ organisationIds: organisationIds?.list, projectIds: projectIds?.list })
  const [found] = await rows<{ chosen: number }>(
    sql,
    `SELECT CASE WHEN ${chooses} THEN 1 ELSE 0 END AS chosen FROM webhooks w JOIN events e ON e.id = ? WHERE w.id = ?`,
    [...bindings, event.id, webhook.id],
  )
  return Number(found?.chosen) === 1
}

/** Events of a project that are looked at. */
const OTHER_EVENTS = 200

/**
 * Another visible organisation of the event's project: its present one, or else that of its latest other event. Each
 * event of a project is of one organisation.
 */
const movedOf = async (sql: Sql, token: AccessToken, event: EventRow): Promise<Facts['moved']> => {
  const { project_id: id, organisation_id: organisationId } = event
  if (id === null) return undefined
  const project = await findVisible<ProjectRow>(sql, token, projects, id)
  if (project && project.organisation_id !== organisationId) return { organisationId: project.organisation_id }
  const others: { organisation_id: string; created_at: number }[] = await sql('events')
    .select('events.organisation_id', 'events.created_at')
    .where('events.project_id', id)
    .modify(visibleTo(token)(events))
    .orderBy('events.created_at', 'desc')
    .limit(OTHER_EVENTS)
  const other = others.find(row => row.organisation_id !== organisationId)
  return other && { organisationId: other.organisation_id, at: Number(other.created_at) }
}

/** Who changed a webhook: others are named only to who may read the audit log. */
const namesOf = async (
  sql: Sql,
  token: AccessToken,
  changes: (VersionRow | undefined)[],
): Promise<Map<string, string>> => {
  const ids = changes.flatMap(change => change?.access_token_id ?? [])
  const mayKnow = may(token, 'admin') && token.seesAllOrganisations
  const named = [...new Set(ids)].filter(id => mayKnow || id === token.id)
  if (named.length === 0) return new Map()
  const found: { id: string; name: string }[] = await sql('access_tokens').select('id', 'name').whereIn('id', named)
  return new Map(found.map(({ id, name }) => [id, name]))
}

/** What a pending delivery waits for. */
const waitOf = async (
  sql: Sql,
  token: AccessToken,
  last: DeliveryRow | undefined,
): Promise<Pick<Facts, 'queued' | 'turnOf' | 'isSending'>> => {
  if (last?.status !== 'pending') return { queued: undefined, turnOf: undefined, isSending: true }
  return {
    queued: await queuedOf(sql, last.id),
    turnOf: (await turnsOf(sql, [last.id], visibleTo(token)(deliveries))).get(last.id),
    isSending: (await liveProcesses(sql)).some(({ roles }) => roles.split(',').includes('delivery')),
  }
}

/** A deleted webhook too, which is in no list: its deliveries lead to it. */
const webhookOf = async (sql: Sql, token: AccessToken, id: string): Promise<WebhookRow> => {
  const query = sql('webhooks').select('webhooks.*').where('webhooks.id', id)
  const found: WebhookRow | undefined = await query.modify(visibleTo(token)(webhooks)).first()
  if (!found) throw notFound(webhooks.singular, [id])
  return found
}

/** Older deliveries of one event to one webhook, and older attempts of one, are not looked at. */
const NEWEST = 500

/** The deliveries of the event to the webhook that the token sees, oldest first. */
const sentOf = async (
  sql: Sql,
  token: AccessToken,
  { webhookId, eventId }: { webhookId: string; eventId: string },
): Promise<DeliveryRow[]> => {
  const newest: DeliveryRow[] = await sql('deliveries')
    .select('deliveries.*')
    .where({ 'deliveries.event_id': eventId, 'deliveries.webhook_id': webhookId })
    .modify(visibleTo(token)(deliveries))
    .orderBy([
      { column: 'deliveries.created_at', order: 'desc' },
      { column: 'deliveries.id', order: 'desc' },
    ])
    .limit(NEWEST)
  return newest.toReversed()
}

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
    const found: string[] = await sql(resource.table)
      .whereIn(`${resource.table}.id`, sql(choices).select(column).where('webhook_id', webhookId))
      .modify(visibleTo(token)(resource))
      .pluck(`${resource.table}.id`)
    const seen = new Set(found)
    return { ids: all.filter(id => seen.has(id)), areMore: seen.size < all.length }
  }
  const ofOrganisations = await named(organisations, 'webhook_organisations', 'organisation_id')
  const ofProjects = await named(projects, 'webhook_projects', 'project_id')
  const areMore = ofOrganisations.areMore || ofProjects.areMore
  return { organisations: ofOrganisations.ids, projects: ofProjects.ids, areMore }
}

const attemptsOf = async (sql: Sql, deliveryId: string): Promise<AttemptRow[]> => {
  const newest: AttemptRow[] = await sql('attempts')
    .where('delivery_id', deliveryId)
    .orderBy('number', 'desc')
    .limit(NEWEST)
  return newest.toReversed()
}

/** The header Location of an answer, as far as it is kept. */
const redirectOf = (attempt: (AttemptRow & { evidence?: string | null }) | undefined): string | undefined => {
  const kept: { responseHeaders?: { location?: string } } = JSON.parse(attempt?.evidence ?? '{}')
  return kept.responseHeaders?.location
}

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

/** The time of a change is after the one before, and so perhaps after the cancellations that it makes. */
const SWEEP_MS = 1_000

/** Later than any change. */
const LAST_TIME = Number.MAX_SAFE_INTEGER

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
