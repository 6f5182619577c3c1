import type { Knex } from 'knex'
import type { EventPayload } from '../../shared/events.ts'
import type { EventType, WebhookStatus } from '../../shared/vocabulary.ts'
import { insertMany, marks, rows, run, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { newId } from '../ids.ts'
import { currentTrace, startSpan } from '../tracing/tracing.ts'
import { type Courier, enqueueFresh, type SendableWebhook } from './deliveries.ts'
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
export const recordEvent = async <Type extends EventType>(
  trx: Knex.Transaction,
  event: NewEvent<Type>,
  now: () => number,
  courier?: Courier,
): Promise<void> => {
  const { type, organisationIds, projectId = null } = event
  // An event without an organisation would be visible to nobody.
  const webhooks = organisationIds.length === 0 ? [] : await webhooksFor(trx, event)
  const { lines, time } = await holdLines(
    trx,
    webhooks.map(webhook => ({ webhook, projectId })),
    now,
  )
  const id = newId(time)
  const payload = JSON.stringify(event.payload)
  const traceparent = traceOf(trx, id, type)
  const single = organisationIds !== 'all' && organisationIds.length === 1 ? organisationIds[0]! : null
  await run(
    trx,
    'INSERT INTO events (id, type, organisation_id, project_id, all_organisations, payload, created_at, traceparent) ' +
      'VALUES (?, ?, ?, ?, ?, ?, ?, ?)',
    [id, type, single, projectId, organisationIds === 'all' ? 1 : 0, payload, time, traceparent],
  )
  if (organisationIds !== 'all' && single === null) {
    const several = organisationIds.map(organisation_id => ({ event_id: id, organisation_id }))
    await insertMany(trx, 'event_organisations', several)
  }
  const fresh = { id, type, createdAt: time, payload, projectId, traceparent }
  await enqueueFresh(trx, fresh, webhooks, { lines, courier })
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

const MATCHED =
  'w.id, w.epoch, w.url, w.access_token_id, w.held_until, w.status, w.updated_at, w.ordering, w.ordered_since'

/** A webhook with the time of its last change before it was found to match; the time increases with each change. */
type MatchedWebhook = SendableWebhook & { status: WebhookStatus; updated_at: number; matched_at: number }

/**
 * The active webhooks that want an event, locked until the transaction ends, so that no delivery is queued for a
 * webhook that has left `active` or has narrowed its filters. Inactive ones are locked too: whoever makes one active,
 * or recovers what it missed, waits for the events under way and finds them.
 */
const webhooksFor = async (trx: Knex.Transaction, event: NewEvent): Promise<SendableWebhook[]> => {
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

const isActive = ({ status }: MatchedWebhook): boolean => status === 'active'

/**
 * Selects the webhooks that want the event's type, that name one of its organisations or its project or name none, and
 * whose token sees one of its organisations.
 */
const matchingOf = ({ type, organisationIds, projectId }: NewEvent): [statement: string, bindings: string[]] => {
  const [among, ids] =
    organisationIds === 'all' ? ['IS NOT NULL', []] : [`IN (${marks(organisationIds)})`, organisationIds]
  const ofProject = projectId === undefined ? '' : 'UNION SELECT webhook_id FROM webhook_projects WHERE project_id = ?'
  return [
    `SELECT ${MATCHED}, w.updated_at AS matched_at FROM (
       SELECT id FROM webhooks WHERE all_organisations_and_projects = 1
       UNION SELECT webhook_id FROM webhook_organisations WHERE organisation_id ${among}
       ${ofProject}
     ) named
     JOIN webhooks w ON w.id = named.id
     JOIN access_tokens t ON t.id = w.access_token_id
     WHERE w.deleted_at IS NULL
       AND (w.all_events = 1 OR EXISTS (SELECT 1 FROM webhook_events e WHERE e.webhook_id = w.id AND e.event_type = ?))
       AND (t.sees_all_organisations = 1 OR EXISTS (
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
