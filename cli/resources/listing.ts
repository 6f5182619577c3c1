import { Command } from '@commander-js/extra-typings'
import { isId } from '../../shared/ids.ts'
import type { Session } from '../connection/session.ts'
import { CliError, exitCodes, usageError } from '../errors.ts'
import { collect, dryRunOption, parseSelector, parseValues, wholeNumber } from '../options.ts'
import { neutralise, safeJson } from '../output/neutralise.ts'
import type { View } from '../output/output.ts'
import { askForMore, canAsk } from '../output/prompt.ts'
import { count } from '../output/time.ts'
import { countRows, isCounting } from './counting.ts'
import { type Resource, resolveId } from './ids.ts'
import type { ListOptions } from './list-options.ts'
import { allOf, type MangoQuery } from './mango-query.ts'
import { isSortedById, placeOf, selectPlace, withoutPlace } from './place.ts'

/** A person gets this many rows at a time by default; a program gets all, or an error that says to page. */
const ROWS_FOR_PEOPLE = 50

/** `ls`, which many type. */
const withAlias = <Made extends Command>(command: Made): Made =>
  command.name() === 'list' ? command.alias('ls') : command

/** A `list` command with the options of every list, to which its noun adds its own. */
export const listCommand = (name: 'list' | 'query' = 'list') =>
  withAlias(new Command(name))
    .option('--selector <json>', 'only what this Mango selector matches')
    .option('--sort <fields>', 'order by these fields, such as status,-createdAt; - is descending')
    .option(
      '--limit <number>',
      `at most this many; by default a terminal shows ${ROWS_FOR_PEOPLE} at a time`,
      wholeNumber,
    )
    .option('--all', 'all rows, page by page; by default one row a line')
    .option('--after <id>', 'continue after this row (id or name), the last one of a page')
    .option('--after-values <json>', 'the values of that row in the fields of --sort, in case it changes')
    .option('--count', 'only the number of rows')
    .option('--by <fields>', 'the number of rows by these fields, such as status,webhook', collect)
    .addOption(dryRunOption())

export interface Listing<Row> {
  /** The query's name in the API. */
  resource: Resource
  noun: [singular: string, plural: string]
  /** GraphQL selection. */
  fields: string
  view: View<Row>
  /** Conditions from the command's own options. */
  conditions?: Record<string, unknown>[]
  /** The default sort; without one, the order of creation. */
  sort?: MangoQuery['sort']
}

/**
 * The query of a list's options. With the default number of rows, it asks for one more, to see whether there are more.
 */
export const mangoQuery = (
  options: ListOptions,
  { onTerminal }: { onTerminal: boolean },
  { conditions = [], sort: usualSort }: Pick<Listing<never>, 'conditions' | 'sort'> = {},
): { query: MangoQuery; shownLimit: number | undefined } => {
  const selector = allOf([...conditions, ...(options.selector ? [parseSelector(options.selector)] : [])])
  const shortened = options.limit === undefined && onTerminal
  const limit = shortened ? ROWS_FOR_PEOPLE + 1 : options.limit
  const sort = options.sort === undefined ? usualSort : parseSort(options.sort)
  const query = {
    ...(selector && { selector }),
    ...(sort && { sort }),
    ...(limit !== undefined && { limit }),
    ...(options.after !== undefined && { after: options.after }),
    ...(options.afterValues !== undefined && { afterValues: parseValues(options.afterValues) }),
  }
  return { query, shownLimit: shortened ? ROWS_FOR_PEOPLE : undefined }
}

/**
 * The options with the id of --after. A whole id is taken as it is where the place needs no row: the last row of a page
 * may be deleted before the next page is asked for.
 */
export const resolvePlace = async <Options extends ListOptions>(
  session: Session,
  options: Options,
  { resource, sort }: Pick<Listing<never>, 'resource' | 'sort'>,
): Promise<Options> => {
  const { after } = options
  if (after === undefined || isCounting(options)) return options
  const isById = isSortedById(options.sort === undefined ? (sort ?? []) : parseSort(options.sort))
  const needsNoRow = isId(after) && (isById || options.afterValues !== undefined)
  return needsNoRow ? options : { ...options, after: await resolveId(session, resource, after) }
}

/** Prints a list from the API: page by page for a person, all at once for a program. Throws a CliError. */
export const list = async <Row extends { id: string }>(
  session: Session,
  given: ListOptions,
  listing: Listing<Row>,
): Promise<void> => {
  const { output } = session
  const options = await resolvePlace(session, given, listing)
  if (isCounting(options)) {
    const { selector } = mangoQuery({ selector: options.selector }, { onTerminal: false }, listing).query
    return countRows(session, options, { resource: listing.resource, selector })
  }
  if (options.all) {
    if (options.limit !== undefined) throw usageError('--all and --limit are both given.', 'Give one of them.')
    return listAll(session, mangoQuery(options, { onTerminal: false }, listing).query, listing)
  }
  const { query, shownLimit } = mangoQuery(options, output, listing)
  if (shownLimit === undefined) return listGathered(session, options, query, listing)
  const sort = query.sort ?? []
  const document = documentOf(session, listing, sort)
  let place: Place = {}
  for (let total = 0; ; ) {
    const { rows } = await session.graphql<{ rows: Row[] }>(document, { query: { ...query, ...place } })
    const shown = rows.slice(0, shownLimit)
    total += shown.length
    if (total === 0) return tellNothing(session, options, listing)
    output.list(shown.map(withoutPlace), listing.view)
    if (shown.length === rows.length) return
    place = placeOf(shown.at(-1)!, sort)
    const soFar = `The first ${count(total, ...listing.noun)}.`
    if (canAsk() && (await askForMore(soFar))) continue
    const values = place.afterValues ? ` --after-values ${inShell(safeJson(place.afterValues))}` : ''
    output.notice(`${soFar} Next page: --after ${place.after}${values}, or more at once: --limit 500`)
    return
  }
}

/** Rows of one request; more are asked for page by page. */
const PAGE = 1_000
/** The most rows of a list without --all, as of the API's lists. */
const MOST = 10_000
const PROGRESS_EVERY_MS = 3_000

type Place = Pick<MangoQuery, 'after' | 'afterValues'>

/** With --output id only the ids are asked for. */
const documentOf = (
  { output }: Session,
  { resource, fields }: Pick<Listing<never>, 'resource' | 'fields'>,
  sort: NonNullable<MangoQuery['sort']> | undefined,
): string => {
  const selected = [output.form === 'id' ? 'id' : fields, ...(sort ? [selectPlace(sort)] : [])].filter(Boolean)
  return `query ($query: MangoQuery) { rows: ${resource}(query: $query) { ${selected.join(' ')} } }`
}

/** The pages of a query, up to `most` rows. */
async function* pagesOf<Row extends { id: string }>(
  session: Session,
  query: MangoQuery,
  listing: Pick<Listing<never>, 'resource' | 'fields'>,
  most: number,
): AsyncGenerator<Row[]> {
  const sort = query.sort ?? []
  const document = documentOf(session, listing, most > PAGE ? sort : undefined)
  let place: Place = {}
  for (let left = most; ; ) {
    const limit = Math.min(PAGE, left)
    const { rows } = await session.graphql<{ rows: Row[] }>(document, { query: { ...query, limit, ...place } })
    yield rows.map(withoutPlace)
    left -= rows.length
    if (rows.length < limit || left <= 0) return
    place = placeOf(rows.at(-1)!, sort)
  }
}

/** Prints all at once. Throws a CliError if there are more than a list has without --all. */
const listGathered = async <Row extends { id: string }>(
  session: Session,
  options: ListOptions,
  query: MangoQuery,
  listing: Listing<Row>,
): Promise<void> => {
  const { output } = session
  const rows: Row[] = []
  for await (const page of pagesOf<Row>(session, query, listing, query.limit ?? MOST + 1)) {
    rows.push(...page)
    if (query.limit === undefined && rows.length > MOST) throw tooMany(listing)
  }
  if (rows.length === 0) tellNothing(session, options, listing)
  else output.list(rows, listing.view)
}

const tooMany = ({ noun: [, nouns] }: Pick<Listing<never>, 'noun'>): CliError =>
  new CliError(
    exitCodes.failed,
    'RESULT_TOO_LARGE',
    `There are more than ${MOST.toLocaleString('en-GB')} ${nouns}.`,
    'Take all of them, one a line, with --all. Or narrow it, or give a --limit.',
  )

const tellNothing = <Row>({ output }: Session, options: ListOptions, listing: Listing<Row>): void => {
  const filters = filtersOf(options)
  if (filters === '') {
    output.list([], listing.view)
    return
  }
  const empty = `No ${listing.noun[1]} with ${filters}.`
  output.list([], { ...listing.view, empty })
  // A program gets an empty list, a person a hint with the filters.
  if (!output.forPeople && !output.formGiven) output.message(empty)
}

/** Prints page by page; JSON, which is one array, at the end. */
const listAll = async <Row extends { id: string }>(
  session: Session,
  query: MangoQuery,
  listing: Listing<Row>,
): Promise<void> => {
  const { output } = session
  const kept: Row[] = []
  const form = output.formGiven || output.forPeople ? output.form : 'ndjson'
  let toldAt = performance.now()
  let total = 0
  for await (const rows of pagesOf<Row>(session, query, listing, Number.POSITIVE_INFINITY)) {
    total += rows.length
    if (form === 'json') kept.push(...rows)
    else if (form === 'ndjson') output.data(rows.map(row => `${safeJson(row)}\n`).join(''))
    else if (rows.length > 0 || total === 0) output.list(rows, listing.view)
    if (performance.now() - toldAt < PROGRESS_EVERY_MS) continue
    toldAt = performance.now()
    output.message(`${count(total, ...listing.noun)} so far …`)
  }
  if (form === 'json') output.list(kept, listing.view)
}

const NO_FILTERS = ['all', 'count', 'by', 'sort', 'limit', 'after', 'afterValues', 'dryRun']

/** The given filter options: `--status rejected --since 2h`. */
const filtersOf = (options: ListOptions): string =>
  Object.entries(options)
    .filter(([name, value]) => value !== undefined && !NO_FILTERS.includes(name))
    .map(([name, value]) => {
      const flag = `--${name.replaceAll(/[A-Z]/g, letter => `-${letter.toLowerCase()}`)}`
      return value === true ? flag : `${flag} ${neutralise(String(value))}`
    })
    .join(' ')

/** Quotes a word for a shell. */
const inShell = (text: string): string => `'${text.replaceAll("'", `'\\''`)}'`

/** `createdAt,-name`: the first ascending, the second descending. */
export const parseSort = (text: string): NonNullable<MangoQuery['sort']> =>
  text.split(',').map(part => {
    const [, minus, field] = /^\s*(-?)([\w.]+)\s*$/.exec(part) ?? []
    if (!field)
      throw usageError(
        `${JSON.stringify(part)} is no field to sort by.`,
        'Such as: --sort createdAt, or --sort=-createdAt for the newest first.',
      )
    return { [field]: minus ? 'desc' : 'asc' }
  })
