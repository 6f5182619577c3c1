import { Command } from '@commander-js/extra-typings'
import type { Session } from '../connection/session.ts'
import { usageError } from '../errors.ts'
import { collect, dryRunOption, parseSelector, parseValues, wholeNumber } from '../options.ts'
import { neutralise, safeJson } from '../output/neutralise.ts'
import type { View } from '../output/output.ts'
import { askForMore, canAsk } from '../output/prompt.ts'
import { count } from '../output/time.ts'
import { countRows, isCounting } from './counting.ts'
import type { ListOptions } from './list-options.ts'
import { allOf, type MangoQuery } from './mango-query.ts'
import { placeOf, selectPlace, withoutPlace } from './place.ts'

/** A person gets this many rows at a time by default; a program gets all, or an error that says to page. */
const ROWS_FOR_PEOPLE = 50

/** A `list` command with the options of every list, to which its noun adds its own. */
export const listCommand = () =>
  new Command('list')
    .option('--selector <json>', 'only what this Mango selector matches')
    .option('--sort <fields>', 'order by these fields, such as status,-createdAt; - is descending')
    .option(
      '--limit <number>',
      `at most this many; by default a terminal shows ${ROWS_FOR_PEOPLE} at a time`,
      wholeNumber,
    )
    .option('--all', 'all rows, page by page; by default one row a line')
    .option('--after <id>', 'continue after this row, the last one of a page')
    .option('--after-values <json>', 'the values of that row in the fields of --sort, in case it changes')
    .option('--count', 'only the number of rows')
    .option('--by <fields>', 'the number of rows by these fields, such as status,webhook', collect)
    .addOption(dryRunOption())

export interface Listing<Row> {
  /** The query's name in the API. */
  resource: string
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

/** Prints a list from the API: page by page for a person, all at once for a program. Throws a CliError. */
export const list = async <Row extends { id: string }>(
  session: Session,
  options: ListOptions,
  listing: Listing<Row>,
): Promise<void> => {
  const { output } = session
  if (isCounting(options)) {
    const { selector } = mangoQuery({ selector: options.selector }, { onTerminal: false }, listing).query
    return countRows(session, options, { resource: listing.resource, selector })
  }
  if (options.all) {
    if (options.limit !== undefined) throw usageError('--all and --limit are both given.', 'Give one of them.')
    return listAll(session, mangoQuery(options, { onTerminal: false }, listing).query, listing)
  }
  const { query, shownLimit } = mangoQuery(options, output, listing)
  const sort = query.sort ?? []
  const fields = shownLimit === undefined ? listing.fields : `${listing.fields} ${selectPlace(sort)}`
  const document = `query ($query: MangoQuery) { rows: ${listing.resource}(query: $query) { ${fields} } }`
  let place: Pick<MangoQuery, 'after' | 'afterValues'> = {}
  for (let total = 0; ; ) {
    const { rows } = await session.graphql<{ rows: Row[] }>(document, { query: { ...query, ...place } })
    const shown = rows.slice(0, shownLimit)
    total += shown.length
    if (total === 0 && filtersOf(options) !== '') {
      const empty = `No ${listing.noun[1]} with ${filtersOf(options)}.`
      output.list([], { ...listing.view, empty })
      // A program gets an empty list, a person a hint with the filters.
      if (!output.forPeople && !output.formGiven) output.message(empty)
      return
    }
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

/** Rows of one request of --all. */
const PAGE = 1_000
const PROGRESS_EVERY_MS = 3_000

/** Prints page by page; JSON, which is one array, at the end. */
const listAll = async <Row extends { id: string }>(
  session: Session,
  query: MangoQuery,
  listing: Listing<Row>,
): Promise<void> => {
  const { output } = session
  const sort = query.sort ?? []
  const document =
    `query ($query: MangoQuery) { rows: ${listing.resource}(query: $query) ` +
    `{ ${listing.fields} ${selectPlace(sort)} } }`
  const kept: Row[] = []
  const form = output.formGiven || output.forPeople ? output.form : 'ndjson'
  let toldAt = performance.now()
  let place: Pick<MangoQuery, 'after' | 'afterValues'> = {}
  for (let total = 0; ; ) {
    const { rows } = await session.graphql<{ rows: Row[] }>(document, { query: { ...query, limit: PAGE, ...place } })
    const shown = rows.map(withoutPlace)
    total += rows.length
    if (form === 'json') kept.push(...shown)
    else if (form === 'ndjson') output.data(shown.map(row => `${safeJson(row)}\n`).join(''))
    else if (rows.length > 0 || total === 0) output.list(shown, listing.view)
    if (rows.length < PAGE) break
    place = placeOf(rows.at(-1)!, sort)
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
