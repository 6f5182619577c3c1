import type { Socket } from 'node:net'
import knexModule, { type Knex } from 'knex'
import MySQL2Client from 'knex/lib/dialects/mysql2/index.js'
import { whenArrivedIsRead } from '../arrived.ts'
import { dialects } from './dialect.ts'
import { noteFull } from './full-disk.ts'
import { knexLog } from './knex-log.ts'
import { parseMysqlUrl } from './mysql-url.ts'
import { isPassedOver } from './resuming.ts'

/** The members of a connection that knex and mysql2 leave untyped. */
type RawConnection = {
  /** If set, knex removes the connection from its pool on release. */
  __knex__disposed?: unknown
  stream: Socket
  threadId: number
  on(event: 'error', listener: () => void): void
  query(sql: string, done: (error: unknown) => void): void
  execute(sql: string, bindings: unknown[], done: (error: unknown, rows: unknown, fields: unknown) => void): void
}

type Query = { sql: string; bindings: unknown[]; isPrepared?: boolean; response?: unknown[] }

/** When each connection was last used, by `performance.now()`. */
const usedAt = new WeakMap<RawConnection, number>()

/**
 * knex's MySQL dialect. A connection whose server could not work is not used again: the next connection to the same
 * address may reach another server, while old ones still reach a demoted primary.
 */
class OutageAwareClient extends MySQL2Client {
  /**
   * A connection that the server has closed by now is not used; a process that stood still does not know of that yet.
   */
  override async validateConnection(connection: RawConnection) {
    const idleMs = performance.now() - (usedAt.get(connection) ?? 0)
    return idleMs < LONGEST_IDLE_MS && super.validateConnection(connection)
  }

  override async _query(connection: RawConnection, query: Query) {
    usedAt.set(connection, performance.now())
    try {
      const { multipleStatements } = this.config.connection as { multipleStatements?: boolean }
      const send: Send = async one =>
        one.isPrepared ? execute(connection, one) : (super._query(connection, one) as Promise<Query>)
      return await (multipleStatements ? inOnePacket(connection, query, send) : send(query))
    } catch (error) {
      if (isPassedOver(error)) return { ...query, response: [[], []] }
      noteFull(error)
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

type Send = (packet: Query) => Promise<Query>
type Asked = { query: Query; resolve(answered: Query): void; reject(error: unknown): void }

/** What was asked of a connection in this turn of the event loop. */
const packets = new WeakMap<RawConnection, Asked[]>()
/** Connections whose next packet begins a transaction. */
const beginning = new WeakSet<RawConnection>()

/** As knex writes them. */
const BEGIN = 'BEGIN;'
const ENDS = new Set(['COMMIT;', 'ROLLBACK'])

/**
 * Sends the statements that are asked of a connection in one turn, as by `inOneTrip`, in one packet in their order,
 * and BEGIN with the first of a transaction. If one fails, those after it are not executed, and all are rejected with
 * its error.
 */
const inOnePacket = (connection: RawConnection, query: Query, send: Send): Promise<Query> => {
  const packet = packets.get(connection)
  if (query.sql === BEGIN) beginning.add(connection)
  // BEGIN goes with the first statement. A transaction without one has nothing to commit or roll back.
  const isNothing = query.sql === BEGIN || (!packet && ENDS.has(query.sql) && beginning.delete(connection))
  if (isNothing) return Promise.resolve({ ...query, response: [[], []] })
  const { promise, resolve, reject } = Promise.withResolvers<Query>()
  const asked = { query, resolve, reject }
  if (packet) packet.push(asked)
  else {
    packets.set(connection, [asked])
    // All reactions of promises come before it, and whatever they ask.
    process.nextTick(() => {
      const all = packets.get(connection)!
      packets.delete(connection)
      void sendAll(all, beginning.delete(connection), send)
    })
  }
  return promise
}

const sendAll = async (all: Asked[], begins: boolean, send: Send): Promise<void> => {
  const [first] = all
  try {
    if (all.length === 1 && !begins) return first!.resolve(await send(first!.query))
    const { response } = await send({
      sql: (begins ? `${BEGIN}\n` : '') + all.map(({ query }) => query.sql).join(';\n'),
      bindings: all.flatMap(({ query }) => query.bindings ?? []),
    })
    const [answers, fields] = response as [unknown[], unknown[]]
    for (const [n, { query, resolve }] of all.entries()) {
      const at = begins ? n + 1 : n
      resolve({ ...query, response: [answers[at], fields[at]] })
    }
  } catch (error) {
    for (const { reject } of all) reject(error)
  }
}

/**
 * READ COMMITTED: a claim locks its rows but no gaps, and a change of a webhook sees everything queued before its lock.
 */
const ISOLATION = 'SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED'
/**
 * Seconds until the locks of a client that vanished or froze in a transaction are released: before its leases end (30
 * s), so that the locks make none of its deliveries late.
 */
const SESSION_S = 15
/** An idle connection is closed before the server closes it. */
const LONGEST_IDLE_MS = 10_000
/** How often idle connections are closed: before the server does it after `SESSION_S`. */
const REAP_EACH_MS = 4_000

/**
 * Session settings that statements rely on. Values are escaped with backslashes: under NO_BACKSLASH_ESCAPES a value
 * could end its own quotes. A value that does not fit is refused, not truncated. Text of up to 2,048 characters is
 * sorted in full; by default MariaDB compares only the first 1,024 bytes. MySQL would show sizes that are a day old.
 */
const SETTINGS =
  "SET SESSION sql_mode = 'STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO," +
  "NO_ENGINE_SUBSTITUTION', SESSION max_sort_length = 8192 /*!80000 , SESSION information_schema_stats_expiry = 0 */"

/**
 * @param options.lockWaitS seconds until a lock wait is an error, which must be less than `silenceMs`
 * @param options.isPacking sends the statements that are asked of a connection in one turn in one packet
 * @param options.settings statements that every connection runs first
 * @param options.onConnect called with the server's id of a connection
 */
export const connectMysql = (
  url: string,
  {
    poolSize,
    silenceMs,
    lockWaitS,
    isPacking = false,
    settings = [],
    onConnect,
  }: {
    poolSize: number
    silenceMs: number
    lockWaitS: number
    isPacking?: boolean
    settings?: string[]
    onConnect?: (connectionId: number) => void
  },
): Knex =>
  knexModule.knex({
    client: OutageAwareClient,
    log: knexLog,
    // Messages must not contain values.
    compileSqlOnError: false,
    connection: {
      ...parseMysqlUrl(url),
      ...{ charset: 'utf8mb4', connectTimeout: 5_000, enableKeepAlive: true, multipleStatements: isPacking },
    } as object,
    acquireConnectionTimeout: 10_000,
    pool: {
      min: 0,
      max: poolSize,
      idleTimeoutMillis: LONGEST_IDLE_MS,
      reapIntervalMillis: REAP_EACH_MS,
      afterCreate: (connection: RawConnection, done: (error: unknown, connection: unknown) => void) => {
        const { stream } = connection
        usedAt.set(connection, performance.now())
        // knex removes its listener from a connection that it closes; a later error would end the process.
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

/** Closes a connection that is silent for this long, unless this process stood still and could not listen. */
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

/** Runs statements in order until one fails. */
const queryEach = (connection: RawConnection, [first, ...others]: string[], done: (error: unknown) => void): void => {
  connection.query(first!, error => {
    if (error || others.length === 0) done(error)
    else queryEach(connection, others, done)
  })
}
