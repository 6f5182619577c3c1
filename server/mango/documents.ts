import { toIso } from '../../shared/time.ts'
import { type Sql, rows as select } from '../database/connect.ts'
import { STATEMENT_LIMITS } from '../database/dialect.ts'
import { all, type Fragment } from '../database/fragment.ts'
import { MangoError } from './error.ts'
import { compareText } from './matcher.ts'
import type { Field, Resource, ScalarType, Source } from './resource.ts'
import type { Json, Node } from './selector.ts'

export type Row = Record<string, unknown>

/** The needed fields of a resource, with the needed fields below them. */
export type Needs = Map<string, Needs>

/** Adds the fields that a bound selector over `resource` reads. */
export const addNeedsOf = (needs: Needs, node: Node, resource: Resource): void => {
  switch (node.kind) {
    case 'and':
    case 'or':
      for (const inner of node.nodes) addNeedsOf(needs, inner, resource)
      return
    case 'not':
      addNeedsOf(needs, node.node, resource)
      return
    case 'field': {
      const end = addPath(needs, node.path, resource)
      if (end && 'node' in node.condition) addNeedsOf(end.needs, node.condition.node, end.resource)
    }
  }
}

/** Adds the field of a path; returns the needed fields of the rows at its end, if it ends in rows. */
export const addPath = (
  needs: Needs,
  path: readonly string[],
  resource: Resource,
): { needs: Needs; resource: Resource } | undefined => {
  const [name, ...rest] = path
  if (name === undefined) return { needs, resource }
  const below: Needs = needs.get(name) ?? new Map()
  needs.set(name, below)
  const field = resource.fields[name]!
  if (field.kind === 'related') return addPath(below, rest, field.resource())
  // The next name is an index into the list.
  if (field.kind === 'children') return addPath(below, rest.slice(1), field.resource())
  return undefined
}

/** The needed fields of rows as JSON documents, with one statement for each related resource. */
export const documentsOf = async (source: Source, resource: Resource, rows: Row[], needs: Needs): Promise<Json[]> => {
  const documents: Record<string, Json>[] = rows.map(() => ({}))
  for (const [name, below] of needs) {
    const values = await valuesOf(source, resource.fields[name]!, rows, below)
    documents.forEach((document, index) => {
      document[name] = values(rows[index]!)
    })
  }
  return documents
}

/** Loads what a field needs for some rows, and returns the function that reads it for one row. */
export const valuesOf = async (
  source: Source,
  field: Field,
  rows: Row[],
  needs: Needs = new Map(),
): Promise<(row: Row) => Json> => {
  // A database server takes no list without values.
  if (rows.length === 0) return () => null
  switch (field.kind) {
    case 'column':
    case 'json':
    case 'part':
      return ownValue(field)
    case 'derived': {
      const loaded = await field.load(source, ids(rows))
      return row => loaded.get(row.id as string) ?? null
    }
    case 'list': {
      const found = await readWhere(
        source.connection,
        `SELECT ${field.key}, ${field.column} FROM ${field.table}`,
        field.key,
        ids(rows),
        field.of && source.visible(field.of(), field.table, field.column),
      )
      const lists = Map.groupBy(found, row => row[field.key])
      return row => (lists.get(row.id) ?? []).map(item => item[field.column] as string).toSorted(compareText)
    }
    case 'related': {
      const resource = field.resource()
      const wanted = [...new Set(rows.map(row => row[field.column]).filter(id => id !== null))] as string[]
      const found = await readRows(source, resource, 'id', wanted, ['id', ...columnsOf(resource, needs)])
      const documents = await documentsOf(source, resource, found, needs)
      const byId = new Map(found.map((row, index) => [row.id, documents[index]!]))
      return row => byId.get(row[field.column]) ?? null
    }
    case 'children':
      return childrenOf(source, field, rows, needs)
  }
}

const childrenOf = async (
  source: Source,
  field: Extract<Field, { kind: 'children' }>,
  rows: Row[],
  needs: Needs,
): Promise<(row: Row) => Json> => {
  const resource = field.resource()
  const found = await readRows(source, resource, field.key, ids(rows), [
    field.key,
    field.orderBy,
    ...columnsOf(resource, needs),
  ])
  const documents = await documentsOf(source, resource, found, needs)
  const lists = Map.groupBy(
    found.map((row, index) => ({ row, document: documents[index]! })),
    ({ row }) => row[field.key],
  )
  for (const list of lists.values()) list.sort((a, b) => compareRaw(a.row[field.orderBy], b.row[field.orderBy]))
  return row => (lists.get(row.id) ?? []).map(({ document }) => document)
}

/** Makes the function that reads a field from its row; made once for many rows. */
export const ownValue = (field: Extract<Field, { kind: 'column' | 'json' | 'part' }>): ((row: Row) => Json) => {
  const { column } = field
  const convert =
    field.kind === 'json' ? fromJson : field.kind === 'part' ? partOf(field.part) : conversions[field.type]
  if (!convert) return row => (row[column] ?? null) as Json
  return row => {
    const raw = row[column]
    return raw === null || raw === undefined ? null : convert(raw)
  }
}

const fromJson = (raw: unknown): Json => JSON.parse(raw as string)

const partOf =
  (part: string) =>
  (raw: unknown): Json =>
    (fromJson(raw) as Record<string, Json>)[part] ?? null

/** Converts a stored value. Text is used as it is. */
const conversions: Partial<Record<ScalarType, (raw: unknown) => Json>> = {
  time: raw => toIso(Number(raw)),
  boolean: raw => Number(raw) !== 0,
  integer: Number,
}

/** The visible form of a column's value. */
export const fromColumn = (type: ScalarType, raw: unknown): Json =>
  raw === null ? null : (conversions[type]?.(raw) ?? (raw as Json))

/** Column values in the order of the database, null first. */
export const compareRaw = (a: unknown, b: unknown): number => {
  if (a === b) return 0
  if (a === null) return -1
  if (b === null) return 1
  return typeof a === 'string' ? compareText(a, b as string) : Number(a) - Number(b)
}

/** The columns of needed fields, with the id if other tables refer to it. */
const columnsOf = (resource: Resource, needs: Needs): string[] =>
  [...needs.keys()].map(name => {
    const field = resource.fields[name]!
    return 'column' in field && field.kind !== 'list' ? field.column : 'id'
  })

const ids = (rows: Row[]): string[] => rows.map(row => row.id as string)

const readRows = (
  source: Source,
  resource: Resource,
  key: string,
  keys: string[],
  columns: string[],
): Promise<Row[]> => {
  const { table } = resource
  return readWhere(
    source.connection,
    `SELECT ${[...new Set(columns)].map(column => `${table}.${column}`).join(', ')} FROM ${table}`,
    `${table}.${key}`,
    keys,
    source.visible(resource, table),
  )
}

/** The most related rows of one batch. */
const MOST_AT_ONCE = 100_000

const tooMuchBelow = (): MangoError =>
  new MangoError(
    'RESULT_TOO_LARGE',
    'query',
    `The rows refer to more than ${MOST_AT_ONCE.toLocaleString('en')} other rows. Ask for fewer rows at once.`,
  )

const readWhere = async (
  connection: Sql,
  statement: string,
  key: string,
  keys: string[],
  visible?: Fragment,
): Promise<Row[]> => {
  const found: Row[] = []
  let left = MOST_AT_ONCE
  for (let from = 0; from < keys.length; from += STATEMENT_LIMITS.keys) {
    const some = keys.slice(from, from + STATEMENT_LIMITS.keys)
    const among: Fragment = { sql: `${key} IN (${some.map(() => '?').join(', ')})`, bindings: some }
    const where = all(visible ? [among, visible] : [among])
    const text = `${statement} WHERE ${where.sql} LIMIT ${left + 1}`
    const part = await select<Row>(connection, text, where.bindings)
    left -= part.length
    if (left < 0) throw tooMuchBelow()
    for (const row of part) found.push(row)
  }
  return found
}
