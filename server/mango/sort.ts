import { all, either, type Fragment, sql } from '../database/fragment.ts'
import { type Target, targetAt } from './bind.ts'
import { badQuery, quoted } from './error.ts'
import type { Resource } from './resource.ts'
import { isObject, splitPath } from './selector.ts'

export type Direction = 'asc' | 'desc'

/** What rows are ordered by: the path leads to it in a document, and `column`, where SQL has it, in a row. */
export type SortKey = { path: string[]; direction: Direction; column: SortColumn | undefined }

export type SortColumn = {
  /** Names the column. */
  sql: string
  /** What it is called in the rows that a statement returns. */
  property: string
  /** It is a column of the table itself. */
  own: boolean
  nullable: boolean
}

type ColumnAt = (path: readonly string[]) => string | undefined

export type SortValue = string | number | null

export const MAX_SORT_KEYS = 8

/**
 * Reads a sort in CouchDB's two forms, `"name"` and `{"name": "desc"}`, over `resource`. A field that is missing sorts
 * with null, which comes first. The last key is always one that no two rows share, in the direction of the key before
 * it.
 */
export const parseSort = (sort: unknown, resource: Resource, unique: string, columnAt: ColumnAt): SortKey[] => {
  if (sort !== undefined && sort !== null && !Array.isArray(sort)) {
    throw badQuery('sort', 'is a list, such as ["name"] or [{"name": "desc"}]')
  }
  const items: unknown[] = sort ?? []
  if (items.length > MAX_SORT_KEYS) throw badQuery('sort', `has ${items.length} fields; it may have ${MAX_SORT_KEYS}`)
  const keys = items.map((item, index) => sortKey(item, index, resource, columnAt))
  const decided = keys.findIndex(({ column }) => column?.own && column.property === unique)
  if (decided !== -1) return keys.slice(0, decided + 1)
  return [...keys, ownKey(resource, unique, keys.at(-1)?.direction ?? 'asc')]
}

/** A key that is a column of the table and never null. */
export const ownKey = (resource: Resource, column: string, direction: Direction): SortKey => ({
  path: [column],
  direction,
  column: { sql: `${resource.table}.${column}`, property: column, own: true, nullable: false },
})

const sortKey = (item: unknown, index: number, resource: Resource, columnAt: ColumnAt): SortKey => {
  const at = `sort[${index}]`
  const { name, direction } = nameAndDirection(item, at)
  const path = splitPath(name, at)
  const target = targetAt({ kind: 'object', resource }, path, at)
  if (!isSortable(target)) throw badQuery(at, `${quoted(name)} is an object; sort by one of its fields`)
  return { path, direction, column: columnOf(resource, path, index, columnAt) }
}

const columnOf = (resource: Resource, path: string[], index: number, columnAt: ColumnAt): SortColumn | undefined => {
  const found = columnAt(path)
  if (found === undefined) return undefined
  const field = resource.fields[path[0]!]!
  if (field.kind !== 'column') return { sql: found, property: `mango_sort_${index}`, own: false, nullable: true }
  return { sql: found, property: field.column, own: true, nullable: field.nullable ?? false }
}

const nameAndDirection = (item: unknown, at: string): { name: string; direction: Direction } => {
  if (typeof item === 'string') return { name: item, direction: 'asc' }
  const entries = isObject(item) ? Object.entries(item) : []
  const [name, direction] = entries[0] ?? []
  if (entries.length !== 1 || name === undefined || (direction !== 'asc' && direction !== 'desc')) {
    throw badQuery(at, 'is a field, such as "name", or a field with its direction, {"name": "asc"} or {"name": "desc"}')
  }
  return { name, direction }
}

const isSortable = (target: Target): boolean =>
  target.kind === 'scalar' || target.kind === 'scalars' || target.kind === 'json'

export const orderBy = (keys: readonly SortKey[]): string =>
  keys.map(({ column, direction }) => `${column!.sql}${direction === 'desc' ? ' DESC' : ''}`).join(', ')

/** The rows that come after one whose keys have `values`, null being before everything. */
export const afterValues = (keys: readonly SortKey[], values: readonly SortValue[]): Fragment => {
  const [key, ...others] = keys
  const [value, ...rest] = values as [SortValue, ...SortValue[]]
  const column = key!.column!
  const beyond = beyondValue(column, key!.direction, value)
  if (others.length === 0) return beyond
  const same = value === null ? sql(`${column.sql} IS NULL`) : sql(`${column.sql} = ?`, value)
  const after = either([beyond, all([same, afterValues(others, rest)])])
  if (value === null || column.nullable) return after
  // Follows from the rest; in it the optimiser finds the range of the index.
  return all([sql(`${column.sql} ${key!.direction === 'asc' ? '>=' : '<='} ?`, value), after])
}

const beyondValue = (column: SortColumn, direction: Direction, value: SortValue): Fragment => {
  if (value === null) return direction === 'asc' ? sql(`${column.sql} IS NOT NULL`) : NONE
  if (direction === 'asc') return sql(`${column.sql} > ?`, value)
  const less = sql(`${column.sql} < ?`, value)
  return column.nullable ? either([less, sql(`${column.sql} IS NULL`)]) : less
}

const NONE: Fragment = { sql: '1 = 0', bindings: [] }
