import type { EventType, WebhookStatus } from '../../shared/vocabulary.ts'
import { marks, rows } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { named } from '../database/fragment.ts'
import type { Transaction } from '../database/transaction.ts'
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

/** Lists of a webhook as they were, in place of those that it has. */
export type Choices = { organisationIds?: string[] | undefined; projectIds?: string[] | undefined }

/** SQL: whether `w` would choose the written event `e` by other lists. */
export const choosesBy = (given: Choices): { sql: string; bindings: string[] } => {
  const lists = { webhook_organisations: given.organisationIds, webhook_projects: given.projectIds }
  const sources = { webhook_organisations: 'organisations', webhook_projects: 'projects' }
  const columns = { webhook_organisations: 'organisation_id', webhook_projects: 'project_id' }
  const isChoice = (table: string): table is keyof typeof lists => table in lists
  const bindings: string[] = []
  const namesOne: string[] = []
  const covering = choicesOf(WRITTEN).flatMap(({ table, covers }) => {
    if (!isChoice(table)) return []
    const list = lists[table]
    // A derived table may not depend on `w`: MariaDB has no LATERAL.
    const from =
      list === undefined
        ? `${table} n WHERE n.webhook_id = w.id`
        : `(SELECT id AS ${columns[table]} FROM ${sources[table]} WHERE id IN (${marks(list) || "''"})) n WHERE 1 = 1`
    namesOne.push(list === undefined ? `EXISTS (SELECT 1 FROM ${from})` : list.length > 0 ? '1 = 1' : '1 = 0')
    bindings.push(...(list ?? []))
    return [`EXISTS (SELECT 1 FROM ${from} AND ${covers})`]
  })
  return { sql: `(NOT (${namesOne.join(' OR ')}) OR ${covering.join(' OR ')})`, bindings }
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

/** The columns of a webhook that is locked before the others are read. */
const COLUMNS_BEFORE = 'w.id, w.updated_at, w.ordering'

type Locked = SendableWebhook & {
  status: WebhookStatus
  /** The time of its last change, which increases with each. */
  updated_at: number
}

/** A webhook, and the project of whose events it wants (an empty text for events of no project). */
export type Wanting = Pick<Locked, 'id' | 'updated_at' | 'ordering'> & { project_id: string }

type Subjects = { from: string; among: string; event: EventSql; seen: string; values: Record<string, string[]> }

/**
 * What new events are of, as `p`: one row a project (those `among` them), or one row for all organisations together;
 * and whether the limited token `t` sees it.
 */
const subjectsOf = (events: NewEvents): Subjects => {
  const type = ':type'
  if ('projectIds' in events) {
    return {
      from: 'projects p',
      among: 'p.id IN (:projectIds)',
      event: { type, projectId: 'p.id', isOf: column => `${column} = p.organisation_id` },
      // Not EXISTS, which MariaDB cannot resolve when the statement is executed again.
      seen: seesOrganisation('t.id', 'p.organisation_id'),
      values: { projectIds: events.projectIds },
    }
  }
  const { organisationIds } = events
  const [theirs, ids] = organisationIds === 'all' ? ['IS NOT NULL', []] : ['IN (:organisationIds)', organisationIds]
  return {
    from: "(SELECT '' AS id, '' AS organisation_id) p",
    among: '1 = 1',
    event: { type, isOf: column => `${column} ${theirs}` },
    seen: `EXISTS (SELECT 1 FROM access_token_organisations s
      WHERE s.access_token_id = t.id AND s.organisation_id ${theirs})`,
    values: { organisationIds: ids },
  }
}

type Statement = { sql: string; bindings: (string | number)[] }

/**
 * Selects the webhooks that want new events, active or not. The webhooks are found by the choices they made: with the
 * choices as conditions, as for an event that is written, each event would read every webhook. So it would on SQLite if
 * that chose the order, which CROSS JOIN tells it.
 */
const matching = (events: NewEvents, columns: string): Statement => {
  const { from, among, event, seen, values } = subjectsOf(events)
  const choices = choicesOf(event).map(
    ({ table, webhook, covers }) =>
      `SELECT p.id, p.organisation_id, n.${webhook} AS webhook_id FROM ${from} JOIN ${table} n ON ${covers}
       WHERE ${among}`,
  )
  return named(
    `SELECT p.id AS project_id, ${columns} FROM (${choices.join(' UNION ')}) p
     CROSS JOIN webhooks w ON w.id = p.webhook_id
     CROSS JOIN access_tokens t ON t.id = w.access_token_id
     WHERE ${CONDITIONS.existing} AND (w.all_events = 1 OR ${asksForType(event)})
       AND (t.sees_all_organisations = 1 OR ${seen})`,
    { type: events.type, ...values },
  )
}

/** The webhooks that want new events, active or not, not locked: all of them, or the first `limit`. */
export const findWanting = (trx: Transaction, events: NewEvents, limit?: number): Promise<Wanting[]> => {
  const { sql, bindings } = matching(events, locks(trx) ? COLUMNS_BEFORE : COLUMNS)
  if (limit !== undefined) return rows(trx, `${sql} LIMIT ?`, [...bindings, limit])
  return rows(trx, sql, bindings, { isPrepared: 'projectIds' in events && events.projectIds.length === 1 })
}

/**
 * Of the webhooks that want new events, those that are active and have stayed as they were found, by project (an empty
 * text for events of no project). They are locked until the transaction ends, so that no delivery is queued for a
 * webhook that has left `active` or has narrowed its filters. Inactive ones are locked too: whoever makes one active,
 * or recovers what it missed, waits for the events under way and finds them.
 *
 * @param waits whether to wait for webhooks that another transaction is changing, and match them again. Otherwise the
 *   projects concerned are left out
 */
export const lockWanting = async (
  trx: Transaction,
  events: NewEvents,
  found: Wanting[],
  waits: boolean,
): Promise<Map<string, SendableWebhook[]>> => {
  const locked = await lockWebhooks(trx, found, waits)
  const isAsFound = ({ id, updated_at }: Wanting): boolean => locked.get(id)?.updated_at === updated_at
  const byProject = new Map<string, SendableWebhook[]>(
    'projectIds' in events ? events.projectIds.map(id => [id, []]) : [['', []]],
  )
  const isChanged = !found.every(isAsFound)
  const again = isChanged && waits ? await findWanting(trx, events) : found
  const still = new Set(again.map(({ id, project_id }) => `${id} ${project_id}`))
  if (!waits) for (const row of found) if (!isAsFound(row)) byProject.delete(row.project_id)
  for (const { id, project_id } of found) {
    const webhook = locked.get(id)
    const isWanting = webhook?.status === 'active' && still.has(`${id} ${project_id}`)
    if (isWanting) byProject.get(project_id)?.push(webhook)
  }
  return byProject
}

/** Without row locks, nobody else changes webhooks while a transaction lasts: they are read once, whole. */
const locks = (trx: Transaction): boolean => dialectOf(trx).forShare !== ''

/** Locks webhooks by id alone, after they were matched: in another order, rows that do not match would be locked. */
const lockWebhooks = async (trx: Transaction, found: Wanting[], waits: boolean): Promise<Map<string, Locked>> => {
  const { forShare, forShareSkipLocked, useIndex } = dialectOf(trx)
  const ids = [...new Set(found.map(({ id }) => id))].toSorted()
  if (!locks(trx)) return new Map((found as (Wanting & Locked)[]).map(row => [row.id, row]))
  const locked: Locked[] = []
  for (let from = 0; from < ids.length; from += WEBHOOKS_A_STATEMENT) {
    const part = ids.slice(from, from + WEBHOOKS_A_STATEMENT)
    locked.push(
      ...(await rows<Locked>(
        trx,
        `SELECT ${COLUMNS} FROM webhooks w ${useIndex('PRIMARY')} WHERE w.id IN (${marks(part)})
         ORDER BY w.id${waits ? forShare : forShareSkipLocked}`,
        part,
      )),
    )
  }
  return new Map(locked.map(row => [row.id, row]))
}

const WEBHOOKS_A_STATEMENT = 1_000

/** The active webhooks that want new events of one subject, found and locked, with a wait for their changes. */
export const webhooksFor = async (trx: Transaction, events: NewEvents): Promise<SendableWebhook[]> =>
  [...(await lockWanting(trx, events, await findWanting(trx, events), true)).values()].flat()
