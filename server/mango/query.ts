import type { Meter } from './meter.ts'
import type { Resource, Visible } from './resource.ts'

export type MangoQuery = {
  /** By default everything. */
  selector?: unknown
  /** In CouchDB's two forms: `["name"]`, `[{"createdAt": "desc"}, {"id": "desc"}]`. By default by id. */
  sort?: unknown[] | null | undefined
  /** 0 to 10,000. By default all rows, or an error if they are more than 10,000. */
  limit?: number | null | undefined
  skip?: number | null | undefined
  /** The id of the last row seen: rows begin after it, in the order of `sort`. */
  after?: string | null | undefined
  /**
   * The values of that row in the fields of `sort`, as they were read. Rows begin at that position, even if the row has
   * changed since.
   */
  afterValues?: unknown[] | null | undefined
}

export type Options = {
  /**
   * The visible rows of the queried resource in disjoint parts. The first rows of each part come from an index, while
   * the rule for all at once would read every row. Undefined if there are too many parts, or parts do not help. Called
   * when rows are selected.
   */
  parts?: (() => Promise<Visible[] | undefined>) | undefined
  /** The visibility of other resources: hidden rows are no relation, no child and no sort value. */
  related?: ((resource: Resource, ofSeen?: boolean) => Visible | undefined) | undefined
  /** The time (epoch milliseconds) for computed fields; by default the process's clock. */
  now?: number | undefined
  /** Receives the costs, and may end the query. */
  meter?: Meter | undefined
  /** Whether to ask the database which indexes it uses. */
  explain?: boolean | undefined
}

/** The explanation of a query. */
export type Explain = {
  /** The statement that selected the rows, the first of several; null if nothing could match. */
  sql: string | null
  /** The number of bound values. */
  bindings: number
  /** `table.index` for each index that the database uses, if requested. */
  indexes: string[] | null
  /** The conditions that SQL cannot decide. */
  matchedRowByRow: string[]
  /** The sort fields that SQL cannot order by. */
  sortedAfterwards: string[]
  /** The number of statements that selected rows, without those for related rows. */
  statements: number
  /** Rows that those statements returned. */
  rowsExamined: number
}

/** The column with the parent's id, the parents, and the order of a parent's rows: `id` or `orderBy`. */
export type Parents = { column: string; ids: readonly string[]; orderBy?: string | undefined }
