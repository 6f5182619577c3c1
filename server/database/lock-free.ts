import { isContention, marks, rows, type Sql } from './connect.ts'
import { dialectOf } from './dialect.ts'

/**
 * Locks the rows with some ids, skips those that another transaction has locked, and returns the others. Where SKIP
 * LOCKED waits, it asks for all rows at once without waiting, then for each half of those that were refused.
 *
 * @param select makes the SELECT of these ids, without its locking clause, from their placeholders
 */
export const lockFree = async <Row>(sql: Sql, ids: string[], select: (ids: string) => string): Promise<Row[]> => {
  const { skipsLocked, forUpdate, forUpdateSkipLocked } = dialectOf(sql)
  if (skipsLocked) return rows(sql, select(marks(ids)) + forUpdateSkipLocked, ids)
  try {
    return await rows(sql, `${select(marks(ids))}${forUpdate} NOWAIT`, ids)
  } catch (error) {
    if (!isContention(error)) throw error
  }
  if (ids.length === 1) return []
  const half = Math.ceil(ids.length / 2)
  return [
    ...(await lockFree<Row>(sql, ids.slice(0, half), select)),
    ...(await lockFree<Row>(sql, ids.slice(half), select)),
  ]
}
