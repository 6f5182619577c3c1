import type { Knex } from 'knex'
import type { Row } from './documents.ts'
import type { Engine, Resource } from './resource.ts'
import { Search } from './search.ts'

export type MangoQuery = {
  /** Everything, where there is none. */
  selector?: unknown
  /** In CouchDB's two forms: `["name"]`, `[{"createdAt": "desc"}, {"id": "desc"}]`. By id, where there is none. */
  sort?: unknown[] | null | undefined
  /** 0 to 10,000. Where there is none, all rows come, and if that is more than 10,000, an error instead. */
  limit?: number | null | undefined
  skip?: number | null | undefined
  /** The id of the last row seen: rows begin after it, in the order of `sort`. */
  after?: string | null | undefined
}

/**
 * Narrows a SELECT from a resource's table to what the caller may see, by conditions on columns named with their table.
 */
export type Visible = (builder: Knex.QueryBuilder) => void

export type Options = {
  /**
   * What the caller may see of other resources: what it may not see is no relation, no child and no sort value either.
   */
  related?: ((resource: Resource) => Visible | undefined) | undefined
  /**
   * The time (epoch milliseconds) by which what depends on it is worked out; the process's own, where it is not given.
   */
  now?: number | undefined
  /** Ask the database which indexes it uses. */
  explain?: boolean | undefined
}

/** How a query was answered. */
export type Explain = {
  /** The statement that selected the rows: the first, where there were several. Null: nothing could match. */
  sql: string | null
  /** How many values were bound to it. */
  bindings: number
  /** `table.index` for each index that the database uses, if it was asked. */
  indexes: string[] | null
  /** The conditions that SQL could not decide. */
  matchedInTypeScript: string[]
  /** The sort fields that SQL could not order by. */
  sortedInTypeScript: string[]
  /** How many statements selected rows; those that read what the rows refer to are not counted. */
  statements: number
  /** Rows that those statements returned. */
  rowsExamined: number
}

/**
 * The rows of a resource that a query selects among those the caller may see, as they are in the table.
 * Throws `MangoError`: BAD_USER_INPUT, RESULT_TOO_LARGE, QUERY_TOO_COMPLEX.
 */
export const find = async (
  db: Knex | Knex.Transaction,
  engine: Engine,
  resource: Resource,
  query: MangoQuery | null | undefined,
  visible: Visible,
  options: Options = {},
): Promise<{ rows: Row[]; explain: Explain }> => {
  const search = new Search(db, engine, resource, query ?? {}, visible, options, { unique: 'id' })
  const rows = await search.all()
  return { rows, explain: await search.explain() }
}

/**
 * The table's column that holds the parent's id, the parents,
 * and what orders one parent's rows: `id`, or else `orderBy`.
 */
export type Parents = { column: string; ids: readonly string[]; orderBy?: string | undefined }

/**
 * As `find`, for the rows of each of many parents: `limit`, `skip`, `sort` and `after` hold for each parent by itself.
 * More than 10,000 rows in all is RESULT_TOO_LARGE. A parent without rows is not in the answer.
 */
export const findByParents = async (
  db: Knex | Knex.Transaction,
  engine: Engine,
  resource: Resource,
  query: MangoQuery | null | undefined,
  visible: Visible,
  parents: Parents,
  options: Options = {},
): Promise<{ rows: Map<string, Row[]>; explain: Explain }> => {
  const { column, ids, orderBy: unique = 'id' } = parents
  const search = new Search(db, engine, resource, query ?? {}, visible, options, { unique, parent: column })
  const rows = await search.byParent([...new Set(ids)])
  return { rows, explain: await search.explain() }
}
