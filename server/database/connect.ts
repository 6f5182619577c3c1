import type { Socket } from 'node:net'
import knexModule, { type Knex } from 'knex'
import pRetry from 'p-retry'
import { type Dialect, dialectOf, dialects, type Fault, STATEMENT_LIMITS } from './dialect.ts'
import { knexLog } from './knex-log.ts'
import { connectSqlite } from './sqlite.ts'

export type Sql = Knex | Knex.Transaction

export type Database = {
  knex: Knex
  dialect: Dialect
  /** Runs `work` in a transaction, and again from its start when another transaction was in its way. */
  transaction<T>(work: (trx: Knex.Transaction) => Promise<T>): Promise<T>
  close(): Promise<void>
}

/**
 * Connects to `sqlite:PATH` or `mysql://user:password@host:port/database`. Throws when the server does not answer.
 *
 * @param options.silenceMs a connection that has been silent for so long is given up, and the statement that waits for
 *   it fails: its server may be gone without a word. Never, unless given: the statements of a migration take what they
 *   take
 */
export const connect = async (
  url: string,
  { poolSize = 16, silenceMs = 0 }: { poolSize?: number; silenceMs?: number } = {},
): Promise<Database> => {
  if (url.startsWith('sqlite:')) return database(connectSqlite(url.slice('sqlite:'.length)), dialects.sqlite)
  const knex = connectMysql(url, poolSize, silenceMs)
  try {
    const [[{ version }]] = await knex.raw('SELECT VERSION() AS version')
    return database(knex, /mariadb/i.test(version) ? dialects.mariadb : dialects.mysql)
  } catch (error) {
    await knex.destroy()
    throw error
  }
}

const connectMysql = (url: string, poolSize: number, silenceMs: number): Knex =>
  knexModule.knex({
    client: 'mysql2',
    log: knexLog,
    connection: { uri: url, charset: 'utf8mb4', connectTimeout: 5_000, enableKeepAlive: true } as object,
    acquireConnectionTimeout: 10_000,
    pool: {
      min: 0,
      max: poolSize,
      afterCreate: (connection: RawConnection, done: (error: unknown, connection: unknown) => void) => {
        const { stream } = connection
        // knex takes its listener away from a connection that it ends, and what goes wrong after that would end the
        // process.
        stream.prependListener('error', () => connection.on('error', () => {}))
        stream.setTimeout(silenceMs, () =>
          stream.destroy(new Error(`The database was silent for ${silenceMs / 1000} s`)),
        )
        connection.query(TIMEOUTS, timeoutsError =>
          timeoutsError
            ? done(timeoutsError, connection)
            : connection.query(ISOLATION, error => done(error, connection)),
        )
      },
    },
  })

/**
 * A claim locks the rows it takes and no gaps between them, and a change of a webhook sees all that was queued before
 * its lock.
 */
const ISOLATION = 'SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED'
/**
 * Seconds. A lock that is not to be had is an error of its own before silence is one; and who has gone without a word,
 * or is frozen, in the middle of a transaction gives its locks back.
 */
const TIMEOUTS = 'SET SESSION innodb_lock_wait_timeout = 10, SESSION wait_timeout = 60'

type RawConnection = {
  stream: Socket
  on(event: 'error', listener: () => void): void
  query(sql: string, done: (error: unknown) => void): void
}

/** A transaction that others have stood in the way of for so long fails. */
const CONTENTION_MS = 15_000

const database = (knex: Knex, dialect: Dialect): Database => {
  // Each transaction inherits it.
  knex.userParams = { dialect }
  return {
    knex,
    dialect,
    transaction: work =>
      pRetry(() => knex.transaction(work), {
        retries: 8,
        minTimeout: 5,
        maxTimeout: 500,
        maxRetryTime: CONTENTION_MS,
        randomize: true,
        shouldRetry: ({ error }) => faultOf(error) === 'contention',
      }),
    close: () => knex.destroy(),
  }
}

/** What an engine says by an error, whichever engine it is. */
const faultOf = (error: unknown): Fault | undefined =>
  Object.values(dialects)
    .map(dialect => dialect.faultOf(error))
    .find(fault => fault !== undefined)

/**
 * Whether a statement would fail again: the database has read and refused it, or it was never made, by a fault of ours.
 */
export const isRefusal = (error: unknown): boolean => {
  if (error instanceof TypeError || error instanceof RangeError) return true
  const fault = faultOf(error)
  return fault !== undefined && fault !== 'contention'
}

/** Whether a statement failed because a row with the same unique key exists. */
export const isDuplicate = (error: unknown): boolean => faultOf(error) === 'duplicate'

export const isMissingTable = (error: unknown): boolean => faultOf(error) === 'missing table'

/** The rows of one SELECT. */
export const rows = async <Row>(
  sql: Sql,
  statement: string,
  bindings: readonly Knex.RawBinding[] = [],
): Promise<Row[]> => {
  const answer = await sql.raw(statement, bindings as Knex.RawBinding[])
  return dialectOf(sql).rowsOf(answer)
}

/** Runs one INSERT, UPDATE or DELETE and returns how many rows it matched or wrote. */
export const run = async (sql: Sql, statement: string, bindings: readonly Knex.RawBinding[] = []): Promise<number> => {
  const answer = await sql.raw(statement, bindings as Knex.RawBinding[])
  return dialectOf(sql).affectedRowsOf(answer)
}

/** Inserts any number of rows, none included. */
export const insertMany = async (sql: Sql, table: string, values: object[]): Promise<void> => {
  for (let from = 0; from < values.length; from += STATEMENT_LIMITS.selects) {
    await sql(table).insert(values.slice(from, from + STATEMENT_LIMITS.selects))
  }
}

/** `?, ?, ?` for a list of values. */
export const marks = (values: readonly unknown[]): string => values.map(() => '?').join(', ')
