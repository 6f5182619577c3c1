import type { Claim, ReplayStore } from '../replay-store.ts'

/**
 * Runs one statement with `?` for its values, and says what came of it: rows of a SELECT, and how many rows a change
 * has changed. `changed` counts rows found, or rows that are now different: either will do.
 */
export type RunSql = (sql: string, values: (string | number)[]) => Promise<{ rows?: unknown[]; changed?: number }>

/** Of knex, what `knexRunner` needs: `knex.raw` answers in the driver's own form. */
export interface KnexLike {
  raw(sql: string, values: (string | number)[]): PromiseLike<unknown>
}

export interface SqlStoreOptions {
  /** `tidings_receipts` unless given. */
  table?: string
  /**
   * The time in epoch milliseconds; the machine's unless given.
   * Processes that share the table keep their clocks in step.
   */
  now?: () => number
}

/** The table, for MySQL, MariaDB, PostgreSQL and SQLite alike. */
export const receiptsTable = (table = 'tidings_receipts'): string =>
  `CREATE TABLE IF NOT EXISTS ${nameOf(table)} (
    id VARCHAR(191) NOT NULL PRIMARY KEY,
    owner VARCHAR(36) NOT NULL,
    receipt VARCHAR(200) NOT NULL,
    until_ms BIGINT NOT NULL
  )`

/**
 * A replay store in a table of MySQL, MariaDB, PostgreSQL or SQLite; `receiptsTable()` is
 * the statement that makes it. Every change is one statement that says by itself whether it
 * came about: it needs no transaction, and is to be given none. What has lapsed is taken
 * over or stays: delete it now and then, `DELETE FROM tidings_receipts WHERE until_ms < ?`.
 */
export const sqlReplayStore = (run: RunSql, options: SqlStoreOptions = {}): ReplayStore => {
  const { now = Date.now } = options
  const table = nameOf(options.table ?? 'tidings_receipts')

  const insert = async (key: string, owner: string, receipt: string, untilMs: number): Promise<boolean> => {
    try {
      const values = [key, owner, receipt, untilMs]
      return (
        (await run(`INSERT INTO ${table} (id, owner, receipt, until_ms) VALUES (?, ?, ?, ?)`, values)).changed !== 0
      )
    } catch (error) {
      // It is there already; a database that is away fails once more below.
      if (await find(key)) return false
      throw error
    }
  }

  const find = async (key: string): Promise<Row | undefined> => {
    const { rows = [] } = await run(`SELECT owner, receipt, until_ms FROM ${table} WHERE id = ?`, [key])
    return rows[0] as Row | undefined
  }

  return {
    async claim(key, seconds): Promise<Claim> {
      const owner = crypto.randomUUID()
      const untilMs = now() + seconds * 1000
      const before = await find(key)
      if (before === undefined) {
        if (await insert(key, owner, '', untilMs)) return { status: 'claimed', owner }
        return claimOf(await find(key), now())
      }
      if (Number(before.until_ms) > now()) return claimOf(before, now())
      const lapsed = [owner, untilMs, key, before.owner, Number(before.until_ms)]
      const taken = await run(
        `UPDATE ${table} SET owner = ?, receipt = '', until_ms = ? WHERE id = ? AND owner = ? AND until_ms = ?`,
        lapsed,
      )
      return taken.changed === 1 ? { status: 'claimed', owner } : claimOf(await find(key), now())
    },
    async record(key, owner, receipt, seconds) {
      const untilMs = now() + seconds * 1000
      const { changed } = await run(
        `UPDATE ${table} SET receipt = ?, until_ms = ? WHERE id = ? AND receipt = '' AND (owner = ? OR until_ms <= ?)`,
        [receipt, untilMs, key, owner, now()],
      )
      if (changed === 1) return true
      return (await find(key)) === undefined && insert(key, owner, receipt, untilMs)
    },
    async release(key, owner) {
      const { changed } = await run(
        `DELETE FROM ${table} WHERE id = ? AND owner = ? AND receipt = '' AND until_ms > ?`,
        [key, owner, now()],
      )
      return changed === 1
    },
  }
}

interface Row {
  owner: string
  receipt: string
  until_ms: number | string
}

/** What a row says that another one has written. One that is gone again was released: the delivery comes again. */
const claimOf = (row: Row | undefined, nowMs: number): Claim => {
  const isHandled = row !== undefined && row.receipt !== '' && Number(row.until_ms) > nowMs
  return isHandled ? { status: 'handled', receipt: row.receipt } : { status: 'in_progress' }
}

/** Runs statements by knex, on any of the databases: each driver has its own form of an answer. */
export const knexRunner =
  (knex: KnexLike): RunSql =>
  async (sql, values) => {
    const answer = (await knex.raw(sql, values)) as Record<string, unknown> & unknown[]
    // mysql2: [rows or result, fields]; pg: { rows, rowCount }; SQLite: rows, or { changes }.
    const result = (Array.isArray(answer) && Array.isArray(answer[1]) ? answer[0] : answer) as Record<string, unknown>
    const head = (Array.isArray(answer) && !Array.isArray(result) ? answer[0] : result) as Record<string, unknown>
    const rows = Array.isArray(result) ? result : ((head?.rows as unknown[]) ?? [])
    const changed = head?.affectedRows ?? head?.rowCount ?? head?.changes
    return { rows, ...(typeof changed === 'number' && { changed }) }
  }

const nameOf = (table: string): string => {
  if (/^[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)?$/i.test(table)) return table
  throw new TypeError(`${JSON.stringify(table)} is no name of a table: letters, digits and underscores.`)
}
