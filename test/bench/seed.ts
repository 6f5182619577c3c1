import { v7 as uuid } from 'uuid'
import { type Database, marks, run } from '../../server/database/connect.ts'

// Inserts rows in bulk, without the API. Each is a copy of a row that the API has created, except the named columns, so
// that the other columns and the form of ids fit any version of the schema.

export type Row = Record<string, unknown>

const ROWS_A_STATEMENT = 1_000
/** SQLite's limit is 32,766. */
const BINDINGS_A_STATEMENT = 30_000

/** The newest rows of a table that match. Throws an Error if there is none. */
export const templateOf = async ({ knex }: Database, table: string, where: Row = {}): Promise<Row> => {
  const row = await knex(table).where(where).first()
  if (!row) throw new Error(`There is no row to copy in ${table}`)
  return row
}

/** Inserts so many copies of a row, each with its changes. */
export const copyRow = async (
  { knex }: Database,
  table: string,
  given: { template: Row; count: number; change: (n: number) => Row },
): Promise<void> => {
  const { template, count, change } = given
  const columns = Object.keys(template)
  const size = Math.min(ROWS_A_STATEMENT, Math.floor(BINDINGS_A_STATEMENT / columns.length))
  for (let from = 0; from < count; from += size) {
    const rows = Array.from({ length: Math.min(size, count - from) }, (_, n) => ({ ...template, ...change(from + n) }))
    await run(
      knex,
      `INSERT INTO ${table} (${columns.join(', ')}) VALUES ${rows.map(() => `(${marks(columns)})`).join(', ')}`,
      rows.flatMap(row => columns.map(column => (row as Row)[column] as string)),
    )
  }
}

/** A new id of version 7, as text or bytes like the template's. */
export const newIdLike = (template: unknown): unknown => asIdLike(template, uuid())

/** An id in the form of the template's. */
export const asIdLike = (template: unknown, id: string): unknown =>
  Buffer.isBuffer(template) ? Buffer.from(id.replaceAll('-', ''), 'hex') : id

/** An id as the API writes it. */
export const idText = (id: unknown): string => {
  if (!Buffer.isBuffer(id)) return String(id)
  return id.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5')
}
