import { marks, rows, type Sql } from '../database/connect.ts'
import { STATEMENT_LIMITS } from '../database/dialect.ts'

// What an access token sees, as SQL: the same for lists, for matching, before each attempt and for recovery. `token` is
// the id of a token that sees some organisations only, as a column or as a name to bind (`named`); the others are
// aliases. Each condition is true or false, never NULL, so that it can be negated.

const organisationsOf = (token: string): string =>
  `SELECT s.organisation_id FROM access_token_organisations s WHERE s.access_token_id = ${token}`

export const seesOrganisation = (token: string, column: string): string => `${column} IN (${organisationsOf(token)})`

/** Another token that sees something, and nothing that `token` does not see. */
export const seesToken = (token: string, other: string): string => {
  const its = `SELECT 1 FROM access_token_organisations o WHERE o.access_token_id = ${other}.id`
  return `(${other}.sees_all_organisations = 0 AND EXISTS (${its})
    AND NOT EXISTS (${its} AND o.organisation_id NOT IN (${organisationsOf(token)})))`
}

/**
 * A webhook is visible to its own token, and to every token that sees all organisations that it can receive from. These
 * are the organisations that the webhook names and those of its named projects, or, if it names none, those that its
 * creator sees. A project also counts with the organisation in which it was named, so that moving it hands over no
 * webhook.
 */
export const seesWebhook = (token: string, webhook: string): string => {
  const seen = organisationsOf(token)
  return `(${webhook}.access_token_id = ${token}
    OR (${webhook}.all_organisations_and_projects = 0
      AND NOT EXISTS (SELECT 1 FROM webhook_organisations wo
        WHERE wo.webhook_id = ${webhook}.id AND wo.organisation_id NOT IN (${seen}))
      AND NOT EXISTS (SELECT 1 FROM webhook_projects wp JOIN projects p ON p.id = wp.project_id
        WHERE wp.webhook_id = ${webhook}.id
          AND (p.organisation_id NOT IN (${seen}) OR wp.organisation_id NOT IN (${seen}))))
    OR (${webhook}.all_organisations_and_projects = 1 AND EXISTS (SELECT 1 FROM access_tokens maker
      WHERE maker.id = ${webhook}.access_token_id AND ${seesToken(token, 'maker')})))`
}

/**
 * Candidates for the webhooks that a limited token sees (`seesWebhook`), by ways that begin at the token and at its
 * organisations, and that miss none; the rule itself looks at every webhook there is. The columns are `way` and `id`;
 * way 0 leads to the organisations. A way ends after `most` rows, and begins at no more organisations.
 *
 * A webhook that names something names an organisation of the token's, or a project that was in one.
 */
export const webhookCandidates = (token: string, most: number, joinInOrder: string): string => {
  const own = `SELECT s.organisation_id AS id FROM access_token_organisations s WHERE s.access_token_id = ${token}`
  const ofOwn = (table: string, id: string) =>
    `SELECT ${id} AS id FROM (${own} LIMIT ${most}) own ${joinInOrder} ${table} n ON n.organisation_id = own.id`
  const ways = [
    own,
    `SELECT w.id FROM webhooks w WHERE w.access_token_id = ${token}`,
    ofOwn('webhook_organisations', 'n.webhook_id'),
    ofOwn('webhook_projects', 'n.webhook_id'),
    `${ofOwn('access_token_organisations', 'w.id')}
      ${joinInOrder} webhooks w ON w.access_token_id = n.access_token_id AND w.all_organisations_and_projects = 1`,
  ]
  return ways.map((way, n) => `SELECT ${n} AS way, id FROM (${way} LIMIT ${most}) way${n}`).join(' UNION ALL ')
}

/** An event on demand belongs to no organisation, and is visible to whoever sees the webhook that it was sent to. */
export const isOnDemand = (event: string): string => `(${event}.type = 'ping' OR ${event}.example = 1)`

/** The organisation of an event that belongs to exactly one. */
export const seesOwner = (token: string, event: string): string =>
  `(${event}.organisation_id IS NOT NULL AND ${seesOrganisation(token, `${event}.organisation_id`)})`

/** One of the organisations of an event that belongs to several or to all. */
export const seesOneOfOwners = (token: string, event: string): string =>
  `(${event}.organisation_id IS NULL AND (
    (${event}.all_organisations = 1 AND EXISTS (${organisationsOf(token)}))
    OR EXISTS (SELECT 1 FROM event_organisations eo
      JOIN access_token_organisations s ON s.organisation_id = eo.organisation_id AND s.access_token_id = ${token}
      WHERE eo.event_id = ${event}.id)))`

/** The webhook that an event is about, if it is about one. */
export const seesSubject = (token: string, event: string): string =>
  `(${event}.about_webhook_id IS NULL OR EXISTS (SELECT 1 FROM webhooks about
    WHERE about.id = ${event}.about_webhook_id AND ${seesWebhook(token, 'about')}))`

/** The present organisation of an event's project. */
const seesProject = (token: string, event: string): string =>
  `NOT EXISTS (SELECT 1 FROM projects p
    WHERE p.id = ${event}.project_id AND NOT ${seesOrganisation(token, 'p.organisation_id')})`

/** What must be true for the token `t`, limited or not, to be sent the event `e`, unless that is on demand. */
export const SIGHT = {
  organisation: `(t.sees_all_organisations = 1 OR ${seesOwner('t.id', 'e')} OR ${seesOneOfOwners('t.id', 'e')})`,
  project: `(t.sees_all_organisations = 1 OR ${seesProject('t.id', 'e')})`,
  subject: `(t.sees_all_organisations = 1 OR ${seesSubject('t.id', 'e')})`,
}

/** SQL: whether all of some named conditions are true. */
export const allOf = (conditions: Record<string, string>): string => `(${Object.values(conditions).join(' AND ')})`

/** An event, and the token of a webhook that should receive it. */
export type Sight = { accessTokenId: string; seesAllOrganisations: boolean; eventId: string }

/**
 * The pending deliveries whose webhook's token no longer sees the event: the token has lost an organisation, or the
 * event's project has moved out of its sight. One statement for up to 200 tokens, none for tokens that see all.
 */
export const outOfSight = async <T>(sql: Sql, owed: T[], sightOf: (one: T) => Sight): Promise<Set<T>> => {
  const limited = owed.filter(one => !sightOf(one).seesAllOrganisations)
  const byToken = [...Map.groupBy(limited, one => sightOf(one).accessTokenId)]
  const unseen = new Set<string>()
  for (let from = 0; from < byToken.length; from += STATEMENT_LIMITS.selects) {
    const asked = byToken.slice(from, from + STATEMENT_LIMITS.selects).map(([tokenId, own]) => ({
      tokenId,
      eventIds: [...new Set(own.map(one => sightOf(one).eventId))],
    }))
    const found = await rows<{ token_id: string; event_id: string }>(
      sql,
      asked.map(({ eventIds }) => unseenOf(eventIds)).join(' UNION ALL '),
      asked.flatMap(({ tokenId, eventIds }) => [tokenId, ...eventIds]),
    )
    for (const { token_id, event_id } of found) unseen.add(`${token_id} ${event_id}`)
  }
  return new Set(
    limited.filter(one => {
      const { accessTokenId, eventId } = sightOf(one)
      return unseen.has(`${accessTokenId} ${eventId}`)
    }),
  )
}

const unseenOf = (eventIds: string[]): string =>
  `SELECT t.id AS token_id, e.id AS event_id FROM access_tokens t JOIN events e
   WHERE t.id = ? AND e.id IN (${marks(eventIds)}) AND NOT ${isOnDemand('e')} AND NOT ${allOf(SIGHT)}`
