import { toIso } from '../../shared/time.ts'
import { type Sql as Connection, rows as select } from '../database/connect.ts'
import { all, type Sql } from './dialect.ts'
import { compareText } from './matcher.ts'
import type { VisibleRows } from './plan.ts'
import type { Field, Resource } from './resource.ts'
import type { Json, Node } from './selector.ts'

export type Row = Record<string, unknown>

/** The fields of a resource that something wants to see, with the fields wanted below them. */
export type Needs = Map<string, Needs>

/** Adds the fields that a bound selector over `resource` looks at. */
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

/**
 * Adds the field that a path leads to; returns what is wanted
 * of the rows there, where it is rows that the path ends in.
 */
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

/** Reads what rows refer to, as the caller sees it at the time `now` (epoch milliseconds). */
export type Source = { connection: Connection; visible: VisibleRows; now: number }

/** The needed fields of rows as JSON documents, with one statement for each kind of thing that the rows refer to. */
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

const valuesOf = async (source: Source, field: Field, rows: Row[], needs: Needs): Promise<(row: Row) => Json> => {
  switch (field.kind) {
    case 'column':
      return row => columnValue(field, row[field.column])
    case 'json':
      return row => (row[field.column] === null ? null : JSON.parse(row[field.column] as string))
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
    case 'children': {
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
  }
}

const columnValue = ({ type }: Extract<Field, { kind: 'column' }>, raw: unknown): Json => {
  if (raw === null || raw === undefined) return null
  if (type === 'time') return toIso(Number(raw))
  if (type === 'boolean') return Number(raw) !== 0
  return type === 'integer' ? Number(raw) : (raw as string)
}

/** Column values in the order of the database, null first. */
export const compareRaw = (a: unknown, b: unknown): number => {
  if (a === b) return 0
  if (a === null) return -1
  if (b === null) return 1
  return typeof a === 'string' ? compareText(a, b as string) : Number(a) - Number(b)
}

/** The columns that needed fields are read from, with the id where other tables refer to it. */
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

/** What an `IN` holds: SQLite takes 32,766 values a statement. */
const KEYS_A_STATEMENT = 10_000

const readWhere = async (
  connection: Connection,
  statement: string,
  key: string,
  keys: string[],
  visible?: Sql,
): Promise<Row[]> => {
  const found: Row[] = []
  for (let from = 0; from < keys.length; from += KEYS_A_STATEMENT) {
    const part = keys.slice(from, from + KEYS_A_STATEMENT)
    const among: Sql = { sql: `${key} IN (${part.map(() => '?').join(', ')})`, bindings: part }
    const where = all(visible ? [among, visible] : [among])
    for (const row of await select<Row>(connection, `${statement} WHERE ${where.sql}`, where.bindings)) found.push(row)
  }
  return found
}
