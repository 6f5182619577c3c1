import type { Knex } from 'knex'
import pRetry from 'p-retry'
import { type Dialect, dialectOf, dialects, type Fault, STATEMENT_LIMITS } from './dialect.ts'
import { connectMysql } from './mysql.ts'
import { connectSqlite } from './sqlite.ts'

export type Sql = Knex | Knex.Transaction

export type Database = {
  knex: Knex
  dialect: Dialect
  /**
   * Runs `work` in a transaction, and again from its start when another transaction was in its way, for 15 s unless
   * `againForMs` says otherwise.
   */
  transaction<T>(work: (trx: Knex.Transaction) => Promise<T>, options?: { againForMs?: number }): Promise<T>
  close(): Promise<void>
}

/**
 * Connects to `sqlite:PATH` or `mysql://user:password@host:port/database`, with the options of `parseMysqlUrl`. Throws
 * when the server does not answer.
 *
 * @param options.lockWaitS seconds that a statement waits for another transaction's lock
 * @param options.silenceMs a connection that has been silent for so long is given up, and the statement that waits for
 *   it fails: its server may be gone without a word. Never, unless given: the statements of a migration take what they
 *   take
 */
export const connect = async (
  url: string,
  { poolSize = 16, silenceMs = 0, lockWaitS = 10 }: { poolSize?: number; silenceMs?: number; lockWaitS?: number } = {},
): Promise<Database> => {
  if (url.startsWith('sqlite:')) return database(connectSqlite(url.slice('sqlite:'.length)), dialects.sqlite)
  const knex = connectMysql(url, { poolSize, silenceMs, lockWaitS })
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
 * One connection that only reads. Nothing is asked of the server before the first statement.
 *
 * @param options.statementMs a SELECT ends with an error after so long, where the engine can end one
 * @param options.onConnect is told what the server calls the connection, to end a statement sooner
 */
export const connectToRead = (url: string, dialect: Dialect, { statementMs, onConnect }: ReadOnly): Database => {
  if (dialect.isEmbedded) return database(connectSqlite(url.slice('sqlite:'.length), true), dialect)
  // The server ends a statement first, unless it is gone.
  const silenceMs = 2 * statementMs
  const settings = [dialect.readingWithin(statementMs)]
  return database(connectMysql(url, { poolSize: 1, silenceMs, lockWaitS: 1, settings, onConnect }), dialect)
}

export type ReadOnly = { statementMs: number; onConnect(connectionId: number): void }

/** A transaction that others have stood in the way of for so long fails. */
const CONTENTION_MS = 15_000

const database = (knex: Knex, dialect: Dialect): Database => {
  // Each transaction inherits it.
  knex.userParams = { dialect }
  return {
    knex,
    dialect,
    transaction: (work, { againForMs = CONTENTION_MS } = {}) =>
      pRetry(() => knex.transaction(dialect.isEmbedded ? inTurn(work) : work), {
        retries: againForMs === 0 ? 0 : 8,
        minTimeout: 5,
        maxTimeout: 500,
        maxRetryTime: againForMs || CONTENTION_MS,
        randomize: true,
        shouldRetry: ({ error }) => faultOf(error) === 'contention',
      }),
    close: () => knex.destroy(),
  }
}

/** A row was changed by another since this transaction read it: thrown to have the transaction made again. */
export class Overtaken extends Error {
  override name = 'Overtaken'
  constructor() {
    super('A row was changed by another transaction since it was read')
  }
}

/** What an error says of the database, whichever it is; undefined for an error that has nothing to do with it. */
export const faultOf = (error: unknown): Fault | undefined => {
  if (error instanceof Overtaken) return 'contention'
  const said = Object.values(dialects)
    .map(dialect => dialect.faultOf(error))
    .find(fault => fault !== undefined)
  return said ?? (isUnreached(error) ? 'outage' : undefined)
}

/**
 * No connection was to be had, or it broke: Node's and mysql2's codes, mysql2's mark where it has none, knex's pool.
 */
const isUnreached = (error: unknown): boolean => {
  const { code, name, fatal } = error as { code?: unknown; name?: unknown; fatal?: unknown }
  if (fatal === true) return true
  return name === 'KnexTimeoutError' || (typeof code === 'string' && /^(E[A-Z]+|PROTOCOL_\w+)$/.test(code))
}

/**
 * Whether the database can't be reached, or can't do its work now: the same may succeed later, and nothing is wrong
 * with it.
 */
export const isOutage = (error: unknown): boolean => faultOf(error) === 'outage'

/** Whether another transaction stood in the way for longer than it was waited for. */
export const isContention = (error: unknown): boolean => faultOf(error) === 'contention'

/**
 * Whether a statement would fail again: the database refuses a value of it, or it was never made, by a fault of ours.
 */
export const isRefusal = (error: unknown): boolean =>
  error instanceof TypeError || error instanceof RangeError || faultOf(error) === 'refusal'

/** Whether a statement failed because a row with the same unique key exists. */
export const isDuplicate = (error: unknown): boolean => faultOf(error) === 'duplicate'

/** Throws unless the database can be written. Writes nothing; for a full disk it does not show. */
export const checkWritable = async (database: Database): Promise<void> => {
  await run(database.knex, "DELETE FROM used_signatures WHERE signature_hash = ''")
}

export const isMissingTable = (error: unknown): boolean => faultOf(error) === 'missing table'

/**
 * The rows of one SELECT.
 *
 * @param options.isPrepared each connection of an engine that is reached by one has the statement parsed once: for
 *   those that take longer to read than to carry out, whose texts are few, and whose bindings are texts
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
 * What knex's `raw` does, for statements that are text already: building, compiling and running one as knex does took
 * as much of the processor as sending it and reading its answer.
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

/** Lets the process do what else there is: an embedded engine answers before anything else can run. */
export const otherWork = (): Promise<void> => new Promise(resolve => setImmediate(resolve))

/** How long transactions of an embedded engine hold the process at most, beside the last of them. */
const TURN_MS = 8
let turnBeganAt = 0

/**
 * Transactions of an embedded engine wait for nothing but each other: they would go on from one to the next while
 * connections wait to be accepted, some of them for seconds.
 */
const inTurn =
  <T>(work: (trx: Knex.Transaction) => Promise<T>) =>
  async (trx: Knex.Transaction): Promise<T> => {
    if (performance.now() - turnBeganAt >= TURN_MS) {
      await otherWork()
      turnBeganAt = performance.now()
    }
    return work(trx)
  }

/** Inserts any number of rows, none included. */
export const insertMany = async (sql: Sql, table: string, values: object[]): Promise<void> => {
  for (let from = 0; from < values.length; from += STATEMENT_LIMITS.selects) {
    if (from > 0) await otherWork()
    await sql(table).insert(values.slice(from, from + STATEMENT_LIMITS.selects))
  }
}

/** `?, ?, ?` for a list of values. */
export const marks = (values: readonly unknown[]): string => values.map(() => '?').join(', ')
