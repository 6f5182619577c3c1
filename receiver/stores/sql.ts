import { toBytes } from '../../shared/bytes.ts'
import { isFunction, requireClock, requireGiven, requireOptions } from '../given.ts'
import type { Claim, ReplayStore } from '../replay-store.ts'

/** The part of knex's query builder that the store uses. */
export interface KnexQuery {
  where(columns: Record<string, string | number>): KnexQuery
  where(column: string, operator: string, value: string | number): KnexQuery
  where(group: (query: KnexQuery) => void): KnexQuery
  orWhere(column: string, operator: string, value: string | number): KnexQuery
  first(...columns: string[]): PromiseLike<unknown>
  insert(row: Record<string, string | number>): PromiseLike<unknown>
  update(row: Record<string, string | number>): PromiseLike<unknown>
  delete(): PromiseLike<unknown>
}

export type KnexLike = (table: string) => unknown

export interface SqlStoreOptions {
  /** By default `tidings_receipts`. */
  table?: string
  /**
   * The current time in epoch milliseconds; by default the machine's clock. Processes that share the table must keep
   * their clocks in step.
   */
  now?: () => number
}

/**
 * The statement that creates the table, for MySQL, MariaDB, PostgreSQL and SQLite alike. Throws a TypeError for a name
 * that is not an identifier.
 */
export const receiptsTable = (table = 'tidings_receipts'): string => {
  requireTable(table)
  return `CREATE TABLE IF NOT EXISTS ${table} (
    id CHAR(64) NOT NULL PRIMARY KEY,
    owner VARCHAR(36) NOT NULL,
    receipt VARCHAR(200) NOT NULL,
    until_ms BIGINT NOT NULL
  )`
}

/**
 * A replay store in a table of MySQL, MariaDB, PostgreSQL or SQLite, through knex. `receiptsTable()` is the statement
 * that creates the table. Every change is one conditional statement: do not run it in a transaction. Lapsed rows stay
 * until they are taken over; delete them now and then with `DELETE FROM tidings_receipts WHERE until_ms < ?`.
 *
 * @example
 *   await knex.schema.raw(receiptsTable())
 *   const replayStore = sqlReplayStore(knex)
 */
export const sqlReplayStore = (knex: KnexLike, options: SqlStoreOptions = {}): ReplayStore => {
  requireOptions(options, ['table', 'now'])
  const { table = 'tidings_receipts', now = Date.now } = options
  requireGiven(isFunction(knex), 'knex', knex, 'a knex: a function from the name of a table to a query')
  requireTable(table)
  requireClock(now)
  const rows = (): KnexQuery => knex(table) as KnexQuery

  const find = async (id: string): Promise<Row | undefined> =>
    (await rows().where({ id }).first('owner', 'receipt', 'until_ms')) as Row | undefined

  const insert = async (row: Row & { id: string }): Promise<boolean> => {
    try {
      await rows().insert({ ...row })
      return true
    } catch (error) {
      // The row exists already. If the database is unreachable, this query fails too.
      if (await find(row.id)) return false
      throw error
    }
  }

  return {
    async claim(key, seconds): Promise<Claim> {
      const id = await idOf(key)
      const owner = crypto.randomUUID()
      const until_ms = now() + seconds * 1000
      const before = await find(id)
      if (before === undefined) {
        if (await insert({ id, owner, receipt: '', until_ms })) return { status: 'claimed', owner }
        return claimOf(await find(id), now())
      }
      if (Number(before.until_ms) > now()) return claimOf(before, now())
      // The claim has lapsed. Of many callers that take it over, the one whose statement changes the row wins.
      const lapsed = { id, owner: before.owner, until_ms: Number(before.until_ms) }
      const taken = await rows().where(lapsed).update({ owner, receipt: '', until_ms })
      return taken === 1 ? { status: 'claimed', owner } : claimOf(await find(id), now())
    },
    async record(key, owner, receipt, seconds) {
      const id = await idOf(key)
      const until_ms = now() + seconds * 1000
      const isFree = (query: KnexQuery) => void query.where({ owner }).orWhere('until_ms', '<=', now())
      if ((await rows().where({ id, receipt: '' }).where(isFree).update({ receipt, until_ms })) === 1) return true
      return (await find(id)) === undefined && insert({ id, owner, receipt, until_ms })
    },
    async release(key, owner) {
      const id = await idOf(key)
      return (await rows().where({ id, owner, receipt: '' }).where('until_ms', '>', now()).delete()) === 1
    },
  }
}

const requireTable = (table: unknown): void => {
  const isName = typeof table === 'string' && /^[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)?$/i.test(table)
  requireGiven(isName, 'table', table, 'the name of a table: letters, digits and underscores')
}

interface Row {
  owner: string
  receipt: string
  until_ms: number | string
}

/** The SHA-256 of a key in hexadecimal, which is distinct in every collation and of fixed length. */
const idOf = async (key: string): Promise<string> => {
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', toBytes(key)))
  return Array.from(digest, byte => byte.toString(16).padStart(2, '0')).join('')
}

/** The claim that another caller's row describes. A row that is gone was released: the delivery comes again. */
const claimOf = (row: Row | undefined, nowMs: number): Claim => {
  const isHandled = row !== undefined && row.receipt !== '' && Number(row.until_ms) > nowMs
  return isHandled ? { status: 'handled', receipt: row.receipt } : { status: 'in_progress' }
}
