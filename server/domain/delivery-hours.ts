import { timeOfId } from '../../shared/time.ts'
import { type Database, insertMany, isDuplicate, marks, rows, run, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import type { Transaction } from '../database/transaction.ts'
import { newId } from '../ids.ts'
import type { Summed, Sums, SumsAsked } from '../mango/resource.ts'

// The deliveries created in an hour are counted once, by webhook and status, when the hour has been over for a while:
// `counts` and `stats` over weeks then read hours, not deliveries. What changes such a delivery later leaves a mark of
// its hour in the same transaction (`markHours`). An hour with a mark is counted from its deliveries, until the
// scheduler has counted it again. Only who sees every delivery is answered from hours.
//
// Rejected: to count when a delivery is written. All transactions of an hour would change the same rows.

const HOUR_MS = 3_600_000
const MINUTE_MS = 60_000

/** A change of a delivery that is older leaves a mark. */
const MARKED_AFTER_MS = 10 * 60_000
/** An hour is counted so long after its end. A change that left no mark has long been committed by then. */
const COUNTED_AFTER_MS = HOUR_MS

/** Of all webhooks together. A row of no status says that the hour has been counted, and how often. */
const ALL = ''
const COUNTED = ''

/** Notes that deliveries change their status or are deleted, in the transaction that does so, before or after. */
export const markHours = async (trx: Sql, deliveryIds: string[], now: number): Promise<void> => {
  const old = deliveryIds.filter(id => timeOfId(id) < now - MARKED_AFTER_MS)
  if (old.length === 0) return
  const hour = dialectOf(trx).quotient('created_at', HOUR_MS)
  const hours = await rows<{ hour: number }>(
    trx,
    `SELECT DISTINCT ${hour} AS hour FROM deliveries WHERE id IN (${marks(old)})`,
    old,
  )
  const changes = hours.map(({ hour }) => ({ id: newId(now), hour_at: Number(hour) * HOUR_MS }))
  await insertMany(trx, 'delivery_hour_changes', changes)
}

/** The hours to be counted, the latest first. Forgets those before the oldest delivery. */
export const hoursToCount = async (sql: Sql, now: number): Promise<number[]> => {
  const [oldest] = await rows<{ at: number | null }>(sql, 'SELECT MIN(created_at) AS at FROM deliveries')
  const lastAt = startOf(now - COUNTED_AFTER_MS) - HOUR_MS
  const firstAt = oldest?.at == null ? lastAt + HOUR_MS : startOf(Number(oldest.at))
  for (const table of ['delivery_hours', 'delivery_hour_changes'])
    await run(sql, `DELETE FROM ${table} WHERE hour_at < ?`, [firstAt])
  const counted = await rows<{ hour_at: number }>(sql, KNOWN, [ALL, COUNTED])
  const known = new Set(counted.map(({ hour_at }) => Number(hour_at)))
  const owed: number[] = []
  for (let hourAt = lastAt; hourAt >= firstAt; hourAt -= HOUR_MS) if (!known.has(hourAt)) owed.push(hourAt)
  return owed
}

const startOf = (ms: number): number => ms - (ms % HOUR_MS)

/** The hours that have been counted since something of theirs changed. */
const KNOWN = `SELECT k.hour_at FROM delivery_hours k WHERE k.webhook_id = ? AND k.status = ?
  AND k.hour_at NOT IN (SELECT c.hour_at FROM delivery_hour_changes c)`

/**
 * Counts the deliveries of an hour, a minute a statement: on an embedded engine a statement holds the only connection.
 * Minutes without deliveries are skipped, or each quiet hour would cost sixty statements. What changes meanwhile leaves
 * a mark, which stays. Of two processes that count the same hour, the one that ends first has it, because the other may
 * have read before changes whose marks are gone.
 */
export const countHour = async (
  { knex, transaction }: Pick<Database, 'knex' | 'transaction'>,
  hourAt: number,
): Promise<void> => {
  const turn = await turnOf(knex, hourAt)
  const changes = await rows<{ id: string }>(knex, 'SELECT id FROM delivery_hour_changes WHERE hour_at = ?', [hourAt])
  const found: Counted[] = []
  let fromMs = await firstMinute(knex, hourAt)
  while (fromMs < hourAt + HOUR_MS) {
    const some = await rows<Counted>(
      knex,
      `SELECT webhook_id, status, COUNT(*) AS number FROM deliveries ${dialectOf(knex).useIndex('deliveries_by_time')}
       WHERE created_at >= ? AND created_at < ? GROUP BY webhook_id, status`,
      [fromMs, fromMs + MINUTE_MS],
    )
    found.push(...some)
    fromMs = some.length > 0 ? fromMs + MINUTE_MS : await firstMinute(knex, fromMs + MINUTE_MS)
  }
  await transaction(async trx => {
    if (!(await takeTurn(trx, hourAt, turn))) return
    await run(trx, 'DELETE FROM delivery_hours WHERE hour_at = ? AND NOT (webhook_id = ? AND status = ?)', [
      ...[hourAt, ALL, COUNTED],
    ])
    await insertMany(
      trx,
      'delivery_hours',
      summed(found).map(row => ({ ...row, hour_at: hourAt })),
    )
    await forgetChanges(
      trx,
      changes.map(({ id }) => id),
    )
  })
}

/** The start of the first minute from then on in which a delivery was created; infinity if there is none. */
const firstMinute = async (sql: Sql, fromMs: number): Promise<number> => {
  const [first] = await rows<{ at: number | null }>(
    sql,
    'SELECT MIN(created_at) AS at FROM deliveries WHERE created_at >= ?',
    [fromMs],
  )
  return first?.at == null ? Number.POSITIVE_INFINITY : Number(first.at) - (Number(first.at) % MINUTE_MS)
}

/** How often an hour has been counted since it was forgotten; undefined if never. */
const turnOf = async (sql: Sql, hourAt: number): Promise<number | undefined> => {
  const [row] = await rows<{ number: number }>(
    sql,
    'SELECT number FROM delivery_hours WHERE webhook_id = ? AND hour_at = ? AND status = ?',
    [ALL, hourAt, COUNTED],
  )
  return row && Number(row.number)
}

/** Whether nobody has counted the hour since `turn` was read. */
const takeTurn = async (trx: Sql, hourAt: number, turn: number | undefined): Promise<boolean> => {
  if (turn !== undefined) {
    const updated = await run(
      trx,
      'UPDATE delivery_hours SET number = ? WHERE webhook_id = ? AND hour_at = ? AND status = ? AND number = ?',
      [turn + 1, ALL, hourAt, COUNTED, turn],
    )
    return updated === 1
  }
  try {
    await insertMany(trx, 'delivery_hours', [{ webhook_id: ALL, hour_at: hourAt, status: COUNTED, number: 1 }])
    return true
  } catch (error) {
    if (isDuplicate(error)) return false
    throw error
  }
}

type Counted = { webhook_id: string; status: string; number: number }

/** By webhook and status, and of all webhooks together by status. */
const summed = (found: Counted[]): Counted[] => {
  const each = found.flatMap(row => [row, { ...row, webhook_id: ALL }])
  const alike = Map.groupBy(each, ({ webhook_id, status }) => JSON.stringify([webhook_id, status]))
  return [...alike.values()].map(some => ({
    ...some[0]!,
    number: some.reduce((sum, { number }) => sum + Number(number), 0),
  }))
}

const CHANGES_A_STATEMENT = 500

const forgetChanges = async (trx: Transaction, ids: string[]): Promise<void> => {
  for (let from = 0; from < ids.length; from += CHANGES_A_STATEMENT) {
    const part = ids.slice(from, from + CHANGES_A_STATEMENT)
    await run(trx, `DELETE FROM delivery_hour_changes WHERE id IN (${marks(part)})`, part)
  }
}

/** Forgets what was counted, where it may have been changed without a mark. The numbers are replaced one by one. */
export const forgetHours = (sql: Sql): Promise<number> =>
  run(sql, 'DELETE FROM delivery_hours WHERE webhook_id = ? AND status = ?', [ALL, COUNTED])

const read = async (sql: Sql, { within: [fromMs, toMs], where, by }: SumsAsked): Promise<Summed> => {
  const lastAt = toMs === Number.POSITIVE_INFINITY ? Number.MAX_SAFE_INTEGER : toMs - HOUR_MS
  const firstAt = fromMs === Number.NEGATIVE_INFINITY ? 0 : fromMs
  const ofEach = by.includes('webhook_id') || where.has('webhook_id')
  const values = by.map((column, index) => {
    const expression = typeof column === 'number' ? dialectOf(sql).quotient('hour_at', column) : column
    return { expression, name: `by_${index}` }
  })
  const conditions = [...where].map(([column, some]) => `AND ${column} IN (${marks(some)})`).join(' ')
  const list = (parts: string[]) => parts.map(part => `, ${part}`).join('')
  const groupBy = values.length === 0 ? '' : `GROUP BY ${values.map(({ expression }) => expression).join(', ')}`
  const range = 'hour_at >= ? AND hour_at <= ?'
  // One statement, so that the counts are of the hours that it lists. The known ones stand in it twice: for a webhook's
  // day MariaDB takes 0.7 ms so, and 1.3 ms with one table of them (WITH); for 30 days both take as long.
  const found = await rows<Record<string, string | number | null>>(
    sql,
    `SELECT hour_at AS hour, 0 AS number ${list(values.map(({ name }) => `NULL AS ${name}`))}
     FROM (${KNOWN}) known WHERE ${range}
     UNION ALL
     SELECT NULL, SUM(number) ${list(values.map(({ expression }) => expression))}
     FROM delivery_hours WHERE webhook_id ${ofEach ? '<>' : '='} ? AND status <> ? AND ${range} ${conditions}
       AND hour_at IN (${KNOWN})
     ${groupBy}`,
    [ALL, COUNTED, firstAt, lastAt, ALL, COUNTED, firstAt, lastAt, ...[...where.values()].flat(), ALL, COUNTED],
  )
  const groups = found.filter(({ hour, number }) => hour === null && number !== null)
  return {
    groups: groups.map(row => ({ values: values.map(({ name }) => row[name]!), count: Number(row.number) })),
    known: found.flatMap(({ hour }) => (hour === null ? [] : [Number(hour)])).toSorted((a, b) => a - b),
  }
}

export const deliveryHours: Sums = { time: 'created_at', spanMs: HOUR_MS, columns: ['webhook_id', 'status'], read }
