import { closeSync, existsSync, openSync } from 'node:fs'
import { DatabaseSync, type SQLInputValue, type StatementSync } from 'node:sqlite'
import knexModule, { type Knex } from 'knex'
import BetterSqlite3Client from 'knex/lib/dialects/better-sqlite3/index.js'
import pRetry from 'p-retry'
import { inTurn } from '../event-loop.ts'
import { noteFull } from './full-disk.ts'
import { knexLog } from './knex-log.ts'

const STATEMENTS_KEPT = 500
/** The longest that a timer can wait. */
const FOR_EVER_MS = 2 ** 31 - 1
/** How long a statement waits for another connection's transaction. */
const BUSY_MS = 10_000
const SQLITE_BUSY = 5
const OWNER_ONLY = 0o600
/** The size to which the write-ahead log is cut when it restarts after long readers let it grow. */
const LOG_BYTES = 16 * 1024 * 1024
/** The page cache of the connection that writes. In SQLite's 2 MiB, a large change reads and writes pages again. */
const CACHE_KIB = 16 * 1024
/**
 * The log is copied into the file when it has this many pages (of 4 KiB and a header), a little before it would be cut.
 * Most pages of a log are newer versions of the same pages, which are copied once.
 */
const LOG_PAGES = 4_000

/** knex's SQLite dialect on Node's built-in driver. One connection: SQLite is the embedded engine of one process. */
class NodeSqliteClient extends BetterSqlite3Client {
  override _driver() {
    return DatabaseSync
  }

  override async acquireRawConnection() {
    const { filename, readOnly, isServing } = this.connectionSettings as Settings
    // SQLite creates its log and index with the permissions of the file.
    if (!readOnly && filename !== ':memory:' && !existsSync(filename)) closeSync(openSync(filename, 'a', OWNER_ONLY))
    const connection = new DatabaseSync(filename, { timeout: BUSY_MS, readOnly })
    if (readOnly) return connection
    connection.exec(
      'PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; ' +
        `PRAGMA journal_size_limit = ${LOG_BYTES}; PRAGMA cache_size = -${CACHE_KIB}; ` +
        `PRAGMA wal_autocheckpoint = ${LOG_PAGES}`,
    )
    // What a statement would undo, or sorts, goes to a temporary file beyond 64 KiB: a file for each group of events.
    // Statements that serve name their rows, at most some thousands, or count one minute. A migration changes and sorts
    // whole tables, and needs the file.
    if (isServing) connection.exec('PRAGMA temp_store = MEMORY')
    // From here on `_query` waits by itself. The driver would block the whole process, perhaps with the transaction
    // that it waits for.
    connection.exec('PRAGMA busy_timeout = 0')
    return connection
  }

  override async destroyRawConnection(connection: DatabaseSync) {
    connection.close()
  }

  override async _query(connection: DatabaseSync, query: Query) {
    // Others wait for the end of a transaction, so it takes no longer than it must.
    if (!connection.isTransaction) await inTurn()
    const prepared = prepare(connection, query.sql)
    const { statement } = prepared
    const bindings = (this._formatBindings(query.bindings) as (SQLInputValue | undefined)[]).map(value => value ?? null)
    const execute = () => {
      if (prepared.columns.length > 0) {
        query.response = rowsOf(prepared, statement.all(...bindings) as unknown as unknown[][])
      } else {
        const { changes } = statement.run(...bindings)
        query.response = { affectedRows: Number(changes) }
        query.context = { lastID: 0, changes: Number(changes) }
      }
    }
    try {
      execute()
    } catch (error) {
      noteFull(error)
      if (!isBusy(error)) throw error
      await pRetry(execute, {
        retries: Number.POSITIVE_INFINITY,
        maxRetryTime: BUSY_MS,
        minTimeout: 2,
        maxTimeout: 50,
        shouldRetry: ({ error }) => isBusy(error),
      })
    }
    return query
  }
}

/** The driver's own objects take three times the memory and are no faster. */
const rowsOf = (prepared: Prepared, found: unknown[][]): Record<string, unknown>[] => {
  // Another process has added or dropped a column since.
  if (found.length > 0 && found[0]!.length !== prepared.columns.length) prepared.columns = columnsOf(prepared.statement)
  const { columns } = prepared
  return found.map(values => {
    const row: Record<string, unknown> = {}
    for (let index = 0; index < columns.length; index += 1) row[columns[index]!] = values[index]
    return row
  })
}

const isBusy = (error: unknown): boolean => (error as { errcode?: number }).errcode === SQLITE_BUSY

/** A statement and its columns: none if it returns no rows. To ask for their names takes longer than to run it. */
type Prepared = { statement: StatementSync; columns: string[] }

// Kept by connection, not in the client: a transaction of knex itself, as of migrations, has a client of its own.
const kept = new WeakMap<DatabaseSync, Map<string, Prepared>>()

const prepare = (connection: DatabaseSync, sql: string): Prepared => {
  // Every transaction takes the write lock at its start. One that reads first would fail at its first write if another
  // process wrote in between.
  const text = /^BEGIN;?$/i.test(sql) ? 'BEGIN IMMEDIATE' : sql
  if (!/^\(*(SELECT|INSERT|UPDATE|DELETE|BEGIN|COMMIT|ROLLBACK)/i.test(text)) return prepareNew(connection, text)
  const statements = kept.get(connection) ?? new Map<string, Prepared>()
  kept.set(connection, statements)
  const statement = statements.get(text) ?? prepareNew(connection, text)
  statements.delete(text)
  if (statements.size >= STATEMENTS_KEPT) statements.delete(statements.keys().next().value!)
  statements.set(text, statement)
  return statement
}

const prepareNew = (connection: DatabaseSync, sql: string): Prepared => {
  const statement = connection.prepare(sql)
  statement.setReturnArrays(true)
  return { statement, columns: columnsOf(statement) }
}

const columnsOf = (statement: StatementSync): string[] => statement.columns().map(({ name }) => name)

type Query = { sql: string; bindings?: unknown[]; response?: unknown; context?: unknown }

type Settings = { filename: string; readOnly: boolean; isServing: boolean }

/** @param options.isServing its statements change few rows each: none needs a temporary file */
export const connectSqlite = (filename: string, { readOnly = false, isServing = false } = {}): Knex =>
  knexModule.knex({
    client: NodeSqliteClient,
    log: knexLog,
    // Values stay out of messages.
    compileSqlOnError: false,
    connection: { filename, readOnly, isServing } as { filename: string },
    useNullAsDefault: true,
    pool: { min: 1, max: 1, idleTimeoutMillis: FOR_EVER_MS, reapIntervalMillis: FOR_EVER_MS },
  })
