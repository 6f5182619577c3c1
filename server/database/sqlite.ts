import { DatabaseSync, type SQLInputValue, type StatementSync } from 'node:sqlite'
import knexModule, { type Knex } from 'knex'
import BetterSqlite3Client from 'knex/lib/dialects/better-sqlite3/index.js'

const STATEMENTS_KEPT = 500

/** knex's own SQLite dialect on Node's built-in driver. One connection: SQLite is the embedded engine of one process. */
class NodeSqliteClient extends BetterSqlite3Client {
  override _driver() {
    return DatabaseSync
  }

  override async acquireRawConnection() {
    const connection = new DatabaseSync(this.connectionSettings.filename, { timeout: 10_000 })
    connection.exec('PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;')
    return connection
  }

  override async destroyRawConnection(connection: DatabaseSync) {
    connection.close()
  }

  override async _query(connection: DatabaseSync, query: Query) {
    const statement = prepare(connection, query.sql)
    const bindings = (this._formatBindings(query.bindings) as (SQLInputValue | undefined)[]).map(value => value ?? null)
    if (statement.columns().length > 0) {
      query.response = statement.all(...bindings)
    } else {
      const { changes } = statement.run(...bindings)
      query.response = { affectedRows: Number(changes) }
      query.context = { lastID: 0, changes: Number(changes) }
    }
    return query
  }
}

// By connection and not in the client: knex derives a client from another for each transaction.
const prepared = new WeakMap<DatabaseSync, Map<string, StatementSync>>()

const prepare = (connection: DatabaseSync, sql: string): StatementSync => {
  // A transaction that reads first and writes later would fail at the write when another process wrote in between:
  // each takes the write lock from the start.
  const text = /^BEGIN;?$/i.test(sql) ? 'BEGIN IMMEDIATE' : sql
  if (!/^\(*(SELECT|INSERT|UPDATE|DELETE)/i.test(text)) return connection.prepare(text)
  const statements = prepared.get(connection) ?? new Map<string, StatementSync>()
  prepared.set(connection, statements)
  const statement = statements.get(text) ?? connection.prepare(text)
  statements.delete(text)
  if (statements.size >= STATEMENTS_KEPT) statements.delete(statements.keys().next().value!)
  statements.set(text, statement)
  return statement
}

type Query = { sql: string; bindings?: unknown[]; response?: unknown; context?: unknown }

export const connectSqlite = (filename: string): Knex =>
  knexModule.knex({
    client: NodeSqliteClient,
    connection: { filename },
    useNullAsDefault: true,
    pool: { min: 1, max: 1, idleTimeoutMillis: 2 ** 31 - 1 },
  })
