import { isId } from '../../shared/ids.ts'
import type { Session } from '../connection/session.ts'
import { CliError, exitCodes } from '../errors.ts'
import { nearTo } from '../output/near.ts'
import { cellText } from '../output/output.ts'

/** The resources with ids, by the API's name of their list. */
export type Resource =
  | 'webhooks'
  | 'deliveries'
  | 'events'
  | 'organisations'
  | 'projects'
  | 'users'
  | 'projectReports'
  | 'auditLog'
  | 'accessTokens'

interface Naming {
  noun: string
  /** The command that lists them. */
  list: string
  /** GraphQL selection of what a person calls one by. */
  fields: string
  /** What a person calls a row by; undefined if nothing but its id. */
  called?: (row: Row) => string | null
  /** The selector of what may be called so. */
  named?: (given: string) => Record<string, unknown>[]
  /** The hint if nothing is found, in place of the list's command. */
  hint?: (given: string) => string
}

type Row = { id: string; revokedAt?: string | null } & Record<string, unknown>

const byName = {
  fields: 'id name',
  called: (row: Row) => row.name as string,
  named: (given: string) => [{ name: given }],
}

const NAMING: Record<Resource, Naming> = {
  webhooks: {
    noun: 'webhook',
    list: 'webhooks list',
    fields: 'id name url',
    called: row => (row.name || row.url) as string,
    // A URL with or without its scheme, as lists show it.
    named: given => [
      { name: given },
      ...(/[.:]/.test(given) ? [{ url: { $in: [given, `https://${given}`, `http://${given}`] } }] : []),
    ],
  },
  organisations: { noun: 'organisation', list: 'organisations list', ...byName },
  projects: { noun: 'project', list: 'projects list', ...byName },
  users: { noun: 'user', list: 'users list', ...byName },
  accessTokens: {
    noun: 'access token',
    list: 'tokens list',
    fields: 'id name revokedAt',
    called: byName.called,
    named: given => [{ name: given }, { apiKey: given }],
  },
  projectReports: {
    noun: 'report',
    list: 'reports list',
    fields: 'id quarter project { name }',
    called: row => `${(row.project as { name: string }).name} ${row.quarter}`,
    // A project's name and a quarter.
    named: given => {
      const [, name, quarter] = /^(.+)\s(\d{4}-[1-4])$/s.exec(given) ?? []
      return quarter === undefined ? [] : [{ quarter, 'project.name': name }]
    },
  },
  deliveries: {
    noun: 'delivery',
    list: 'deliveries list',
    fields: 'id',
    hint: () => 'Give the eventId that the receiver saw. List the visible ones with: tidings deliveries list',
  },
  events: {
    noun: 'event',
    list: 'events list',
    fields: 'id',
    hint: given =>
      'List the visible ones with: tidings events list. If it is an eventId that a receiver saw: ' +
      `tidings deliveries show ${cellText(given)}`,
  },
  auditLog: { noun: 'change', list: 'audit list', fields: 'id' },
}

const END = /^(?=.{4,35}$)[0-9a-f]*(-[0-9a-f]+)*$/i

export const nounOf = (resource: Resource): string => NAMING[resource].noun

/** How many of several that may be meant are named, and how many of those that exist. */
const SHOWN = 5

/**
 * The id of what an argument or option names: by its id, by an end of its id that no other has, or by its name (a
 * webhook's URL, an access token's API key, a report's project and quarter). Every command calls it for everything that
 * takes an id. Undefined if nothing is given.
 *
 * With --dry-run a whole id is taken as it is, so that the request can be shown without a server. So it is for an
 * access token that may not read.
 * @throws CliError with exit code 3 if nothing is called so, and with 2 if several are
 */
export const resolveId = async <Given extends string | undefined>(
  session: Session,
  resource: Resource,
  given: Given,
  { prefer = () => false }: { prefer?: (row: Row) => boolean } = {},
): Promise<Given | string> => {
  if (given === undefined) return given
  if (isId(given)) {
    if (session.dryRun) return given
    const rows = await rowsOf(session, resource, { selector: { id: given.toLowerCase() }, limit: 1 })
    if (rows?.length === 0) throw await nobodys(session, resource, given)
    return given
  }
  const rows = await calledSo(session, resource, given)
  const [found, ...others] = rows
  if (!found) throw await nobodys(session, resource, given)
  if (others.length === 0) return found.id
  const preferred = rows.filter(prefer)
  if (preferred.length === 1) return preferred[0]!.id
  throw ambiguous(
    given,
    NAMING[resource].noun,
    rows.map(row => shownAs(resource, row, given)),
    rows.length === SHOWN,
  )
}

/** The first rows that a name or an end of an id may mean. */
export const calledSo = async (session: Session, resource: Resource, given: string): Promise<Row[]> => {
  const conditions: Record<string, unknown>[] = [
    ...(END.test(given) ? [{ id: { $regex: `${given.toLowerCase()}$` } }] : []),
    ...(NAMING[resource].named?.(given) ?? []),
  ]
  const exact = conditions.length === 0 ? [] : await search(session, resource, either(conditions))
  return exact.length > 0 ? exact : inAnyCase(session, resource, given)
}

/** Resolves several like resolveId; undefined if none are given. */
export const resolveIds = async <Given extends string[] | undefined>(
  session: Session,
  resource: Resource,
  given: Given,
): Promise<Given | string[]> => given && Promise.all(given.map(one => resolveId(session, resource, one)))

/**
 * The same for a mutation that itself refuses an unknown id, or creates what has it: a whole id is left to the server.
 */
export const idToChange = async <Given extends string | undefined>(
  session: Session,
  resource: Resource,
  given: Given,
  preferring?: { prefer: (row: Row) => boolean },
): Promise<Given | string> =>
  given === undefined || isId(given) ? given : resolveId(session, resource, given, preferring)

const either = (conditions: Record<string, unknown>[]): Record<string, unknown> =>
  conditions.length === 1 ? conditions[0]! : { $or: conditions }

/** Undefined if the access token may not read. */
const rowsOf = async (session: Session, resource: Resource, query: object): Promise<Row[] | undefined> => {
  const document = `query ($query: MangoQuery) { rows: ${resource}(query: $query) { ${NAMING[resource].fields} } }`
  try {
    return (await session.ask<{ rows: Row[] }>(document, { query })).rows
  } catch (error) {
    if (error instanceof CliError && error.code === 'FORBIDDEN') return undefined
    throw error
  }
}

const search = async (session: Session, resource: Resource, selector: object): Promise<Row[]> => {
  const rows = await rowsOf(session, resource, { selector, limit: SHOWN })
  if (rows) return rows
  throw new CliError(
    exitCodes.notPermitted,
    'FORBIDDEN',
    `This access token lacks the permission read: ${NAMING[resource].noun}s can be given by their whole ids alone.`,
    'An admin can create one with it: tidings tokens create --help',
  )
}

/** A name as people write it: only a name that nothing has exactly is looked for in any case. */
const inAnyCase = async (session: Session, resource: Resource, given: string): Promise<Row[]> => {
  if (NAMING[resource].named?.(given).some(condition => 'name' in condition) !== true) return []
  const literal = given.replaceAll(/[\\^$.*+?()[\]{}|]/g, '\\$&')
  return search(session, resource, { name: { $regex: `(?i)^${literal}$` } })
}

/** The id, with the name if that is not what was given. */
const shownAs = (resource: Resource, row: Row, given: string): string => {
  const name = NAMING[resource].called?.(row) ?? ''
  return name === '' || name === given ? cellText(row.id) : `${cellText(row.id)} (${cellText(name)})`
}

export const ambiguous = (given: string, noun: string, shown: string[], areMore: boolean): CliError =>
  new CliError(
    exitCodes.usage,
    'AMBIGUOUS',
    `${cellText(given)} may be more than one ${noun}: ${shown.join(', ')}${areMore ? ' …' : ''}.`,
    'Give the id, or more of it.',
  )

/** What to type instead: a name that is nearly the given one, else some of the latest. */
const nobodys = async (session: Session, resource: Resource, given: string): Promise<CliError> => {
  const { noun, list, called, hint } = NAMING[resource]
  const latest = called ? await rowsOf(session, resource, { sort: [{ id: 'desc' }], limit: 50 }).catch(() => []) : []
  const names = [...new Set((latest ?? []).map(row => called!(row)).filter(name => name !== null && name !== ''))]
  const near = isId(given) ? [] : nearTo(names as string[], given)
  const listed = (some: (string | null)[]): string => some.slice(0, SHOWN).map(cellText).join(', ')
  const exist =
    near.length > 0
      ? `Did you mean ${near.slice(0, 2).map(cellText).join(' or ')}? `
      : names.length > 0
        ? `There ${names.length === 1 ? 'is' : 'are'} ${listed(names)}${names.length > SHOWN ? ' …' : ''}. `
        : ''
  return new CliError(
    exitCodes.notFound,
    'NOT_FOUND',
    `No ${noun} ${cellText(given)} is visible to this access token.`,
    `${exist}${hint?.(given) ?? `List the visible ones with: tidings ${list}`}`,
  )
}
