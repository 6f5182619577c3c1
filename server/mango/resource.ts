import type { Knex } from 'knex'
import type { Sql } from '../database/connect.ts'
import type { Fragment } from '../database/fragment.ts'
import type { Meter } from './meter.ts'
import type { Json } from './selector.ts'

/** A resource to select from: the rows of one table with their related rows. */
export type Resource = {
  /** For messages: `deliveries`. */
  name: string
  /** Has a primary key `id`, a UUID, unless its rows are only children of another resource. */
  table: string
  fields: Record<string, Field>
  /** Counts that are kept of its rows. */
  sums?: () => Sums
}

/** Counts of a resource's rows by spans of time, kept for those who see every row. */
export type Sums = {
  /** The column of the time, and the length of a span in milliseconds. */
  time: string
  spanMs: number
  /** The columns by which the rows of a span are counted. */
  columns: readonly string[]
  /** What is known of the spans that lie within a time, as of one moment. */
  read(sql: Sql, asked: SumsAsked): Promise<Summed>
}

export type SumsAsked = {
  /** From the first to before the second, epoch milliseconds; infinite where there is no end. */
  within: [fromMs: number, toMs: number]
  /** The values of columns that are counted, where only some are. */
  where: ReadonlyMap<string, readonly string[]>
  /** By which columns, and by whole numbers of which milliseconds. */
  by: readonly (string | number)[]
}

/** `groups`: the values of `by`, of a time the number of the span. `known`: the starts of the spans, ascending. */
export type Summed = { groups: { values: (string | number)[]; count: number }[]; known: number[] }

export type Field =
  | {
      kind: 'column'
      column: string
      /** `time`: epoch milliseconds, an ISO 8601 time to selectors. `date`: `YYYY-MM-DD`. `boolean`: 0 or 1. */
      type: 'uuid' | 'string' | 'integer' | 'boolean' | 'time' | 'date'
      nullable?: true
      /** All possible values; any other in a selector is an error. */
      values?: readonly string[]
    }
  /** A text column with an object written by `JSON.stringify`; selectors can use any path in it. */
  | { kind: 'json'; column: string }
  /** A value of the object in such a column, which may be null: any JSON to selectors, null where it is missing. */
  | { kind: 'part'; column: string; part: string; text?: true }
  /** A set of scalars in its own table, such as webhook_events(webhook_id, event_type): a sorted list to selectors. */
  | {
      kind: 'list'
      table: string
      key: string
      column: string
      type: 'uuid' | 'string'
      values?: readonly string[]
      /** The resource whose ids the values are; ids that the caller may not see are left out. */
      of?: () => Resource
    }
  /** A relation to one row, by its id in a column of this table, which may be null. */
  | { kind: 'related'; column: string; resource: () => Resource }
  /** A relation to many rows, by this table's id in their column `key`: a list of objects in the order of `orderBy`. */
  | { kind: 'children'; resource: () => Resource; key: string; orderBy: string }
  /**
   * Computed from other tables for the rows that need it; SQL neither selects on it nor orders by it. An object with
   * the fields of `object`, a row of `row` (to selectors its id), or a time; null if `load` has none.
   */
  | {
      kind: 'derived'
      object?: Resource
      row?: () => Resource
      load: (source: Source, ids: string[]) => Promise<Map<string, Json>>
    }

export type ScalarType = Extract<Field, { kind: 'column' }>['type']

/** Narrows a SELECT from a resource's table to what the caller may see, by columns named with their table. */
export type Visible = (builder: Knex.QueryBuilder) => void

/** A condition on the rows of `resource`, named `alias`, that the caller may see; undefined where none are hidden. */
export type VisibleRows = (resource: Resource, alias: string, column?: string) => Fragment | undefined

/** Reads related rows as visible to the caller at `now` (epoch milliseconds). */
export type Source = {
  connection: Sql
  visible: VisibleRows
  /** Narrows a SELECT from a resource's own table to the visible rows; `ofSeen`: of parents that are visible. */
  seen: (resource: Resource, ofSeen?: boolean) => Visible
  now: number
  meter: Meter
}
