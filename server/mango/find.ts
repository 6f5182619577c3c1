import type { Sql } from '../database/connect.ts'
import type { Row } from './documents.ts'
import { compare } from './matcher.ts'
import type { Meter } from './meter.ts'
import type { Explain, MangoQuery, Options, Parents } from './query.ts'
import type { Resource, Visible } from './resource.ts'
import { Search } from './search.ts'
import type { Json } from './selector.ts'

/**
 * The stored rows of a resource that a query selects among those visible to the caller. Throws `MangoError`:
 * BAD_USER_INPUT, RESULT_TOO_LARGE, QUERY_TOO_COMPLEX.
 */
export const find = async (
  db: Sql,
  resource: Resource,
  query: MangoQuery | null | undefined,
  visible: Visible,
  options: Options = {},
): Promise<{ rows: Row[]; explain: Explain }> => {
  const search = new Search(db, resource, query ?? {}, visible, options, { unique: 'id' })
  const rows = await search.all()
  return { rows, explain: await search.explain() }
}

/**
 * Like `find` for the rows of each of many parents: `limit`, `skip`, `sort` and `after` apply to each parent. More than
 * 10,000 rows in all is RESULT_TOO_LARGE. The result has no entry for a parent without rows.
 */
export const findByParents = async (
  db: Sql,
  resource: Resource,
  query: MangoQuery | null | undefined,
  visible: Visible,
  parents: Parents,
  options: Options = {},
): Promise<{ rows: Map<string, Row[]>; explain: Explain }> => {
  const { column, ids, orderBy: unique = 'id' } = parents
  const search = new Search(db, resource, query ?? {}, visible, options, { unique, parent: column })
  const rows = await search.byParent([...new Set(ids)])
  return { rows, explain: await search.explain() }
}

/**
 * The number of visible rows that a selector matches, in total or by the values of the fields `by`, most frequent
 * first; by spans of time (`createdAt:hour`), in their order. Throws `MangoError`: BAD_USER_INPUT, RESULT_TOO_LARGE
 * for more than 10,000 groups, QUERY_TOO_COMPLEX.
 */
export const count = async (
  db: Sql,
  resource: Resource,
  { selector, by }: { selector?: unknown; by: readonly string[] },
  visible: Visible,
  options: Options = {},
): Promise<Count[]> => {
  const names = [...new Set(by)]
  const search = new Search(db, resource, { selector }, visible, options, { unique: 'id', by: names })
  const counts = await search.counts()
  const compared = counts.map(({ values, count, startMs = Number.NEGATIVE_INFINITY }) => ({
    startMs,
    key: Object.fromEntries(names.map((name, index) => [name, values[index]!])),
    values,
    count,
  }))
  return compared
    .sort((a, b) => Math.sign(a.startMs - b.startMs) || b.count - a.count || compare(a.values, b.values))
    .map(({ key, count }) => ({ key, count }))
}

/** `key` has the value of each field in `by`, under its name. */
export type Count = { key: Record<string, Json>; count: number }

/** The visible rows of a resource with these ids, by id. */
export const findByIds = async (
  db: Sql,
  { table }: Resource,
  ids: readonly string[],
  visible: Visible,
  meter: Meter,
): Promise<Map<string, Row>> => {
  const query = db(table).select(`${table}.*`).whereIn(`${table}.id`, ids)
  const rows = (await query.modify(visible)) as (Row & { id: string })[]
  meter.load(rows)
  return new Map(rows.map(row => [row.id, row]))
}
