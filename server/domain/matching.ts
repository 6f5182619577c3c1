import type { Knex } from 'knex'
import type { EventType, WebhookStatus } from '../../shared/vocabulary.ts'
import { marks, rows } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { named } from '../database/fragment.ts'
import type { SendableWebhook } from './deliveries.ts'
import { allOf, isOnDemand, SIGHT, seesOrganisation } from './sight.ts'

// Which webhook receives which event: a webhook `w` of the token `t`, and an event that is written, `e`, or new, `p`.

/** An event in SQL, as far as the choice of a webhook needs it. */
type EventSql = {
  type: string
  /** Its project, if it may have one. */
  projectId?: string
  /** Whether it belongs to the organisation in a column. */
  isOf(column: string): string
}

const asksForType = ({ type }: EventSql): string =>
  `EXISTS (SELECT 1 FROM webhook_events we WHERE we.webhook_id = w.id AND we.event_type = ${type})`

/** The rows by which a webhook chooses organisations and projects: it receives an event that one of them covers. */
const choicesOf = ({ projectId, isOf }: EventSql) => [
  { table: 'webhooks', webhook: 'id', covers: 'n.all_organisations_and_projects = 1' },
  { table: 'webhook_organisations', webhook: 'webhook_id', covers: isOf('n.organisation_id') },
  ...(projectId === undefined
    ? []
    : [{ table: 'webhook_projects', webhook: 'webhook_id', covers: `n.project_id = ${projectId}` }]),
]

const chooses = (event: EventSql): string => {
  const choices = choicesOf(event).map(
    ({ table, webhook, covers }) => `EXISTS (SELECT 1 FROM ${table} n WHERE n.${webhook} = w.id AND ${covers})`,
  )
  return `(${choices.join(' OR ')})`
}

const WRITTEN: EventSql = {
  type: 'e.type',
  projectId: 'e.project_id',
  isOf: column => `(e.all_organisations = 1 OR ${column} = e.organisation_id OR EXISTS (
    SELECT 1 FROM event_organisations eo WHERE eo.event_id = e.id AND eo.organisation_id = ${column}))`,
}

/** What must be true for `w`, of the token `t`, to have the event `e`, whatever types it names and whenever it asks. */
const HAVING = {
  scope: chooses(WRITTEN),
  /** A webhook receives nothing about itself. */
  another: '(e.about_webhook_id IS NULL OR e.about_webhook_id <> w.id)',
  ...SIGHT,
}

/**
 * What must be true for `w`, of the token `t`, to receive the event `e`, by name. Matching and recovery ask whether all
 * of them are; an explanation selects each by itself. `active` is asked of a webhook whose row is locked, so that
 * whoever makes one active waits for the events under way.
 */
export const CONDITIONS = {
  undirected: `NOT ${isOnDemand('e')}`,
  /** Types about webhooks must be named. */
  type: `((w.all_events = 1 AND e.about_webhook_id IS NULL) OR ${asksForType(WRITTEN)})`,
  ...HAVING,
  existing: 'w.deleted_at IS NULL',
  created: 'w.created_at <= e.created_at',
  active: "w.status = 'active'",
}

/** SQL: whether `w` may have the event `e`. */
export const MAY_HAVE = allOf(HAVING)

const { active: _, ...ever } = CONDITIONS
/** SQL: whether `w` should have received the event `e` if it was active. */
export const SHOULD_HAVE = allOf(ever)

/** New events of one type: of projects, each of its present organisation, or of some organisations or all. */
export type NewEvents = { type: EventType } & ({ projectIds: string[] } | { organisationIds: string[] | 'all' })

const COLUMNS =
  'w.id, w.epoch, w.url, w.request_sealed, w.access_token_id, w.held_until, w.status, w.updated_at, w.ordering, ' +
  'w.ordered_since, w.transport'

/**
 * A webhook, the project of whose events it wants (an empty text for events of no project), and the time of its last
 * change before it was found to match. That time increases with each change.
 */
export type Matched = SendableWebhook & {
  status: WebhookStatus
  updated_at: number
  project_id: string
  matched_at: number
}

type Subjects = { from: string; event: EventSql; seen: string; values: Record<string, string[]> }

/**
 * What new events are of, as `p`: one row a project, or one row for all organisations together; and whether the limited
 * token `t` sees it.
 */
const subjectsOf = (events: NewEvents): Subjects => {
  const type = ':type'
  if ('projectIds' in events) {
    return {
      from: '(SELECT id, organisation_id FROM projects WHERE id IN (:projectIds)) p',
      event: { type, projectId: 'p.id', isOf: column => `${column} = p.organisation_id` },
      // Not EXISTS, which MariaDB cannot resolve when the statement is executed again.
      seen: seesOrganisation('t.id', 'p.organisation_id'),
      values: { projectIds: events.projectIds },
    }
  }
  const { organisationIds } = events
  const [among, ids] = organisationIds === 'all' ? ['IS NOT NULL', []] : ['IN (:organisationIds)', organisationIds]
  return {
    from: "(SELECT '' AS id, '' AS organisation_id) p",
    event: { type, isOf: column => `${column} ${among}` },
    seen: `EXISTS (SELECT 1 FROM access_token_organisations s
      WHERE s.access_token_id = t.id AND s.organisation_id ${among})`,
    values: { organisationIds: ids },
  }
}

type Statement = { sql: string; bindings: (string | number)[] }

/**
 * Selects the webhooks that want new events, active or not. The webhooks are found by the choices they made: with the
 * choices as conditions, as for an event that is written, each event would read every webhook.
 */
const matching = (events: NewEvents): Statement => {
  const { from, event, seen, values } = subjectsOf(events)
  const choices = choicesOf(event).map(
    ({ table, webhook, covers }) =>
      `SELECT p.id, p.organisation_id, n.${webhook} AS webhook_id FROM ${from} JOIN ${table} n ON ${covers}`,
  )
  return named(
    `SELECT p.id AS project_id, ${COLUMNS}, w.updated_at AS matched_at FROM (${choices.join(' UNION ')}) p
     JOIN webhooks w ON w.id = p.webhook_id
     JOIN access_tokens t ON t.id = w.access_token_id
     WHERE ${CONDITIONS.existing} AND (w.all_events = 1 OR ${asksForType(event)})
       AND (t.sees_all_organisations = 1 OR ${seen})`,
    { type: events.type, ...values },
  )
}

/**
 * The active webhooks that want new events of one subject, locked until the transaction ends, so that no delivery is
 * queued for a webhook that has left `active` or has narrowed its filters. Inactive ones are locked too: whoever makes
 * one active, or recovers what it missed, waits for the events under way and finds them.
 */
export const webhooksFor = async (trx: Knex.Transaction, events: NewEvents): Promise<SendableWebhook[]> => {
  const { forShare, useIndex } = dialectOf(trx)
  const { sql, bindings } = matching(events)
  const found = await rows<Matched>(
    trx,
    forShare === ''
      ? sql
      : // Matched first and then locked by id alone; in another order, rows that do not match would be locked.
        `SELECT m.project_id, m.matched_at, ${COLUMNS} FROM (${sql}) m
         STRAIGHT_JOIN webhooks w ${useIndex('PRIMARY')} ON w.id = m.id ORDER BY w.id${forShare}`,
    bindings,
    { isPrepared: 'projectIds' in events },
  )
  const active = found.filter(isActive)
  if (active.every(isUnchanged)) return active
  const still = new Set((await rows<Matched>(trx, sql, bindings)).map(row => row.id))
  return active.filter(row => still.has(row.id))
}

const isActive = ({ status }: Matched): boolean => status === 'active'
const isUnchanged = ({ updated_at, matched_at }: Matched): boolean => updated_at === matched_at

/** The first webhooks that want new events of several projects, active or not, and not locked. */
export const firstWebhooksFor = (trx: Knex.Transaction, events: NewEvents, limit: number): Promise<Matched[]> => {
  const { sql, bindings } = matching(events)
  return rows(trx, `${sql} LIMIT ?`, [...bindings, limit])
}

/**
 * As `webhooksFor`, for the projects of which `matched` are all webhooks, by project. Without the projects for which
 * that cannot be said at once, because another transaction is changing one of the webhooks.
 */
export const lockMatched = async (
  trx: Knex.Transaction,
  matched: Matched[],
  projectIds: string[],
): Promise<Map<string, SendableWebhook[]>> => {
  const { forShareSkipLocked, useIndex } = dialectOf(trx)
  const ids = [...new Set(matched.map(({ id }) => id))].toSorted()
  const found = new Map<string, SendableWebhook & { updated_at: number }>(matched.map(row => [row.id, row]))
  if (forShareSkipLocked !== '' && ids.length > 0) {
    found.clear()
    const select = `SELECT ${COLUMNS} FROM webhooks w ${useIndex('PRIMARY')} WHERE w.id IN (${marks(ids)})
      ORDER BY w.id${forShareSkipLocked}`
    for (const row of await rows<Matched>(trx, select, ids)) found.set(row.id, row)
  }
  const byProject = new Map<string, SendableWebhook[]>(projectIds.map(id => [id, []]))
  for (const row of matched) {
    const webhook = found.get(row.id)
    if (webhook?.updated_at !== row.matched_at) byProject.delete(row.project_id)
    else if (isActive(row)) byProject.get(row.project_id)?.push(webhook)
  }
  return byProject
}
