import { all, either, type Fragment, sql } from '../database/fragment.ts'
import { type Target, targetAt, timeOrDate } from './bind.ts'
import { badQuery, quoted } from './error.ts'
import type { Resource, ScalarType } from './resource.ts'
import { checkSize, isObject, type Json, json, splitPath, typeOf } from './selector.ts'
import { type Bucket, bucketOf, splitBucket } from './time-buckets.ts'

export type Direction = 'asc' | 'desc'

/**
 * A sort key: its path in a document, and its `column` in SQL, if it has one. `type` is undefined if it may be any
 * JSON.
 */
export type SortKey = {
  path: string[]
  direction: Direction
  column: SortColumn | undefined
  type: ScalarType | 'list' | undefined
  /** Only in counts: the spans of time that are counted together. */
  bucket?: Bucket
}

export type SortColumn = {
  /** The column's expression. */
  sql: string
  /** Its name in the rows of a statement. */
  property: string
  /** Whether it is a column of the table itself. */
  own: boolean
  nullable: boolean
}

type ColumnAt = (path: readonly string[]) => string | undefined

export type SortValue = string | number | null

export const MAX_SORT_KEYS = 8

/**
 * Reads a sort in CouchDB's two forms, `"name"` and `{"name": "desc"}`, over `resource`. A field that is missing sorts
 * with null, which comes first. The last key is always unique, in the direction of the key before it. Throws
 * `MangoError`.
 */
export const parseSort = (sort: unknown, resource: Resource, unique: string, columnAt: ColumnAt): SortKey[] => {
  if (sort !== undefined && sort !== null && !Array.isArray(sort)) {
    throw badQuery('sort', 'must be a list, such as ["name"] or [{"name": "desc"}]')
  }
  const items: unknown[] = sort ?? []
  const keys = parseKeys(items, 'sort', resource, columnAt)
  const decided = keys.findIndex(({ column }) => column?.own && column.property === unique)
  if (decided !== -1) return keys.slice(0, decided + 1)
  return [...keys, ownKey(resource, unique, keys.at(-1)?.direction ?? 'asc')]
}

/** Reads the fields of a sort or a count from the argument `of`. */
export const parseKeys = (
  items: readonly unknown[],
  of: 'sort' | 'by',
  resource: Resource,
  columnAt: ColumnAt,
): SortKey[] => {
  if (items.length > MAX_SORT_KEYS)
    throw badQuery(of, `has ${items.length} fields; at most ${MAX_SORT_KEYS} are allowed`)
  return items.map((item, index) => {
    const at = `${of}[${index}]`
    const { name, direction } = nameAndDirection(item, at)
    const bucket = of === 'by' ? bucketAt(resource, name, at) : undefined
    const path = splitPath(bucket?.field ?? name, at)
    const target = targetAt({ kind: 'object', resource }, path, at)
    if (!isSortable(target)) throw badQuery(at, `${quoted(name)} is an object; name one of its fields`)
    const key = { path, direction, column: columnOf(resource, path, index, columnAt), type: typeAt(target) }
    return bucket === undefined ? key : { ...key, bucket: bucket.bucket }
  })
}

/** The span of time in a name such as `createdAt:hour`; undefined for other names, such as paths into JSON. */
const bucketAt = (resource: Resource, name: string, at: string): { field: string; bucket: Bucket } | undefined => {
  const split = splitBucket(name)
  if (split === undefined) return undefined
  const { field, unit, zone } = split
  const target = targetAt({ kind: 'object', resource }, splitPath(field, at), at)
  if (target.kind === 'json') return undefined
  if (target.kind !== 'scalar' || target.type !== 'time') throw badQuery(at, `${quoted(field)} is no time`)
  return { field, bucket: bucketOf(unit, zone, at) }
}

/** A key that is a non-null column of the table. */
export const ownKey = (resource: Resource, column: string, direction: Direction): SortKey => ({
  path: [column],
  direction,
  column: { sql: `${resource.table}.${column}`, property: column, own: true, nullable: false },
  type: 'uuid',
})

const typeAt = (target: Target): SortKey['type'] =>
  target.kind === 'scalar' ? target.type : target.kind === 'scalars' ? 'list' : undefined

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
    throw badQuery(
      at,
      'must be a field, such as "name", or a field with its direction, {"name": "asc"} or {"name": "desc"}',
    )
  }
  return { name, direction }
}

const isSortable = (target: Target): boolean =>
  target.kind === 'scalar' || target.kind === 'scalars' || target.kind === 'json'

/**
 * The key values of the last row seen: its id is `after`, and `given` has the values of its `fields` sort fields as the
 * caller read them. Throws `MangoError`.
 */
export const placeOf = (keys: readonly SortKey[], fields: number, after: string, given: readonly unknown[]): Json[] => {
  if (given.length !== fields) {
    throw badQuery(
      'afterValues',
      `has ${given.length} values; it must have one for each of the ${fields} fields of sort`,
    )
  }
  return keys.map((key, index) => {
    if (key.column?.own && key.column.property === 'id') return after
    const at = `afterValues[${index}]`
    checkSize(given[index], at)
    const value = json(given[index], at)
    return value === null ? null : placedValue(key, value, at)
  })
}

const placedValue = ({ type, column }: SortKey, value: Json, at: string): Json => {
  if (type === undefined) return value
  const text = timeOrDate(value, { type: type === 'list' ? 'string' : type }, at)
  if (typeOf(text) !== jsonTypes[type]) {
    throw badQuery(at, `belongs to a sort field of type ${type}; it must be of that type or null, not ${typeOf(value)}`)
  }
  if (type === 'integer' && !Number.isSafeInteger(text))
    throw badQuery(at, `must be a whole number or null, not ${text}`)
  if (type === 'uuid') return (text as string).toLowerCase()
  if (!column) return text
  return type === 'time' ? Date.parse(text as string) : type === 'boolean' ? Number(text) : text
}

const jsonTypes = {
  ...{ uuid: 'string', string: 'string', date: 'string', time: 'string' },
  ...{ integer: 'number', boolean: 'boolean', list: 'array' },
} as const

export const orderBy = (keys: readonly SortKey[]): string =>
  keys.map(({ column, direction }) => `${column!.sql}${direction === 'desc' ? ' DESC' : ''}`).join(', ')

/** A text to compare a column with. */
type Text = (value: string) => Fragment

/** The rows after the one with these key `values`; null sorts first. */
export const beyond = (keys: readonly SortKey[], values: readonly SortValue[], text: Text): Fragment => {
  const [key, ...others] = keys
  const [value, ...rest] = values as [SortValue, ...SortValue[]]
  const column = key!.column!
  const bound = value === null ? null : boundOf(value, text)
  const further = beyondValue(column, key!.direction, bound)
  if (others.length === 0) return further
  const same = bound === null ? sql(`${column.sql} IS NULL`) : sql(`${column.sql} = #`, bound)
  const after = either([further, all([same, beyond(others, rest, text)])])
  if (bound === null || column.nullable) return after
  // Redundant, but the optimiser derives the index range from it.
  return all([sql(`${column.sql} ${key!.direction === 'asc' ? '>=' : '<='} #`, bound), after])
}

const boundOf = (value: string | number, text: Text): Fragment =>
  typeof value === 'string' ? text(value) : { sql: '?', bindings: [value] }

const beyondValue = (column: SortColumn, direction: Direction, bound: Fragment | null): Fragment => {
  if (bound === null) return direction === 'asc' ? sql(`${column.sql} IS NOT NULL`) : NONE
  if (direction === 'asc') return sql(`${column.sql} > #`, bound)
  const less = sql(`${column.sql} < #`, bound)
  return column.nullable ? either([less, sql(`${column.sql} IS NULL`)]) : less
}

const NONE: Fragment = { sql: '1 = 0', bindings: [] }
