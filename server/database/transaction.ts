import type { Knex } from 'knex'
import { dialectOf } from './dialect.ts'

/** What statements need of knex's pool and dialect, which knex leaves untyped. */
type Client = {
  acquireConnection(): Promise<Connection>
  releaseConnection(connection: Connection): void
  query(connection: Connection, query: { sql: string }): Promise<unknown>
  /** Sends a statement of which `query` has told. */
  _query(connection: Connection, query: { sql: string }): Promise<unknown>
}

/** If `__knex__disposed` is set, the pool closes the connection in place of using it again. */
type Connection = { __knex__disposed?: unknown }

/** A knex whose statements run in one transaction. */
export type Transaction = Knex & {
  /** Resolves when it has committed, and rejects if it has not, or if that is in doubt. */
  executionPromise: Promise<void>
  /** How many of its statements were no SELECT. */
  writes(): number
}

/** Longer than a rollback takes: after that, the connection is not used again. */
const ROLLBACK_MS = 5_000

/**
 * Runs `work` in a transaction, and rejects with the error of `work` or of the database. It is what `knex.transaction`
 * does, which builds a knex and its events for each transaction: as much work as five statements.
 */
export const transact = async <T>(knex: Knex, work: (trx: Transaction) => Promise<T>): Promise<T> => {
  const client: Client = knex.client
  const connection = await client.acquireConnection()
  const { promise: executionPromise, resolve, reject } = Promise.withResolvers<void>()
  // Whoever waits for it hears of it; nobody has to.
  executionPromise.catch(() => {})
  try {
    await client.query(connection, { sql: 'BEGIN;' })
    const { trx, end } = begun(knex, connection, executionPromise)
    let result: T
    try {
      result = await work(trx)
    } catch (error) {
      end()
      await rollBack(knex, connection)
      throw error
    }
    end()
    await client.query(connection, { sql: 'COMMIT;' })
    resolve()
    return result
  } catch (error) {
    reject(error)
    throw error
  } finally {
    client.releaseConnection(connection)
  }
}

const begun = (knex: Knex, connection: Connection, executionPromise: Promise<void>) => {
  let isOver = false
  let writes = 0
  const own = {
    // One that knex begins within it is a savepoint: a second BEGIN would commit this one on MySQL.
    transacting: true,
    async acquireConnection() {
      if (isOver) throw new Error('The transaction is over')
      return connection
    },
    async releaseConnection() {},
    _query(connection: Connection, query: { sql: string }) {
      if (!/^\s*\(*SELECT/i.test(query.sql)) writes += 1
      return (knex.client as Client)._query(connection, query)
    },
  }
  // A knex does everything with its context's client.
  const { context } = knex as unknown as { context: object }
  const members = {
    context: Object.assign(Object.create(context), { client: Object.assign(Object.create(knex.client), own) }),
    executionPromise,
    writes: () => writes,
  }
  const builder = (table: string): Knex.QueryBuilder => trx.queryBuilder().table(table)
  const trx: Transaction = Object.assign(Object.setPrototypeOf(builder, knex), members)
  return {
    trx,
    end: () => {
      isOver = true
    },
  }
}

const rollBack = async (knex: Knex, connection: Connection): Promise<void> => {
  const client: Client = knex.client
  const ended = Promise.withResolvers<void>()
  const dispose = (error: unknown): void => {
    // The transaction may not have ended, so the connection is not used again. An embedded engine has rolled back by
    // itself, as on a full disk, where its file could not be opened again.
    if (!dialectOf(knex).isEmbedded) connection.__knex__disposed = error
    ended.resolve()
  }
  const timer = setTimeout(dispose, ROLLBACK_MS, new Error('The rollback did not end'))
  client.query(connection, { sql: 'ROLLBACK' }).then(() => ended.resolve(), dispose)
  await ended.promise
  clearTimeout(timer)
}
