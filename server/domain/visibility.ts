import type { Knex } from 'knex'
import { notFound } from '../../shared/errors.ts'
import type { Sql } from '../database/connect.ts'
import { otherWork } from '../database/turn.ts'
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

// All rules of visibility. A rule narrows a SELECT by conditions on columns that are named with their table.

type Rule = (token: AccessToken) => Visible

/**
 * The rows of a resource that an access token sees. Every read for a caller goes through here, related rows included.
 * Users belong to no organisation, and attempts to their delivery, so neither has a rule.
 */
export const visibleTo =
  (token: AccessToken) =>
  (resource: Resource): Visible =>
    rules.get(resource)?.(token) ?? everything

const everything: Visible = () => {}

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

/** The ids of the organisations that some tokens were created with; none for a token that sees all. */
const organisationIdsOf =
  (tokenIds: string[]) =>
  (builder: Knex.QueryBuilder): void => {
    builder.select('organisation_id').from('access_token_organisations').whereIn('access_token_id', tokenIds)
  }

/** Narrows a SELECT of organisations to those that some tokens were created with. */
export const createdWith =
  (tokenIds: string[]): Visible =>
  builder => {
    builder.whereIn('organisations.id', organisationIdsOf(tokenIds))
  }

/** The organisations that a token sees, as a condition on a column that holds their id. */
const whereOrganisationVisible = (builder: Knex.QueryBuilder, token: AccessToken, column: string): void => {
  if (!token.seesAllOrganisations) builder.whereIn(column, organisationIdsOf([token.id]))
}

const visibleOrganisations: Rule = token => builder => whereOrganisationVisible(builder, token, 'organisations.id')

const visibleProjects: Rule = token => builder => whereOrganisationVisible(builder, token, 'projects.organisation_id')

const visibleProjectReports: Rule = token => builder => {
  if (token.seesAllOrganisations) return
  builder.whereIn('project_reports.project_id', query => {
    query.select('projects.id').from('projects').modify(visibleProjects(token))
  })
}

/** An event belongs to one organisation, several, or all; an event on demand belongs to none. */
const visibleEvents: Rule = token => builder => {
  if (token.seesAllOrganisations) return
  whereAboutVisible(builder, token)
  builder.where(some => {
    some.where(one => whereOrganisationVisible(one, token, 'events.organisation_id'))
    some.orWhere(unowned => whereVisibleThoughOfNoneAlone(unowned, token))
  })
}

/** An event about a webhook is visible only to those who also see that webhook. */
const whereAboutVisible = (builder: Knex.QueryBuilder, token: AccessToken): void => {
  builder.where(about =>
    about.whereNull('events.about_webhook_id').orWhereIn('events.about_webhook_id', seen => {
      seen.select('webhooks.id').from('webhooks').modify(visibleWebhooks(token))
    }),
  )
}

/** The events visible to a token among those that do not belong to exactly one organisation. */
const whereVisibleThoughOfNoneAlone = (builder: Knex.QueryBuilder, token: AccessToken): void => {
  builder.whereNull('events.organisation_id').where(some => {
    some.where(all => all.where('events.all_organisations', 1).whereExists(organisationIdsOf([token.id])))
    some.orWhereRaw(`EXISTS (${IS_SHARED_WITH})`, [token.id])
    some.orWhere(onDemand =>
      onDemand
        .where(one => one.where('events.type', 'ping').orWhere('events.example', 1))
        .whereExists(sent =>
          sent
            .select('sent.event_id')
            .from('deliveries as sent')
            .whereRaw('sent.event_id = events.id')
            .whereIn('sent.webhook_id', webhook => {
              webhook.select('webhooks.id').from('webhooks').modify(visibleWebhooks(token))
            }),
        ),
    )
  })
}

const IS_SHARED_WITH = `SELECT 1 FROM event_organisations eo
  JOIN access_token_organisations s ON s.organisation_id = eo.organisation_id AND s.access_token_id = ?
  WHERE eo.event_id = events.id`

/**
 * Narrows to the rows for which a subquery has a row, by an index lookup for each. In this form no engine turns it into
 * a join, which might start at the other table.
 */
const rowByRow = (builder: Knex.QueryBuilder, subquery: string, bindings: string[]): void => {
  builder.whereRaw(`CASE WHEN EXISTS (${subquery}) THEN 1 ELSE 0 END = 1`, bindings)
}

/**
 * A delivery is visible if both its webhook and its event are. So a token that sees a webhook only since its filters
 * were narrowed does not see what the webhook received before.
 */
const visibleDeliveries: Rule = token => builder => {
  if (token.seesAllOrganisations) return
  builder.whereIn('deliveries.webhook_id', query => {
    query.select('webhooks.id').from('webhooks').modify(visibleWebhooks(token))
  })
  whereEventVisible(builder, token)
}

/**
 * The deliveries whose event a token sees, among those whose webhook it sees. An event on demand is visible with its
 * webhook.
 */
const whereEventVisible = (builder: Knex.QueryBuilder, { id }: AccessToken): void => {
  rowByRow(
    builder,
    `SELECT 1 FROM events WHERE events.id = deliveries.event_id AND (
       events.type = 'ping' OR events.example = 1
       OR EXISTS (SELECT 1 FROM access_token_organisations s WHERE s.access_token_id = ?
         AND (s.organisation_id = events.organisation_id OR events.all_organisations = 1))
       OR EXISTS (${IS_SHARED_WITH}))
     AND (events.about_webhook_id IS NULL OR EXISTS (SELECT 1 FROM webhooks about JOIN access_tokens t ON t.id = ?
       WHERE about.id = events.about_webhook_id AND ${SEES_WEBHOOK}))`,
    [id, id, id],
  )
}

/** The most parts, plus one for the rest. */
const MOST_PARTS = 100

/**
 * The visible rows of a resource in disjoint parts: events by organisation, deliveries by webhook. Undefined for one
 * part or too many.
 */
export const partsOf = async (sql: Sql, token: AccessToken, resource: Resource): Promise<Visible[] | undefined> => {
  if (token.seesAllOrganisations) return undefined
  if (resource.name === events.name) {
    const ids: string[] = await sql
      .from('access_token_organisations')
      .where('access_token_id', token.id)
      .limit(MOST_PARTS + 1)
      .pluck('organisation_id')
    if (ids.length > MOST_PARTS) return undefined
    const owned = ids.map(
      (id): Visible =>
        builder =>
          builder.where('events.organisation_id', id),
    )
    const parts: Visible[] = [...owned, builder => whereVisibleThoughOfNoneAlone(builder, token)]
    return parts.map(
      (part): Visible =>
        builder =>
          whereAboutVisible(builder.modify(part), token),
    )
  }
  if (resource.name === deliveries.name) {
    const ids: string[] = await sql('webhooks')
      .modify(visibleWebhooks(token))
      .limit(MOST_PARTS + 1)
      .pluck('webhooks.id')
    if (ids.length > MOST_PARTS) return undefined
    return ids.map(
      (id): Visible =>
        builder =>
          whereEventVisible(builder.where('deliveries.webhook_id', id), token),
    )
  }
  return undefined
}

/** An admin sees the tokens whose organisations it sees, if they have any. Any other token sees only itself. */
const visibleAccessTokens: Rule = token => builder => {
  if (!may(token, 'admin')) return void builder.where('access_tokens.id', token.id)
  if (token.seesAllOrganisations) return
  builder.where(own =>
    own.where('access_tokens.id', token.id).orWhere(inside =>
      inside
        .where('access_tokens.sees_all_organisations', 0)
        .whereExists(query =>
          query
            .select('any.access_token_id')
            .from('access_token_organisations as any')
            .whereRaw('any.access_token_id = access_tokens.id'),
        )
        .whereNotExists(query =>
          query
            .select('seen.access_token_id')
            .from('access_token_organisations as seen')
            .whereRaw('seen.access_token_id = access_tokens.id')
            .whereNotIn('seen.organisation_id', organisationIdsOf([token.id])),
        ),
    ),
  )
}

/**
 * SQL: whether a limited token sees a webhook, by the webhook's alias and the token's id. A webhook is visible to its
 * own token, and to every token that sees all organisations that it can receive from. These are the organisations that
 * the webhook names and those of its named projects, or, if it names none, those that its creator sees. A project also
 * counts with the organisation in which it was named, so that moving it hands over no webhook.
 */
const seesWebhook = (webhook: string, tokenId: string): string => {
  const seen = `SELECT s.organisation_id FROM access_token_organisations s WHERE s.access_token_id = ${tokenId}`
  return `
  (${webhook}.access_token_id = ${tokenId}
    OR (${webhook}.all_organisations_and_projects = 0
      AND NOT EXISTS (SELECT 1 FROM webhook_organisations wo
        WHERE wo.webhook_id = ${webhook}.id AND wo.organisation_id NOT IN (${seen}))
      AND NOT EXISTS (SELECT 1 FROM webhook_projects wp JOIN projects p ON p.id = wp.project_id
        WHERE wp.webhook_id = ${webhook}.id
          AND (p.organisation_id NOT IN (${seen}) OR wp.organisation_id NOT IN (${seen}))))
    OR (${webhook}.all_organisations_and_projects = 1 AND EXISTS (SELECT 1 FROM access_tokens maker
      WHERE maker.id = ${webhook}.access_token_id AND maker.sees_all_organisations = 0
        AND EXISTS (SELECT 1 FROM access_token_organisations mo WHERE mo.access_token_id = maker.id)
        AND NOT EXISTS (SELECT 1 FROM access_token_organisations mo
          WHERE mo.access_token_id = maker.id AND mo.organisation_id NOT IN (${seen})))))`
}

/** SQL: whether the limited token `t` sees the webhook `about`. */
export const SEES_WEBHOOK = seesWebhook('about', 't.id')

const SEES_LISTED = seesWebhook('webhooks', '?')
const BINDINGS = SEES_LISTED.split('?').length - 1

export const visibleWebhooks: Rule = token => builder => {
  if (!token.seesAllOrganisations) builder.whereRaw(SEES_LISTED, Array(BINDINGS).fill(token.id))
}

/** The audit log is visible only to an admin that sees all organisations. */
const visibleAuditLog: Rule = token => builder => {
  // A row without an operation only marks a signature.
  builder.whereNot('audit_log.operation', '')
  if (!may(token, 'admin') || !token.seesAllOrganisations) builder.whereRaw('1 = 0')
}

const rules = new Map<Resource, Rule>([
  [accessTokens, visibleAccessTokens],
  [auditLog, visibleAuditLog],
  [deliveries, visibleDeliveries],
  [events, visibleEvents],
  [organisations, visibleOrganisations],
  [projectReports, visibleProjectReports],
  [projects, visibleProjects],
  [webhooks, visibleWebhooks],
])
