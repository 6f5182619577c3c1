import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Knex } from 'knex'
import pRetry from 'p-retry'
import { databaseFile } from '../../shared/database-url.ts'
import { codeOf } from '../../shared/errors.ts'
import { otherWork } from '../event-loop.ts'
import { type Dialect, dialectOf, dialects, type Fault } from './dialect.ts'
import { connectMysql } from './mysql.ts'
import { connectSqlite } from './sqlite.ts'
import { type Transaction, transact } from './transaction.ts'

export type Sql = Knex | Transaction

export type Database = {
  knex: Knex
  dialect: Dialect
  /**
   * Runs `work` in a transaction. If another transaction conflicts, runs it again from the start, for 15 s or
   * `againForMs`. Rejects with the error of `work` or of the database.
   */
  transaction<T>(work: (trx: Transaction) => Promise<T>, options?: { againForMs?: number }): Promise<T>
  close(): Promise<void>
}

/**
 * Connects to `sqlite:PATH` or `mysql://user:password@host:port/database`, with the options of `parseMysqlUrl`. Throws
 * when the server does not answer.
 *
 * @param options.lockWaitS how many seconds a statement waits for another transaction's lock
 * @param options.silenceMs a connection that is silent for this long is closed, and its statement fails, because its
 *   server may be gone. By default never, since the statements of a migration may take long
 * @param options.isPacking sends statements that are asked in one turn of the event loop (`inOneTrip`) to a server in
 *   one packet; if one fails, all do. Only for fixed statements that bind every value
 * @param options.isServing the schema stays as it is: each statement changes few rows, and may hold in memory what it
 *   would undo
 */
export const connect = async (
  url: string,
  { poolSize = 16, silenceMs = 0, lockWaitS = 10, isPacking = false, isServing = false }: Options = {},
): Promise<Database> => {
  const file = databaseFile(url)
  if (file !== undefined) return database(connectSqlite(file, { isServing }), dialects.sqlite)
  const knex = connectMysql(url, { poolSize, silenceMs, lockWaitS, isPacking })
  try {
    const [[{ version }]] = await knex.raw('SELECT VERSION() AS version')
    const dialect = /mariadb/i.test(version) ? 'mariadb' : /tidb/i.test(version) ? 'tidb' : 'mysql'
    return database(knex, dialects[dialect])
  } catch (error) {
    await knex.destroy()
    throw error
  }
}

/**
 * One connection that only reads. It connects at the first statement.
 *
 * @param options.statementMs a SELECT fails after this time, if the engine can end one
 * @param options.onConnect called with the server's id of the connection, which can end a statement sooner
 */
export const connectToRead = (url: string, dialect: Dialect, { statementMs, onConnect }: ReadOnly): Database => {
  const file = databaseFile(url)
  if (file !== undefined) return database(connectSqlite(file, { readOnly: true }), dialect)
  // The server itself ends a statement before this, unless it is gone.
  const silenceMs = 2 * statementMs
  const settings = [dialect.readingWithin(statementMs)]
  return database(connectMysql(url, { poolSize: 1, silenceMs, lockWaitS: 1, settings, onConnect }), dialect)
}

type Options = {
  poolSize?: number
  silenceMs?: number
  lockWaitS?: number
  isPacking?: boolean
  isServing?: boolean
}

export type ReadOnly = { statementMs: number; onConnect(connectionId: number): void }

/** A transaction that has conflicted with others for this long fails. */
const CONTENTION_MS = 15_000

const database = (knex: Knex, dialect: Dialect): Database => {
  // Every transaction inherits this property.
  knex.userParams = { dialect }
  return {
    knex,
    dialect,
    transaction: (work, { againForMs = CONTENTION_MS } = {}) =>
      pRetry(() => transact(knex, work), {
        retries: againForMs === 0 ? 0 : 8,
        minTimeout: 5,
        maxTimeout: 500,
        maxRetryTime: againForMs || CONTENTION_MS,
        randomize: true,
        shouldRetry: ({ error }) => faultOf(error) === 'contention',
      }),
    async close() {
      const { pool } = knex.client
      await knex.destroy()
      // A connection that was given out meanwhile has begun the pool's timer again: an empty pool ends it.
      pool?.check()
    },
  }
}

/** Thrown when another transaction has changed a row since this one read it; the transaction is then run again. */
export class Overtaken extends Error {
  override name = 'Overtaken'
  constructor() {
    super('A row was changed by another transaction since it was read')
  }
}

/** The kind of a database error on any engine; undefined for an error that does not come from the database. */
export const faultOf = (error: unknown): Fault | undefined => {
  if (error instanceof Overtaken) return 'contention'
  const said = Object.values(dialects)
    .map(dialect => dialect.faultOf(error))
    .find(fault => fault !== undefined)
  return said ?? (isUnreached(error) ? 'outage' : undefined)
}

/** What knex's pool says to those who wait for a connection when it is closed, and to those who come after. */
const POOL_CLOSED: readonly unknown[] = ['aborted', 'Unable to acquire a connection']

/**
 * Whether no connection was available, or it broke: codes of Node and mysql2, mysql2's mark where it has no code, or
 * knex's pool.
 */
const isUnreached = (error: unknown): boolean => {
  const { name, fatal, message } = error as { name?: unknown; fatal?: unknown; message?: unknown }
  const code = codeOf(error)
  if (fatal === true || POOL_CLOSED.includes(message)) return true
  return name === 'KnexTimeoutError' || (typeof code === 'string' && /^(E[A-Z]+|PROTOCOL_\w+)$/.test(code))
}

/** Whether the database is unreachable or cannot work now: the same statement may succeed later. */
export const isOutage = (error: unknown): boolean => faultOf(error) === 'outage'

/** Whether another transaction kept a lock for longer than the statement waited. */
export const isContention = (error: unknown): boolean => faultOf(error) === 'contention'

/**
 * Whether a statement would fail again: the database refuses one of its values, or our own code failed before it was
 * sent.
 */
export const isRefusal = (error: unknown): boolean =>
  error instanceof TypeError || error instanceof RangeError || faultOf(error) === 'refusal'

/** Whether a statement failed because a row with the same unique key exists. */
export const isDuplicate = (error: unknown): boolean => faultOf(error) === 'duplicate'

/**
 * Throws unless the database commits a new row. A database whose disk is full takes statements that change nothing, and
 * small rows (see `wasFull`). The row is new each time, so that no process waits for another's. One whose deletion
 * fails is deleted with the expired signatures.
 */
export const checkWritable = async (database: Database): Promise<void> => {
  const row = `check ${randomUUID()}`
  await run(database.knex, 'INSERT INTO used_signatures (signature_hash, expires_at) VALUES (?, 0)', [row])
  await run(database.knex, 'DELETE FROM used_signatures WHERE signature_hash = ?', [row])
}

export const isMissingTable = (error: unknown): boolean => faultOf(error) === 'missing table'

/**
 * The rows of one SELECT.
 *
 * @param options.isPrepared prepares the statement once for each connection of a database server. For statements that
 *   take longer to parse than to run, have few distinct texts, and bind texts only
 */
export const rows = async <Row>(
  sql: Sql,
  statement: string,
  bindings: readonly Knex.RawBinding[] = [],
  { isPrepared = false }: { isPrepared?: boolean } = {},
): Promise<Row[]> => dialectOf(sql).rowsOf(await ask(sql, { sql: statement, bindings, isPrepared }))

/** Runs one INSERT, UPDATE or DELETE and returns how many rows it matched or wrote. */
export const run = async (sql: Sql, statement: string, bindings: readonly Knex.RawBinding[] = []): Promise<number> => {
  return dialectOf(sql).affectedRowsOf(await ask(sql, { sql: statement, bindings }))
}

type Query = { sql: string; bindings: readonly Knex.RawBinding[]; isPrepared?: boolean }

/**
 * Does the work of knex's `raw` for statements that are already text. Building, compiling and running one through knex
 * takes as much CPU as sending it and reading its answer.
 */
const ask = async (sql: Sql, query: Query): Promise<unknown> => {
  const { client } = sql
  const connection = await client.acquireConnection()
  try {
    const { response } = await client.query(connection, query)
    return response
  } finally {
    client.releaseConnection(connection)
  }
}

/**
 * Waits for parts of one transaction that are asked for in one turn of the event loop. The statements that they begin
 * with go to a database server in one trip, and every engine executes them in the order of the list: what an earlier
 * part asks first is there for a later one.
 */
export const inOneTrip = <Parts extends readonly unknown[] | []>(
  parts: Parts,
): Promise<{ -readonly [Part in keyof Parts]: Awaited<Parts[Part]> }> => Promise.all(parts)

/**
 * Does one part of long work, such as one of its transactions. Others then have the process, and the database's cores,
 * for as long as the part took.
 */
export const partOfMany = async <T>(work: () => Promise<T>): Promise<T> => {
  const startedAt = performance.now()
  const result = await work()
  await sleep(performance.now() - startedAt)
  return result
}

/** A few milliseconds of work: between two parts others have their turn, and the transaction becomes longer. */
const VALUES_A_STATEMENT = 4_000

/** Inserts any number of rows with the same columns, none included. */
export const insertMany = async (sql: Sql, table: string, values: object[]): Promise<void> => {
  const columns = Object.keys(values[0] ?? {})
  const row = `(${marks(columns)})`
  const rowsAtOnce = Math.ceil(VALUES_A_STATEMENT / columns.length)
  for (let from = 0; from < values.length; from += rowsAtOnce) {
    if (from > 0) await otherWork()
    const part = values.slice(from, from + rowsAtOnce)
    await run(
      sql,
      `INSERT INTO ${table} (${columns.join(', ')}) VALUES ${part.map(() => row).join(', ')}`,
      part.flatMap(each => columns.map(column => (each as Record<string, Knex.RawBinding>)[column] ?? null)),
    )
  }
}

/** `?, ?, ?` for a list of values. */
export const marks = (values: readonly unknown[]): string => values.map(() => '?').join(', ')
