import type { Knex } from 'knex'
import type { Sql } from '../database/connect.ts'
import type { Fragment } from '../database/fragment.ts'
import type { Meter } from './meter.ts'
import type { Json } from './selector.ts'

/** What can be selected from: rows of one table, and what hangs on them. */
export type Resource = {
  /** For messages: `deliveries`. */
  name: string
  /** Has a primary key `id`, a UUID, unless it is only ever somebody's children. */
  table: string
  fields: Record<string, Field>
}

export type Field =
  | {
      kind: 'column'
      column: string
      /** `time`: epoch milliseconds, an ISO 8601 time to selectors. `date`: `YYYY-MM-DD`. `boolean`: 0 or 1. */
      type: 'uuid' | 'string' | 'integer' | 'boolean' | 'time' | 'date'
      nullable?: true
      /** All there can be in it: anything else in a selector is a mistake. */
      values?: readonly string[]
    }
  /** A text column with an object written by `JSON.stringify`; any path leads into it. */
  | { kind: 'json'; column: string }
  /** A set of scalars in its own table, such as webhook_events(webhook_id, event_type): a sorted list to selectors. */
  | {
      kind: 'list'
      table: string
      key: string
      column: string
      type: 'uuid' | 'string'
      values?: readonly string[]
      /** What the values are ids of: one that the caller may not see is not in the list. */
      of?: () => Resource
    }
  /** To one, by its id in a column of this table, which may be null. */
  | { kind: 'related'; column: string; resource: () => Resource }
  /** To many, by this table's id in the column `key` of theirs: a list of objects in the order of their `orderBy`. */
  | { kind: 'children'; resource: () => Resource; key: string; orderBy: string }
  /**
   * Worked out from other tables, for the rows it is asked of: SQL neither selects on it nor orders by it. An object
   * with the fields of `object`, a row of `row` (to selectors its id), or else a time, or null where `load` has none.
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

/** Reads what rows refer to, as the caller sees it at the time `now` (epoch milliseconds). */
export type Source = {
  connection: Sql
  visible: VisibleRows
  /** Narrows a SELECT from a resource's own table to what the caller sees. */
  seen: (resource: Resource) => Visible
  now: number
  meter: Meter
}
