import type { Knex } from 'knex'
import type { EventPayload } from '../../shared/events.ts'
import type { EventType, WebhookStatus } from '../../shared/vocabulary.ts'
import { insertMany, marks, rows, run, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { newId } from '../ids.ts'
import { currentTrace, inTrace, startSpan } from '../tracing/tracing.ts'
import { type Courier, enqueueFresh, type FreshDelivery, type SendableWebhook } from './deliveries.ts'
import { holdLines } from './lines.ts'
import { SEES_WEBHOOK } from './visibility.ts'

export type NewEvent<Type extends EventType = EventType> = {
  type: Type
  payload: EventPayload<Type>
  /** The organisations it belongs to. */
  organisationIds: string[] | 'all'
  projectId?: string
}

/** Writes a ping, which belongs to no organisation and goes to one webhook. */
export const recordPing = (trx: Sql, now: number, id?: string): Promise<string> =>
  recordOnDemand(trx, now, { type: 'ping', payload: {}, isExample: false, ...(id !== undefined && { id }) })

/** Writes an event sent to one webhook on demand, a ping or an example. It belongs to no organisation. */
export const recordOnDemand = async (
  trx: Sql,
  now: number,
  { type, payload, isExample, id = newId(now) }: { type: EventType; payload: object; isExample: boolean; id?: string },
): Promise<string> => {
  await run(trx, 'INSERT INTO events (id, type, payload, example, created_at, traceparent) VALUES (?, ?, ?, ?, ?, ?)', [
    id,
    type,
    JSON.stringify(payload),
    isExample ? 1 : 0,
    now,
    currentTrace() ?? null,
  ])
  return id
}

/**
 * SQL: whether the event `e` belongs to no organisation, and is visible to whoever sees the webhook that it was sent
 * to.
 */
export const ON_DEMAND = "(e.type = 'ping' OR e.example = 1)"

/**
 * Writes an event, and for each webhook that wants it a delivery with its queue row, all in the caller's transaction,
 * so that change, event and deliveries exist together or not at all.
 *
 * @param now called when the webhooks are locked, so that the event is later than the last change of each. If webhooks
 *   keep the order of the project, the event is later than all earlier ones in their lines
 * @param courier takes deliveries that it can send after the commit
 */
export const recordEvent = <Type extends EventType>(
  trx: Knex.Transaction,
  { payload, ...event }: NewEvent<Type>,
  now: () => number,
  courier?: Courier,
): Promise<void> => recordAlike(trx, { ...event, payloads: [payload] }, now, courier)

/** As `recordEvent`, for events that differ only in their payloads. They share a time and each statement. */
export const recordAlike = async <Type extends EventType>(
  trx: Knex.Transaction,
  { payloads, ...event }: Omit<NewEvent<Type>, 'payload'> & { payloads: EventPayload<Type>[] },
  now: () => number,
  courier?: Courier,
): Promise<void> => {
  const { organisationIds, projectId = null } = event
  // An event without an organisation would be visible to nobody.
  const webhooks = organisationIds.length === 0 ? [] : await webhooksFor(trx, event)
  const { lines, time } = await holdLines(
    trx,
    webhooks.map(webhook => ({ webhook, projectId })),
    now,
  )
  const made = payloads.map(payload => eventOf(trx, { ...event, payload }, time))
  await insertEvents(trx, made)
  if (organisationIds !== 'all' && organisationIds.length !== 1) {
    const several = made.flatMap(({ id }) =>
      organisationIds.map(organisation_id => ({ event_id: id, organisation_id })),
    )
    await insertMany(trx, 'event_organisations', several)
  }
  await enqueueFresh(
    trx,
    made.map(one => ({ event: one, webhooks })),
    { lines, courier },
  )
}

/** An event of one project, with the webhooks that want it, none of which keeps an order. */
export type ProjectEvent = {
  event: NewEvent & { organisationIds: [string]; projectId: string }
  webhooks: SendableWebhook[]
  /** The trace of the request that it comes from. */
  trace: string | undefined
}

/** As `recordEvent`, for events of several projects, which share a time and each statement, asked at the same time. */
export const recordTogether = async (
  trx: Knex.Transaction,
  given: ProjectEvent[],
  time: number,
  courier: Courier,
): Promise<void> => {
  const fresh = given.map(({ event, webhooks, trace }) => ({
    event: inTrace(trace, () => eventOf(trx, event, time)),
    webhooks,
  }))
  const inserted = insertEvents(
    trx,
    fresh.map(({ event }) => event),
  )
  await Promise.all([inserted, enqueueFresh(trx, fresh, { lines: new Map(), courier })])
}

type Made = FreshDelivery['event'] & Pick<NewEvent, 'organisationIds'> & { projectId: string | null }

const eventOf = (trx: Knex.Transaction, { type, payload, ...event }: NewEvent, createdAt: number): Made => {
  const { organisationIds, projectId = null } = event
  const id = newId(createdAt)
  const traceparent = traceOf(trx, id, type)
  return { id, type, createdAt, payload: JSON.stringify(payload), organisationIds, projectId, traceparent }
}

const insertEvents = async (trx: Sql, events: Made[]): Promise<void> => {
  await run(
    trx,
    `INSERT INTO events (id, type, organisation_id, project_id, all_organisations, payload, created_at, traceparent)
     VALUES ${events.map(() => '(?, ?, ?, ?, ?, ?, ?, ?)').join(', ')}`,
    events.flatMap(({ id, type, organisationIds, projectId, payload, createdAt, traceparent }) => {
      const single = organisationIds !== 'all' && organisationIds.length === 1 ? organisationIds[0]! : null
      return [id, type, single, projectId, organisationIds === 'all' ? 1 : 0, payload, createdAt, traceparent]
    }),
  )
}

/** The trace of an event: a span of its own, which is real once the transaction commits. */
const traceOf = (trx: Knex.Transaction, id: string, type: EventType): string | null => {
  const span = startSpan(`event ${type}`, 'producer', { 'tidings.event.id': id, 'tidings.event.type': type })
  if (!span) return currentTrace() ?? null
  trx.executionPromise.then(
    () => span.end(),
    () => {},
  )
  return span.traceparent
}

/** What decides which webhooks want an event. */
type Wanted = Omit<NewEvent, 'payload'>

const MATCHED =
  'w.id, w.epoch, w.url, w.access_token_id, w.held_until, w.status, w.updated_at, w.ordering, w.ordered_since'

/** A webhook with the time of its last change before it was found to match; the time increases with each change. */
type MatchedWebhook = SendableWebhook & { status: WebhookStatus; updated_at: number; matched_at: number }

/**
 * The active webhooks that want an event, locked until the transaction ends, so that no delivery is queued for a
 * webhook that has left `active` or has narrowed its filters. Inactive ones are locked too: whoever makes one active,
 * or recovers what it missed, waits for the events under way and finds them.
 */
const webhooksFor = async (trx: Knex.Transaction, event: Wanted): Promise<SendableWebhook[]> => {
  const [matching, bindings] = matchingOf(event)
  const { forShare, useIndex } = dialectOf(trx)
  if (forShare === '') return (await rows<MatchedWebhook>(trx, matching, bindings)).filter(isActive)
  // Webhooks are matched first and then locked by id alone; in another order, rows that do not match would be locked.
  const found = await rows<MatchedWebhook>(
    trx,
    `SELECT ${MATCHED}, m.matched_at
     FROM (${matching}) m STRAIGHT_JOIN webhooks w ${useIndex('PRIMARY')} ON w.id = m.id ORDER BY w.id${forShare}`,
    bindings,
    { isPrepared: event.organisationIds.length === 1 },
  )
  const active = found.filter(isActive)
  if (active.every(row => row.updated_at === row.matched_at)) return active
  const still = new Set((await rows<MatchedWebhook>(trx, matching, bindings)).map(row => row.id))
  return active.filter(row => still.has(row.id))
}

/** A webhook that wants an event of a project. */
export type Wanting = MatchedWebhook & { project_id: string }

/** The first webhooks that want an event of one type in each of several projects, active or not, and not locked. */
export const webhooksWanting = (
  trx: Knex.Transaction,
  type: EventType,
  { projectIds, limit }: { projectIds: string[]; limit: number },
): Promise<Wanting[]> => {
  const ids = marks(projectIds)
  return rows<Wanting>(
    trx,
    `SELECT named.project_id, ${MATCHED}, w.updated_at AS matched_at FROM (
       SELECT p.id AS project_id, p.organisation_id, w.id FROM projects p
         JOIN webhooks w ON w.all_organisations_and_projects = 1 WHERE p.id IN (${ids})
       UNION SELECT p.id, p.organisation_id, wo.webhook_id FROM projects p
         JOIN webhook_organisations wo ON wo.organisation_id = p.organisation_id WHERE p.id IN (${ids})
       UNION SELECT p.id, p.organisation_id, wp.webhook_id FROM projects p
         JOIN webhook_projects wp ON wp.project_id = p.id WHERE p.id IN (${ids})
     ) named
     ${WANTING} AND (t.sees_all_organisations = 1 OR EXISTS (
         SELECT 1 FROM access_token_organisations s
         WHERE s.access_token_id = t.id AND s.organisation_id = named.organisation_id))
     LIMIT ?`,
    [...projectIds, ...projectIds, ...projectIds, type, limit],
  )
}

/**
 * As `webhooksFor`, for the projects of which `wanting` are the webhooks, by project. Without the projects for which
 * that cannot be said at once: another transaction is changing one of the webhooks, or one keeps an order.
 */
export const holdWanting = async (
  trx: Knex.Transaction,
  wanting: Wanting[],
  projectIds: string[],
): Promise<Map<string, SendableWebhook[]>> => {
  const { forShareSkipLocked, useIndex } = dialectOf(trx)
  const webhookIds = [...new Set(wanting.map(({ id }) => id))].toSorted()
  const held = new Map<string, MatchedWebhook>()
  if (forShareSkipLocked === '' || webhookIds.length === 0) for (const row of wanting) held.set(row.id, row)
  else {
    const select = `SELECT ${MATCHED} FROM webhooks w ${useIndex('PRIMARY')} WHERE w.id IN (${marks(webhookIds)})
      ORDER BY w.id${forShareSkipLocked}`
    for (const row of await rows<MatchedWebhook>(trx, select, webhookIds)) held.set(row.id, row)
  }
  const byProject = new Map<string, SendableWebhook[]>(projectIds.map(id => [id, []]))
  for (const { project_id: projectId, id, matched_at: matchedAt } of wanting) {
    const webhook = held.get(id)
    if (webhook?.updated_at !== matchedAt || webhook.ordering !== 'none') byProject.delete(projectId)
    else if (isActive(webhook)) byProject.get(projectId)?.push(webhook)
  }
  return byProject
}

const isActive = ({ status }: MatchedWebhook): boolean => status === 'active'

/** SQL: the webhooks `w` among those `named` that want a type of events, with their tokens `t`. */
const WANTING = `
  JOIN webhooks w ON w.id = named.id
  JOIN access_tokens t ON t.id = w.access_token_id
  WHERE w.deleted_at IS NULL
    AND (w.all_events = 1 OR EXISTS (SELECT 1 FROM webhook_events e WHERE e.webhook_id = w.id AND e.event_type = ?))`

/**
 * Selects the webhooks that want the event's type, that name one of its organisations or its project or name none, and
 * whose token sees one of its organisations.
 */
const matchingOf = ({ type, organisationIds, projectId }: Wanted): [statement: string, bindings: string[]] => {
  const [among, ids] =
    organisationIds === 'all' ? ['IS NOT NULL', []] : [`IN (${marks(organisationIds)})`, organisationIds]
  const ofProject = projectId === undefined ? '' : 'UNION SELECT webhook_id FROM webhook_projects WHERE project_id = ?'
  return [
    `SELECT ${MATCHED}, w.updated_at AS matched_at FROM (
       SELECT id FROM webhooks WHERE all_organisations_and_projects = 1
       UNION SELECT webhook_id FROM webhook_organisations WHERE organisation_id ${among}
       ${ofProject}
     ) named
     ${WANTING} AND (t.sees_all_organisations = 1 OR EXISTS (
         SELECT 1 FROM access_token_organisations s WHERE s.access_token_id = t.id AND s.organisation_id ${among}))`,
    [...ids, ...(projectId === undefined ? [] : [projectId]), type, ...ids],
  ]
}

/**
 * SQL: whether the token `t` sees the event `e`: one of its organisations, and the present one of its project. An event
 * about a webhook also needs sight of that webhook. Events on demand belong to no organisation and are not checked
 * here.
 */
export const SEES = `
  (t.sees_all_organisations = 1
    OR ((e.about_webhook_id IS NULL
        OR EXISTS (SELECT 1 FROM webhooks about WHERE about.id = e.about_webhook_id AND ${SEES_WEBHOOK}))
      AND EXISTS (SELECT 1 FROM access_token_organisations s WHERE s.access_token_id = t.id AND (
        e.all_organisations = 1 OR s.organisation_id = e.organisation_id
        OR EXISTS (SELECT 1 FROM event_organisations eo
          WHERE eo.event_id = e.id AND eo.organisation_id = s.organisation_id)))
      AND NOT EXISTS (SELECT 1 FROM projects p WHERE p.id = e.project_id AND NOT EXISTS (
        SELECT 1 FROM access_token_organisations s
        WHERE s.access_token_id = t.id AND s.organisation_id = p.organisation_id))))`

/**
 * SQL: the rules of `matching` from the webhook's side, without the event type: whether the webhook `w`, created by the
 * token `t`, may receive the event `e` by its filters and its token's sight.
 */
export const MAY_HAVE = `
  (w.all_organisations_and_projects = 1
    OR EXISTS (SELECT 1 FROM webhook_organisations wo WHERE wo.webhook_id = w.id AND (
      e.all_organisations = 1 OR wo.organisation_id = e.organisation_id
      OR EXISTS (SELECT 1 FROM event_organisations eo
        WHERE eo.event_id = e.id AND eo.organisation_id = wo.organisation_id)))
    OR EXISTS (SELECT 1 FROM webhook_projects wp WHERE wp.webhook_id = w.id AND wp.project_id = e.project_id))
  AND (e.about_webhook_id IS NULL OR e.about_webhook_id <> w.id)
  AND ${SEES}`

/** SQL: whether the webhook `w` wants the type of the event `e`. It must name types about webhooks explicitly. */
export const ASKED_FOR = `
  ((w.all_events = 1 AND e.about_webhook_id IS NULL)
    OR EXISTS (SELECT 1 FROM webhook_events we WHERE we.webhook_id = w.id AND we.event_type = e.type))`
