import { type Database, rows } from '../../server/database/connect.ts'

/** The number of rows read by this connection, by the engine's own count, which SQLite lacks. */
export const rowsRead = async ({ knex, dialect }: Database): Promise<number> => {
  if (dialect.isEmbedded) return 0
  const found = await rows<{ Value: string }>(knex, "SHOW SESSION STATUS LIKE 'Handler_read%'")
  return found.reduce((sum, { Value }) => sum + Number(Value), 0)
}
