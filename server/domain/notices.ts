import type { EventPayload } from '../../shared/events.ts'
import { toIso } from '../../shared/time.ts'
import type { EventType, NoticeType, WebhookRecovery, WebhookTransport } from '../../shared/vocabulary.ts'
import { insertMany, marks, Overtaken, rows, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import type { Transaction } from '../database/transaction.ts'
import { newId } from '../ids.ts'
import { enqueue } from './deliveries.ts'
import { CONDITIONS, MAY_HAVE } from './matching.ts'
import { noteMissed } from './missed.ts'
import { epochTimeOf } from './pull-time.ts'

// Events about a webhook: it has become inactive, or one of its deliveries was dropped. The transaction that makes it
// so writes them with their deliveries. Others wait for the locks of that transaction, so it waits for no webhook to
// notify: if one is locked, the transaction is repeated.

/** An event about a webhook. */
type Notice<Type extends NoticeType = NoticeType> = {
  type: Type
  payload: EventPayload<Type>
  aboutWebhookId: string
  /** Its organisation, if it has exactly one. */
  organisationId: string | null
  allOrganisations: boolean
  /** Its organisations, if it has several. */
  organisationIds: string[]
  projectId: string | null
}

type Subscriber = { event_id: string; id: string; updated_at: number; epoch: number; transport: WebhookTransport }

/**
 * Writes events about webhooks, with a delivery to each webhook that names their type and may know of the webhook
 * concerned. Throws Overtaken if another transaction has locked one of those.
 */
const tell = async (trx: Transaction, notices: Notice[], now: number): Promise<void> => {
  if (notices.length === 0) return
  const written = notices.map(notice => ({ id: newId(now), ...notice }))
  await insertMany(
    trx,
    'events',
    written.map(({ id, type, payload, aboutWebhookId, organisationId, allOrganisations, projectId }) => ({
      id,
      type,
      organisation_id: organisationId,
      project_id: projectId,
      all_organisations: allOrganisations ? 1 : 0,
      payload: JSON.stringify(payload),
      about_webhook_id: aboutWebhookId,
      created_at: now,
    })),
  )
  const several = written.flatMap(({ id, organisationIds }) =>
    organisationIds.map(organisation_id => ({ event_id: id, organisation_id })),
  )
  await insertMany(trx, 'event_organisations', several)
  const types = new Map<string, EventType>(written.map(({ id, type }) => [id, type]))
  const owed = (await subscribersTo(trx, [...types.keys()])).map(({ event_id, id, epoch, transport }) => ({
    event: { id: event_id, type: types.get(event_id)! },
    webhook: { id, epoch, transport },
  }))
  await enqueue(trx, owed, now)
}

/** The active webhooks that want these events about others, locked until the transaction ends. */
const subscribersTo = async (trx: Transaction, eventIds: string[]): Promise<Subscriber[]> => {
  const found = await rows<Subscriber>(
    trx,
    `SELECT e.id AS event_id, w.id, w.updated_at, w.epoch, w.transport FROM events e
     JOIN webhook_events n ON n.event_type = e.type
     JOIN webhooks w ON w.id = n.webhook_id
     JOIN access_tokens t ON t.id = w.access_token_id
     WHERE e.id IN (${marks(eventIds)}) AND ${CONDITIONS.existing} AND ${MAY_HAVE} ORDER BY e.id, w.id`,
    eventIds,
  )
  if (found.length === 0) return []
  const ids = [...new Set(found.map(({ id }) => id))].toSorted()
  const locked = await rows<{ id: string; updated_at: number; status: string }>(
    trx,
    `SELECT id, updated_at, status FROM webhooks WHERE id IN (${marks(ids)}) ORDER BY id
     ${dialectOf(trx).forShareSkipLocked}`,
    ids,
  )
  const asLocked = new Map(locked.map(row => [row.id, row]))
  if (found.some(({ id, updated_at }) => asLocked.get(id)?.updated_at !== updated_at)) throw new Overtaken()
  return found.filter(({ id }) => asLocked.get(id)!.status === 'active')
}

/** A dropped delivery. */
export type Dropped = {
  deliveryId: string
  attempts: number
  reason: EventPayload<'delivery_dropped'>['delivery']['reason']
}

type DroppedRow = {
  id: string
  event_id: string
  event_type: EventType
  webhook_id: string
  url: string
  name: string | null
  organisation_id: string | null
  project_id: string | null
  all_organisations: number
  about_webhook_id: string | null
  created_at: number
  recovery: WebhookRecovery
  held_until: number | null
}

/**
 * Reports deliveries that this transaction has dropped, except pings, examples and notices themselves, which would
 * report one another for ever. Notes what webhooks have missed that heal themselves.
 */
export const tellOfDropped = async (trx: Transaction, dropped: Dropped[], now: number): Promise<void> => {
  if (dropped.length === 0) return
  const known = new Map(dropped.map(one => [one.deliveryId, one]))
  const found = await rows<DroppedRow>(
    trx,
    `SELECT d.id, d.event_id, d.event_type, d.webhook_id, w.url, w.name,
       w.recovery, w.held_until, e.created_at, e.about_webhook_id, e.organisation_id, e.project_id, e.all_organisations
     FROM deliveries d JOIN events e ON e.id = d.event_id JOIN webhooks w ON w.id = d.webhook_id
     WHERE d.id IN (${marks(dropped)}) AND e.type <> 'ping' AND e.example = 0
     ORDER BY d.id`,
    [...known.keys()],
  )
  const healing = found.filter(row => row.recovery === 'automatic')
  const missed = healing.map(row => ({
    webhookId: row.webhook_id,
    eventId: row.event_id,
    eventTime: Number(row.created_at),
  }))
  const nextPings = await noteMissed(trx, missed, now)
  const reported = found.filter(row => row.about_webhook_id === null)
  const organisations = await organisationsOf(trx, reported)
  const notices = reported.map((row): Notice<'delivery_dropped'> => {
    const { attempts, reason } = known.get(row.id)!
    return {
      type: 'delivery_dropped',
      payload: {
        delivery: {
          id: row.id,
          eventId: row.event_id,
          eventType: row.event_type,
          webhookId: row.webhook_id,
          webhookUrl: row.url,
          webhookName: row.name,
          attemptCount: attempts,
          reason,
          nextPingAt: nextPingAt(nextPings.get(row.webhook_id), row),
        },
      },
      aboutWebhookId: row.webhook_id,
      organisationId: row.organisation_id,
      allOrganisations: row.all_organisations === 1,
      organisationIds: organisations.get(row.event_id) ?? [],
      projectId: row.project_id,
    }
  })
  await tell(trx, notices, now)
}

const nextPingAt = (time: number | null | undefined, { held_until }: DroppedRow): string | null =>
  time == null ? null : toIso(Math.max(Number(time), epochTimeOf(Number(held_until))))

/** The organisations of the events that belong to several, by event. */
const organisationsOf = async (trx: Sql, found: DroppedRow[]): Promise<Map<string, string[]>> => {
  const several = found.filter(row => row.organisation_id === null && row.all_organisations === 0)
  if (several.length === 0) return new Map()
  const named = await rows<{ event_id: string; organisation_id: string }>(
    trx,
    `SELECT event_id, organisation_id FROM event_organisations WHERE event_id IN (${marks(several)})`,
    several.map(row => row.event_id),
  )
  const byEvent = Map.groupBy(named, row => row.event_id)
  return new Map([...byEvent].map(([id, some]) => [id, some.map(row => row.organisation_id)]))
}

/** Reports a webhook that this transaction has made inactive, to the organisations that it receives from. */
export const tellOfInactive = async (trx: Transaction, webhookId: string, now: number): Promise<void> => {
  const [webhook] = await rows<{ url: string; name: string | null; status_reason: string; sees_all: number }>(
    trx,
    `SELECT w.url, w.name, w.status_reason,
       CASE WHEN w.all_organisations_and_projects = 1 AND t.sees_all_organisations = 1 THEN 1 ELSE 0 END AS sees_all
     FROM webhooks w JOIN access_tokens t ON t.id = w.access_token_id WHERE w.id = ?`,
    [webhookId],
  )
  const projects = await rows<{ project_id: string }>(
    trx,
    'SELECT project_id FROM webhook_projects WHERE webhook_id = ? LIMIT 2',
    [webhookId],
  )
  const named = webhook!.sees_all === 1 ? [] : await rows<{ id: string }>(trx, RECEIVED_FROM, Array(4).fill(webhookId))
  const organisationIds = named.map(({ id }) => id)
  const [only] = organisationIds
  const isOne = organisationIds.length === 1
  const { url, name, status_reason: statusReason } = webhook!
  await tell(
    trx,
    [
      {
        type: 'webhook_inactive',
        payload: { webhook: { id: webhookId, url, name, statusReason } },
        aboutWebhookId: webhookId,
        organisationId: isOne ? only! : null,
        allOrganisations: webhook!.sees_all === 1,
        organisationIds: isOne ? [] : organisationIds,
        projectId: projects.length === 1 ? projects[0]!.project_id : null,
      },
    ],
    now,
  )
}

/** The organisations that a webhook names, those of the projects it names, or else those that its token sees. */
const RECEIVED_FROM = `
  SELECT organisation_id AS id FROM webhook_organisations WHERE webhook_id = ?
  UNION SELECT p.organisation_id FROM webhook_projects wp JOIN projects p ON p.id = wp.project_id
    WHERE wp.webhook_id = ?
  UNION SELECT s.organisation_id FROM webhooks w JOIN access_token_organisations s
    ON s.access_token_id = w.access_token_id
    WHERE w.id = ? AND NOT EXISTS (SELECT 1 FROM webhooks named WHERE named.id = ?
      AND named.all_organisations_and_projects = 0)`
