import { notFound } from '../../shared/errors.ts'
import { rows, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { named } from '../database/fragment.ts'
import { otherWork } from '../event-loop.ts'
import type { Resource, Visible } from '../mango/resource.ts'
import { type AccessToken, may } from './permissions.ts'
import {
  accessTokens,
  auditLog,
  deliveries,
  type Entity,
  events,
  organisations,
  projectReports,
  projects,
  webhooks,
} from './resources.ts'
import {
  isOnDemand,
  seesOneOfOwners,
  seesOrganisation,
  seesOwner,
  seesSubject,
  seesToken,
  seesWebhook,
  webhookCandidates,
} from './sight.ts'

// All rules of visibility. A rule narrows a SELECT by conditions on columns that are named with their table.

/**
 * The rows of a resource that an access token sees. Every read for a caller goes through here, related rows included.
 * Users belong to no organisation, and attempts to their delivery, so neither has a rule. `ofSeen`: of deliveries whose
 * webhook the token is known to see.
 */
export const visibleTo =
  (token: AccessToken) =>
  (resource: Resource, ofSeen = false): Visible => {
    if (resource === auditLog) return visibleAuditLog(token)
    if (resource === accessTokens && !may(token, 'admin')) return where(token, 'access_tokens.id = :token')
    const isNarrower = ofSeen && resource === deliveries
    const rule = token.seesAllOrganisations ? undefined : isNarrower ? EVENT_VISIBLE : limited.get(resource)
    return rule === undefined ? () => {} : where(token, rule)
  }

/** Whether a token sees a webhook whatever that receives: it sees all, or has created it (`seesWebhook`). */
export const seesAnyway = (token: AccessToken, webhook: { access_token_id: string }): boolean =>
  token.seesAllOrganisations || webhook.access_token_id === token.id

/** Narrows by a condition on the id of the token, `:token`, and the ids of webhooks that it sees, `:seen`. */
const where = ({ id }: AccessToken, condition: string, seen: readonly string[] = []): Visible => {
  // No list is empty in SQL, and no webhook has the id of a token.
  const { sql, bindings } = named(`(${condition})`, { token: id, seen: [id, ...seen] })
  return builder => builder.whereRaw(sql, bindings)
}

/**
 * The rows that a token finds in lists and by id. A deleted webhook is not among them; only its deliveries lead to it.
 */
export const listedTo =
  (token: AccessToken) =>
  (resource: Resource): Visible =>
  builder => {
    builder.modify(visibleTo(token)(resource))
    if (resource === webhooks) builder.whereNull('webhooks.deleted_at')
  }

/** More ids would block the process for too long, and make an error that nobody reads. */
const IDS_AT_ONCE = 1_000

/** Throws NOT_FOUND, with the first ids that the token does not see, unless it sees all of them. */
export const requireVisible = async (sql: Sql, token: AccessToken, resource: Entity, ids: string[]): Promise<void> => {
  const { table, singular } = resource
  for (let from = 0; from < ids.length; from += IDS_AT_ONCE) {
    if (ids.length > IDS_AT_ONCE) await otherWork()
    const some = ids.slice(from, from + IDS_AT_ONCE)
    const query = sql(table).select(`${table}.id`).whereIn(`${table}.id`, some)
    const found: { id: string }[] = await query.modify(listedTo(token)(resource))
    const seen = new Set(found.map(row => row.id))
    const missing = some.filter(id => !seen.has(id))
    if (missing.length > 0) throw notFound(singular, missing)
  }
}

/** The row of `resource` with this id. Throws NOT_FOUND if the token does not see it. */
export const visibleRow = async <Row>(sql: Sql, token: AccessToken, resource: Entity, id: string): Promise<Row> => {
  const row = await findVisible<Row>(sql, token, resource, id)
  if (!row) throw notFound(resource.singular, [id])
  return row
}

/** The row of `resource` with this id, if the token sees it. */
export const findVisible = async <Row>(
  sql: Sql,
  token: AccessToken,
  resource: Entity,
  id: string,
): Promise<Row | undefined> => {
  const { table } = resource
  const query = sql(table).select(`${table}.*`).where(`${table}.id`, id)
  return query.modify(listedTo(token)(resource)).first()
}

/** Narrows a SELECT of organisations to those that some tokens were created with. */
export const createdWith =
  (tokenIds: string[]): Visible =>
  builder => {
    builder.whereIn('organisations.id', query => {
      query.select('organisation_id').from('access_token_organisations').whereIn('access_token_id', tokenIds)
    })
  }

const WEBHOOK_VISIBLE = seesWebhook(':token', 'webhooks')
const VISIBLE_WEBHOOKS = `SELECT webhooks.id FROM webhooks WHERE ${WEBHOOK_VISIBLE}`
const SUBJECT_VISIBLE = seesSubject(':token', 'events')

/**
 * The events visible to a limited token among those that do not belong to exactly one organisation.
 *
 * @param seen SQL of the ids of the webhooks that it sees
 */
const ofNoneAlone = (seen: string): string => `(${seesOneOfOwners(':token', 'events')}
  OR (events.organisation_id IS NULL AND ${isOnDemand('events')} AND EXISTS (
    SELECT 1 FROM deliveries sent WHERE sent.event_id = events.id AND sent.webhook_id IN (${seen}))))`

/**
 * The deliveries whose event a limited token sees, among those whose webhook it sees. They are narrowed row by row: in
 * this form no engine turns it into a join, which might start at the other table.
 */
const EVENT_VISIBLE = `CASE WHEN EXISTS (SELECT 1 FROM events WHERE events.id = deliveries.event_id
  AND (${isOnDemand('events')} OR ${seesOwner(':token', 'events')} OR ${seesOneOfOwners(':token', 'events')})
  AND ${SUBJECT_VISIBLE}) THEN 1 ELSE 0 END = 1`

/** The rows that a token sees that does not see all organisations. */
const limited = new Map<Resource, string>([
  // An admin sees itself, and the tokens whose organisations it sees, if they have any.
  [accessTokens, `access_tokens.id = :token OR ${seesToken(':token', 'access_tokens')}`],
  // A token that sees a webhook only since its filters were narrowed does not see what the webhook received before.
  [deliveries, `deliveries.webhook_id IN (${VISIBLE_WEBHOOKS}) AND ${EVENT_VISIBLE}`],
  // An event belongs to one organisation, several, or all; an event on demand belongs to none.
  [events, `${SUBJECT_VISIBLE} AND (${seesOwner(':token', 'events')} OR ${ofNoneAlone(VISIBLE_WEBHOOKS)})`],
  [organisations, seesOrganisation(':token', 'organisations.id')],
  [
    projectReports,
    `project_reports.project_id IN (
      SELECT projects.id FROM projects WHERE ${seesOrganisation(':token', 'projects.organisation_id')})`,
  ],
  [projects, seesOrganisation(':token', 'projects.organisation_id')],
  [webhooks, WEBHOOK_VISIBLE],
])

/** The audit log is visible only to an admin that sees all organisations. */
const visibleAuditLog =
  (token: AccessToken): Visible =>
  builder => {
    // A row without an operation only marks a signature.
    builder.whereNot('audit_log.operation', '')
    if (!may(token, 'admin') || !token.seesAllOrganisations) builder.whereRaw('1 = 0')
  }

/** The most parts, plus one for the rest. */
const MOST_PARTS = 100

/**
 * The organisations that a limited token sees, one more than there may be parts, and the ids of all webhooks that it
 * sees and of which a condition is true. Candidates are found from the organisations, because the rule alone looks at
 * every webhook there is. `webhookIds` is undefined if there are too many organisations, or if one of the ways from
 * them leads to too many webhooks.
 */
const seenBy = async (sql: Sql, token: AccessToken, condition = '1 = 1') => {
  const candidates = webhookCandidates(':token', MOST_PARTS + 1, dialectOf(sql).joinInOrder)
  const statement = named(
    `SELECT c.way, CASE WHEN c.way = 0 THEN c.id ELSE webhooks.id END AS id FROM (${candidates}) c
     LEFT JOIN webhooks ON webhooks.id = c.id AND ${WEBHOOK_VISIBLE} AND ${condition}`,
    { token: token.id },
  )
  const found = await rows<{ way: number; id: string | null }>(sql, statement.sql, statement.bindings)
  const byWay = Map.groupBy(found, ({ way }) => way)
  const isWhole = byWay.values().every(({ length }) => length <= MOST_PARTS)
  const organisationIds = (byWay.get(0) ?? []).map(({ id }) => id!)
  byWay.delete(0)
  const ids = new Set([...byWay.values()].flatMap(way => way.flatMap(({ id }) => id ?? [])))
  return { organisationIds, webhookIds: isWhole && ids.size <= MOST_PARTS ? [...ids] : undefined }
}

/** The ids of webhooks that a token sees, one more than there may be parts. */
const anyWebhooks = (sql: Sql, token: AccessToken): Promise<string[]> =>
  sql('webhooks')
    .modify(visibleTo(token)(webhooks))
    .limit(MOST_PARTS + 1)
    .pluck('webhooks.id')

/**
 * The visible rows of a resource in disjoint parts: events by organisation, deliveries by webhook, webhooks as one.
 * Undefined if there would be too many.
 *
 * Rejected: the rule as a condition of one statement. Of 5,000,000 deliveries, a token that sees one webhook in a
 * hundred had its newest 50 after the time limit; in parts, 50 entries of an index are read (MySQL 9.7, decision 16).
 */
export const partsOf = async (sql: Sql, token: AccessToken, resource: Resource): Promise<Visible[] | undefined> => {
  if (token.seesAllOrganisations) return undefined
  if (resource.name === events.name) {
    const { organisationIds, webhookIds } = await seenBy(sql, token)
    if (organisationIds.length > MOST_PARTS) return undefined
    const subjectVisible = where(token, SUBJECT_VISIBLE)
    const owned = organisationIds.map(
      (id): Visible =>
        builder =>
          builder.where('events.organisation_id', id).modify(subjectVisible),
    )
    const seen = webhookIds === undefined ? VISIBLE_WEBHOOKS : ':seen'
    return [...owned, where(token, `${ofNoneAlone(seen)} AND ${SUBJECT_VISIBLE}`, webhookIds)]
  }
  if (resource.name === webhooks.name) {
    const { webhookIds } = await seenBy(sql, token, 'webhooks.deleted_at IS NULL')
    return webhookIds && [builder => builder.whereIn('webhooks.id', webhookIds)]
  }
  if (resource.name === deliveries.name) {
    const ids = (await seenBy(sql, token)).webhookIds ?? (await anyWebhooks(sql, token))
    if (ids.length > MOST_PARTS) return undefined
    const eventVisible = where(token, EVENT_VISIBLE)
    return ids.map(
      (id): Visible =>
        builder =>
          builder.where('deliveries.webhook_id', id).modify(eventVisible),
    )
  }
  return undefined
}
