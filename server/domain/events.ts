import type { Knex } from 'knex'
import { v7 as uuid } from 'uuid'
import type { EventPayload } from '../../shared/events.ts'
import { type EventType, eventTypes } from '../../shared/vocabulary.ts'
import { insertMany, marks, rows, run, type Sql } from '../database/connect.ts'
import type { Dialect } from '../database/engine.ts'
import type { Resource } from '../mango/resource.ts'
import { type AccessToken, whereOrganisationVisible } from './access-tokens.ts'
import { organisations } from './organisations.ts'
import { projects } from './projects.ts'
import { visibleWebhooks } from './webhook-visibility.ts'

export type EventRow = {
  id: string
  type: EventType
  organisation_id: string | null
  project_id: string | null
  all_organisations: number
  payload: string
  created_at: number
}

export const events: Resource = {
  name: 'events',
  table: 'events',
  fields: {
    id: { kind: 'column', column: 'id', type: 'uuid' },
    type: { kind: 'column', column: 'type', type: 'string', values: eventTypes },
    organisationId: { kind: 'column', column: 'organisation_id', type: 'uuid', nullable: true },
    organisation: { kind: 'related', column: 'organisation_id', resource: () => organisations },
    projectId: { kind: 'column', column: 'project_id', type: 'uuid', nullable: true },
    project: { kind: 'related', column: 'project_id', resource: () => projects },
    payload: { kind: 'json', column: 'payload' },
    time: { kind: 'column', column: 'created_at', type: 'time' },
  },
}

/** An event belongs to one organisation, to several, or to all; a ping to none. */
export const visibleEvents =
  (token: AccessToken) =>
  (builder: Knex.QueryBuilder): void => {
    if (token.seesAllOrganisations) return
    builder.where(some => {
      some.where(one => whereOrganisationVisible(one, token, 'events.organisation_id'))
      some.orWhereIn('events.id', shared => {
        shared.select('event_id').from('event_organisations')
        whereOrganisationVisible(shared, token, 'event_organisations.organisation_id')
      })
      some.orWhere(all =>
        all
          .where('events.all_organisations', 1)
          .whereExists(seen =>
            seen.select('organisation_id').from('access_token_organisations').where('access_token_id', token.id),
          ),
      )
      some.orWhere(ping =>
        ping.where('events.type', 'ping').whereIn('events.id', sent =>
          sent
            .select('event_id')
            .from('deliveries')
            .whereIn('webhook_id', webhook => {
              webhook.select('webhooks.id').from('webhooks').modify(visibleWebhooks(token))
            }),
        ),
      )
    })
  }

export type NewEvent<Type extends EventType = EventType> = {
  type: Type
  payload: EventPayload<Type>
  /** The organisations it belongs to. */
  organisationIds: string[] | 'all'
  projectId?: string
}

/** Writes a ping, which belongs to no organisation and goes only where it is asked for. */
export const recordPing = async (trx: Sql, now: number): Promise<string> => {
  const id = uuid()
  await run(trx, "INSERT INTO events (id, type, payload, created_at) VALUES (?, 'ping', '{}', ?)", [id, now])
  return id
}

/**
 * Writes an event, and for each webhook that is to have it a delivery with its place in the queue: all in the caller's
 * transaction, with the change that caused it, so that none of them is ever there without the others.
 */
export const recordEvent = async <Type extends EventType>(
  trx: Knex.Transaction,
  dialect: Dialect,
  event: NewEvent<Type>,
  now: number,
): Promise<void> => {
  const { type, payload, organisationIds, projectId } = event
  const id = uuid()
  const single = organisationIds !== 'all' && organisationIds.length === 1 ? organisationIds[0]! : null
  await run(
    trx,
    'INSERT INTO events (id, type, organisation_id, project_id, all_organisations, payload, created_at) ' +
      'VALUES (?, ?, ?, ?, ?, ?, ?)',
    [id, type, single, projectId ?? null, organisationIds === 'all' ? 1 : 0, JSON.stringify(payload), now],
  )
  if (organisationIds !== 'all' && single === null) {
    const several = organisationIds.map(organisation_id => ({ event_id: id, organisation_id }))
    await insertMany(trx, 'event_organisations', several)
  }
  await queueDeliveries(trx, { id, type }, await webhooksFor(trx, dialect, event), now)
}

/**
 * The active webhooks that are to have an event: asked for its type; naming one of its organisations or its project, or
 * naming none; and made by a token that sees one of its organisations. Locked against a change of their state until
 * the transaction ends: nothing is queued for a webhook that has left `active`.
 */
const webhooksFor = async (trx: Knex.Transaction, dialect: Dialect, event: NewEvent): Promise<string[]> => {
  const { type, organisationIds, projectId } = event
  if (organisationIds.length === 0) return []
  const [among, ids] =
    organisationIds === 'all' ? ['IS NOT NULL', []] : [`IN (${marks(organisationIds)})`, organisationIds]
  const found = await rows<{ id: string }>(
    trx,
    `SELECT w.id FROM (
       SELECT id FROM webhooks WHERE all_organisations_and_projects = 1 AND status = 'active'
       UNION SELECT webhook_id FROM webhook_organisations WHERE organisation_id ${among}
       UNION SELECT webhook_id FROM webhook_projects WHERE project_id = ?
     ) named
     JOIN webhooks w ON w.id = named.id
     JOIN access_tokens t ON t.id = w.access_token_id
     WHERE w.status = 'active'
       AND (w.all_events = 1 OR EXISTS (SELECT 1 FROM webhook_events e WHERE e.webhook_id = w.id AND e.event_type = ?))
       AND (t.sees_all_organisations = 1 OR EXISTS (
         SELECT 1 FROM access_token_organisations s WHERE s.access_token_id = t.id AND s.organisation_id ${among}))
     ORDER BY w.id`,
    [...ids, projectId ?? null, type, ...ids],
  )
  const matching = found.map(row => row.id)
  if (matching.length === 0 || dialect.forShare === '') return matching
  const active = await rows<{ id: string }>(
    trx,
    `SELECT id FROM webhooks WHERE id IN (${marks(matching)}) AND status = 'active'${dialect.forShare}`,
    matching,
  )
  return active.map(row => row.id)
}

const ROWS_A_STATEMENT = 500

type Named = { id: string; type: EventType }

/** Writes pending deliveries of one event, due now, and returns their ids in the order of `webhookIds`. */
export const queueDeliveries = (
  trx: Sql,
  event: Named,
  webhookIds: string[],
  now: number,
  lease?: { id: string; end: number },
): Promise<string[]> =>
  queueEach(
    trx,
    webhookIds.map(webhookId => ({ event, webhookId })),
    now,
    lease,
  )

/**
 * Writes pending deliveries, due now, and returns their ids in the order of `owed`.
 *
 * @param lease if given, the first attempt is claimed by the caller from the start, until `end`
 */
export const queueEach = async (
  trx: Sql,
  owed: { event: Named; webhookId: string }[],
  now: number,
  lease?: { id: string; end: number },
): Promise<string[]> => {
  const deliveries = owed.map(one => ({ id: uuid(), ...one }))
  for (let from = 0; from < deliveries.length; from += ROWS_A_STATEMENT) {
    const part = deliveries.slice(from, from + ROWS_A_STATEMENT)
    await run(
      trx,
      `INSERT INTO deliveries (id, event_id, event_type, webhook_id, status, next_attempt_at, created_at)
       VALUES ${part.map(() => "(?, ?, ?, ?, 'pending', ?, ?)").join(', ')}`,
      part.flatMap(({ id, event, webhookId }) => [id, event.id, event.type, webhookId, now, now]),
    )
    await run(
      trx,
      `INSERT INTO delivery_queue (delivery_id, event_id, webhook_id, due_at, lease, attempt)
       VALUES ${part.map(() => '(?, ?, ?, ?, ?, ?)').join(', ')}`,
      part.flatMap(({ id, event, webhookId }) => [
        id,
        event.id,
        webhookId,
        lease?.end ?? now,
        lease?.id ?? null,
        lease ? 1 : 0,
      ]),
    )
  }
  return deliveries.map(delivery => delivery.id)
}
