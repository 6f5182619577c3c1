import type { Socket } from 'node:net'
import knexModule, { type Knex } from 'knex'
import MySQL2Client from 'knex/lib/dialects/mysql2/index.js'
import { whenArrivedIsRead } from '../arrived.ts'
import { dialects } from './dialect.ts'
import { knexLog } from './knex-log.ts'
import { parseMysqlUrl } from './mysql-url.ts'
import { isPassedOver } from './resuming.ts'

/** What knex and mysql2 leave untyped of a connection. */
type RawConnection = {
  /** Set, knex takes the connection out of its pool when it is given back. */
  __knex__disposed?: unknown
  stream: Socket
  threadId: number
  on(event: 'error', listener: () => void): void
  query(sql: string, done: (error: unknown) => void): void
  execute(sql: string, bindings: unknown[], done: (error: unknown, rows: unknown, fields: unknown) => void): void
}

type Query = { sql: string; bindings: unknown[]; isPrepared?: boolean; response?: unknown }

/** When each connection was last used, by `performance.now()`. */
const usedAt = new WeakMap<RawConnection, number>()

/**
 * knex's own MySQL dialect. A connection whose server could not do its work is not used again: behind one address the
 * next connection may lead to another server, and a primary that was demoted lives on in those that stay.
 */
class OutageAwareClient extends MySQL2Client {
  /** One that the server has ended by now is not used: a process that stood still has not heard of it yet. */
  override async validateConnection(connection: RawConnection) {
    const idleMs = performance.now() - (usedAt.get(connection) ?? 0)
    return idleMs < LONGEST_IDLE_MS && super.validateConnection(connection)
  }

  override async _query(connection: RawConnection, query: Query) {
    usedAt.set(connection, performance.now())
    try {
      return await (query.isPrepared ? execute(connection, query) : super._query(connection, query))
    } catch (error) {
      if (isPassedOver(error)) return { ...query, response: [[], []] }
      if (dialects.mysql.faultOf(error) === 'outage') connection.__knex__disposed = error
      throw error
    }
  }
}

const execute = (connection: RawConnection, query: Query): Promise<Query> =>
  new Promise((resolve, reject) =>
    connection.execute(query.sql, query.bindings, (error, rows, fields) => {
      if (error) return reject(error)
      query.response = [rows, fields]
      resolve(query)
    }),
  )

/**
 * A claim locks the rows it takes and no gaps between them, and a change of a webhook sees all that was queued before
 * its lock.
 */
const ISOLATION = 'SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED'
/**
 * Seconds. Who has gone without a word, or is frozen, in the middle of a transaction gives its locks back after so
 * long: before its leases end (30 s), so that what it held is not late on their account.
 */
const SESSION_S = 15
/** An idle connection is given up before the server does. */
const LONGEST_IDLE_MS = 10_000

/**
 * What statements rely on, whatever a server is set to. Values are written with backslash escapes: under
 * NO_BACKSLASH_ESCAPES one could end its own quotes. A value that does not fit is refused, not cut. Text is sorted by
 * all of it, which is at most 2,048 characters: MariaDB looks at the first 1,024 bytes otherwise.
 */
const SETTINGS =
  "SET SESSION sql_mode = 'STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO," +
  "NO_ENGINE_SUBSTITUTION', SESSION max_sort_length = 8192"

/**
 * @param options.lockWaitS seconds until a lock that is not to be had is an error of its own; before silence is one
 * @param options.settings statements that each connection begins with
 * @param options.onConnect is told what the server calls a connection
 */
export const connectMysql = (
  url: string,
  {
    poolSize,
    silenceMs,
    lockWaitS,
    settings = [],
    onConnect,
  }: {
    poolSize: number
    silenceMs: number
    lockWaitS: number
    settings?: string[]
    onConnect?: (connectionId: number) => void
  },
): Knex =>
  knexModule.knex({
    client: OutageAwareClient,
    log: knexLog,
    // Values stay out of messages.
    compileSqlOnError: false,
    connection: { ...parseMysqlUrl(url), charset: 'utf8mb4', connectTimeout: 5_000, enableKeepAlive: true } as object,
    acquireConnectionTimeout: 10_000,
    pool: {
      min: 0,
      max: poolSize,
      idleTimeoutMillis: LONGEST_IDLE_MS,
      afterCreate: (connection: RawConnection, done: (error: unknown, connection: unknown) => void) => {
        const { stream } = connection
        usedAt.set(connection, performance.now())
        // knex takes its listener away from a connection that it ends, and what goes wrong after that would end the
        // process.
        stream.prependListener('error', () => connection.on('error', () => {}))
        onConnect?.(connection.threadId)
        if (silenceMs > 0) endSilent(stream, silenceMs)
        const timeouts =
          `SET SESSION innodb_lock_wait_timeout = ${lockWaitS}, SESSION wait_timeout = ${SESSION_S}, ` +
          `SESSION net_read_timeout = ${SESSION_S}, SESSION net_write_timeout = ${SESSION_S}`
        queryEach(connection, [timeouts, ISOLATION, SETTINGS, ...settings], error => done(error, connection))
      },
    },
  })

/** Ends a connection that says nothing for so long; not one whose process stood still before it could listen. */
const endSilent = (stream: Socket, silenceMs: number): void => {
  stream.setTimeout(silenceMs, () => {
    const { bytesRead } = stream
    whenArrivedIsRead(() => {
      if (stream.bytesRead > bytesRead) return
      const error = new Error(`The database was silent for ${silenceMs / 1000} s`)
      stream.destroy(Object.assign(error, { code: 'ETIMEDOUT' }))
    })
  })
}

/** Runs statements one after another, until one fails. */
const queryEach = (connection: RawConnection, [first, ...others]: string[], done: (error: unknown) => void): void => {
  connection.query(first!, error => {
    if (error || others.length === 0) done(error)
    else queryEach(connection, others, done)
  })
}
