import type { Session } from '../connection/session.ts'
import { CliError, exitCodes } from '../errors.ts'
import { cellText } from '../output/output.ts'

/** The resources with ids, by the API's name of their list. */
type Resource =
  | 'webhooks'
  | 'deliveries'
  | 'events'
  | 'organisations'
  | 'projects'
  | 'users'
  | 'projectReports'
  | 'accessTokens'

const NOUNS: Record<Resource, string> = {
  webhooks: 'webhook',
  deliveries: 'delivery',
  events: 'event',
  organisations: 'organisation',
  projects: 'project',
  users: 'user',
  projectReports: 'report',
  accessTokens: 'access token',
}

/** The commands that list them, if their name differs from the API's. */
const LISTS: Partial<Record<Resource, string>> = { projectReports: 'reports', accessTokens: 'tokens' }

const WHOLE = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i
const END = /^(?=.{4,35}$)[0-9a-f]*(-[0-9a-f]+)*$/i

/**
 * Resolves an id, a unique end of an id, or a webhook's name or URL, to the id. Leaves anything else to the server.
 * Throws a CliError: exit code 3 if nothing matches, 2 if several match.
 */
export const resolveId = async (session: Session, resource: Resource, given: string): Promise<string> => {
  if (WHOLE.test(given) || session.dryRun) return given
  const selector = selectorFor(resource, given)
  if (!selector) return given
  const { rows } = await session.graphql<{ rows: { id: string }[] }>(
    `query ($query: MangoQuery) { rows: ${resource}(query: $query) { id } }`,
    { query: { selector, limit: 5 } },
  )
  const [found, ...others] = rows
  if (!found) throw nobodys(resource, given)
  if (others.length === 0) return found.id
  throw new CliError(
    exitCodes.usage,
    'AMBIGUOUS',
    `${cellText(given)} may be more than one ${NOUNS[resource]}: ${rows.map(({ id }) => cellText(id)).join(', ')}.`,
    'Give more of the id.',
  )
}

/** Resolves several ids like resolveId; undefined if none are given. */
export const resolveIds = async <Given extends string[] | undefined>(
  session: Session,
  resource: Resource,
  given: Given,
): Promise<Given | string[]> => given && Promise.all(given.map(one => resolveId(session, resource, one)))

/** Resolves the id of a filter, which would otherwise silently find nothing. Undefined if none is given. */
export const existingId = async <Given extends string | undefined>(
  session: Session,
  resource: Resource,
  given: Given,
): Promise<Given | string> => {
  if (given === undefined || session.dryRun) return given
  if (!WHOLE.test(given)) return resolveId(session, resource, given)
  const { rows } = await session.graphql<{ rows: { id: string }[] }>(
    `query ($query: MangoQuery) { rows: ${resource}(query: $query) { id } }`,
    { query: { selector: { id: given }, limit: 1 } },
  )
  if (rows.length === 0) throw nobodys(resource, given)
  return given
}

const selectorFor = (resource: Resource, given: string): Record<string, unknown> | undefined => {
  const ofId = END.test(given) ? [{ id: { $regex: `${given.toLowerCase()}$` } }] : []
  if (resource !== 'webhooks') return ofId[0]
  // A URL with or without its scheme, as lists show it.
  const urls = /[.:]/.test(given) ? [{ url: { $in: [given, `https://${given}`, `http://${given}`] } }] : []
  return { $or: [...ofId, { name: given }, ...urls] }
}

const nobodys = (resource: Resource, given: string): CliError =>
  new CliError(
    exitCodes.notFound,
    'NOT_FOUND',
    `No ${NOUNS[resource]} ${cellText(given)} is visible to this access token.`,
    `List the visible ones with: tidings ${LISTS[resource] ?? resource} list`,
  )
