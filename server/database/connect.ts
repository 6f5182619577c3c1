import type { Socket } from 'node:net'
import knexModule, { type Knex } from 'knex'
import pRetry from 'p-retry'
import { type Dialect, dialects, type Engine } from './engine.ts'
import { knexLog } from './knex-log.ts'
import { connectSqlite } from './sqlite.ts'

export type Sql = Knex | Knex.Transaction

export type Database = {
  knex: Knex
  engine: Engine
  dialect: Dialect
  /**
   * Runs `work` in a transaction, again from its start when the database says that another transaction was in its way.
   */
  transaction<T>(work: (trx: Knex.Transaction) => Promise<T>): Promise<T>
  close(): Promise<void>
}

/**
 * Connects to `sqlite:PATH` or `mysql://user:password@host:port/database`. Throws when the server does not answer.
 *
 * @param options.silenceMs a connection that has been silent for so long is given
 *   up, and the statement that waits for it fails: its server may be gone without
 *   a word. Never, unless given: the statements of a migration take what they take
 */
export const connect = async (
  url: string,
  { poolSize = 16, silenceMs = 0 }: { poolSize?: number; silenceMs?: number } = {},
): Promise<Database> => {
  if (url.startsWith('sqlite:')) return database(connectSqlite(url.slice('sqlite:'.length)), 'sqlite')
  const knex = connectMysql(url, poolSize, silenceMs)
  try {
    const [found] = await rows<{ version: string }>(knex, 'SELECT VERSION() AS version')
    return database(knex, /mariadb/i.test(found!.version) ? 'mariadb' : 'mysql')
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
        // knex takes its listener away from a connection that it
        // ends, and what goes wrong after that would end the process.
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
 * A claim locks the rows it takes and no gaps between them, and a
 * change of a webhook sees all that was queued before its lock.
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

const database = (knex: Knex, engine: Engine): Database => ({
  knex,
  engine,
  dialect: dialects[engine],
  transaction: work =>
    pRetry(() => knex.transaction(work), {
      retries: 8,
      minTimeout: 5,
      maxTimeout: 500,
      maxRetryTime: CONTENTION_MS,
      randomize: true,
      shouldRetry: ({ error }) => isContention(error),
    }),
  close: () => knex.destroy(),
})

/**
 * Deadlock (1213), lock wait (1205), MariaDB's changed row (1020),
 * SQLite's busy: nothing was written, and again may succeed.
 */
const isContention = (error: unknown): boolean => {
  const { errno, errcode } = error as { errno?: number; errcode?: number }
  return errno === 1213 || errno === 1205 || errno === 1020 || errcode === 5 || errcode === 6
}

/**
 * Whether a statement would fail again: the database has read and refused it, or it was never made, by a fault of ours.
 */
export const isRefusal = (error: unknown): boolean => {
  if (error instanceof TypeError || error instanceof RangeError) return true
  const { errno, errcode, fatal } = error as { errno?: number; errcode?: number; fatal?: boolean }
  const wasRead = errcode !== undefined || (errno !== undefined && errno > 0 && fatal !== true)
  return wasRead && !isContention(error)
}

/** Whether a statement failed because a row with the same unique key exists. */
export const isDuplicate = (error: unknown): boolean => {
  const { errno, errcode } = error as { errno?: number; errcode?: number }
  return errno === 1062 || errcode === 1555 || errcode === 2067
}

export const isMissingTable = (error: unknown): boolean => {
  const { errno, message } = error as { errno?: number; message?: string }
  return errno === 1146 || /no such table/.test(message ?? '')
}

/** The rows of one SELECT. */
export const rows = async <Row>(
  sql: Sql,
  statement: string,
  bindings: readonly Knex.RawBinding[] = [],
): Promise<Row[]> => {
  const result = await sql.raw(statement, bindings as Knex.RawBinding[])
  return isSqlite(sql) ? result : result[0]
}

/** Runs one INSERT, UPDATE or DELETE and returns how many rows it matched or wrote. */
export const run = async (sql: Sql, statement: string, bindings: readonly Knex.RawBinding[] = []): Promise<number> => {
  const result = await sql.raw(statement, bindings as Knex.RawBinding[])
  return isSqlite(sql) ? result.affectedRows : result[0].affectedRows
}

const isSqlite = (sql: Sql): boolean => sql.client.driverName === 'better-sqlite3'

/** SQLite takes no more terms in one statement than 500. */
const ROWS_A_STATEMENT = 200

/** Inserts any number of rows, none included. */
export const insertMany = async (sql: Sql, table: string, values: object[]): Promise<void> => {
  for (let from = 0; from < values.length; from += ROWS_A_STATEMENT) {
    await sql(table).insert(values.slice(from, from + ROWS_A_STATEMENT))
  }
}

/** `?, ?, ?` for a list of values. */
export const marks = (values: readonly unknown[]): string => values.map(() => '?').join(', ')
