import type { Meter } from './meter.ts'
import type { Resource, Visible } from './resource.ts'

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
  /**
   * What that row had in the fields of `sort`, as it was read: one value a field. Rows begin where it was then,
   * whatever has become of it.
   */
  afterValues?: unknown[] | null | undefined
}

export type Options = {
  /**
   * What is visible of the resource that is asked for, in parts that share no row: in each of them the first rows are
   * read off an index, where the rule for all of them at once would have to look at every row. Undefined where there
   * are too many, or it makes no difference. Asked for when rows are to be selected.
   */
  parts?: (() => Promise<Visible[] | undefined>) | undefined
  /** What the caller may see of other resources: anything else is no relation, no child and no sort value either. */
  related?: ((resource: Resource) => Visible | undefined) | undefined
  /** The time (epoch milliseconds) by which what depends on it is worked out; the process's own if not given. */
  now?: number | undefined
  /** Who is told what it costs, and may end it. */
  meter?: Meter | undefined
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
  matchedRowByRow: string[]
  /** The sort fields that SQL could not order by. */
  sortedAfterwards: string[]
  /** How many statements selected rows; those that read what the rows refer to are not counted. */
  statements: number
  /** Rows that those statements returned. */
  rowsExamined: number
}

/** The column that holds the parent's id, the parents, and what orders one parent's rows: `id`, or else `orderBy`. */
export type Parents = { column: string; ids: readonly string[]; orderBy?: string | undefined }
