import { randomBytes } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { describe } from 'node:test'
import type { Knex } from 'knex'
import { connect, type Database, rows } from '../../server/database/connect.ts'
import { migrate } from '../../server/database/migrate.ts'

export type TestDatabase = {
  /** The engine's name in `engines`. */
  engine: string
  /** The URL for `connect` and `TIDINGS_DATABASE_URL`, so that another process can use the same database. */
  url: string
  database: Database
  /** Closes `database` and removes what it was connected to. */
  drop(): Promise<void>
}

const PREFIX = `tidings_test_${process.env.TIDINGS_TEST_RUN ?? 'alone'}_`

/**
 * The server's version as in `mariadb 10.11.19`, `mysql 9.7.0` or `tidb 8.5.0`.
 * Throws an Error naming the server if it does not answer.
 */
const nameOf = async (url: string): Promise<string> => {
  const host = URL.parse(url)?.host
  if (!host)
    throw new Error('TIDINGS_TEST_DATABASE_URLS holds what is not an address such as mysql://user:password@host:3306.')
  try {
    const database = await connect(url, { poolSize: 1 })
    const [found] = await rows<{ version: string }>(database.knex, `SELECT ${database.dialect.version} AS version`)
    await database.close()
    return `${database.dialect.name.toLowerCase()} ${found!.version.match(/^[\d.]*\d/)?.[0]}`
  } catch (error) {
    const reason = error instanceof AggregateError ? error.errors.join(', ') : (error as Error).message
    throw new Error(`The database server at ${host}, named in TIDINGS_TEST_DATABASE_URLS, was not reached: ${reason}`)
  }
}

const servers = new Map<string, string>()
for (const url of (process.env.TIDINGS_TEST_DATABASE_URLS ?? '').split(',').map(part => part.trim())) {
  if (!url) continue
  const name = await nameOf(url)
  servers.set(servers.has(name) ? `${name} at ${new URL(url).host}` : name, url)
}

/** The engines of the tests: always SQLite, and each server in TIDINGS_TEST_DATABASE_URLS. */
export const engines: readonly string[] = ['sqlite', ...servers.keys()]

/** `describe(name, fn)`, once for each engine. */
export const describeEachEngine = (name: string, fn: (engine: string) => void): void => {
  for (const engine of engines) describe(`${name} (${engine})`, () => fn(engine))
}

/** An empty database of its own. */
export const freshDatabase = (engine: string): Promise<TestDatabase> =>
  engine === 'sqlite' ? freshFile(engine) : freshOnServer(engine, servers.get(engine)!)

/** A database of its own with the current schema. */
export const migratedDatabase = async (engine: string): Promise<TestDatabase> => {
  const fresh = await freshDatabase(engine)
  const { database } = fresh
  if (database.dialect.name !== 'TiDB') await migrate(database)
  else if (schema) await database.transaction(trx => copySchema(trx, schema!))
  else {
    await migrate(database)
    schema = await readSchema(database)
  }
  return fresh
}

type Schema = { table: string; create: string; rows: object[] }[]

/** What migrations have made on TiDB, whose every index costs rounds of their own: the next database is a copy. */
let schema: Schema | undefined

const readSchema = async ({ knex }: Database): Promise<Schema> => {
  const found: Schema = []
  const tables = await rows<{ name: string }>(
    knex,
    'SELECT table_name AS name FROM information_schema.tables WHERE table_schema = DATABASE()',
  )
  for (const { name } of tables) {
    const [shown] = await rows<{ 'Create Table': string }>(knex, `SHOW CREATE TABLE ${name}`)
    found.push({ table: name, create: shown!['Create Table'], rows: await knex(name) })
  }
  return found
}

const copySchema = async (sql: Knex, tables: Schema): Promise<void> => {
  await sql.raw('SET SESSION foreign_key_checks = 0')
  for (const { create } of tables) await sql.raw(create)
  await sql.raw('SET SESSION foreign_key_checks = 1')
  for (const { table, rows } of tables) if (rows.length > 0) await sql(table).insert(rows)
}

/** Drops the databases that tests of this run have left on the servers. */
export const dropLeftovers = async (): Promise<void> => {
  for (const url of servers.values()) {
    await onServer(url, async server => {
      const names = await rows<{ name: string }>(
        server.knex,
        'SELECT schema_name AS name FROM information_schema.schemata WHERE schema_name LIKE ?',
        [`${PREFIX.replaceAll('_', '\\_')}%`],
      )
      for (const { name } of names) await server.knex.raw('DROP DATABASE IF EXISTS ??', [name])
    })
  }
}

const freshFile = async (engine: string): Promise<TestDatabase> => {
  const folder = await mkdtemp(path.join(tmpdir(), PREFIX))
  const url = `sqlite:${path.join(folder, 'tidings.sqlite')}`
  const database = await connect(url)
  const drop = async () => {
    await database.close()
    await rm(folder, { recursive: true, force: true })
  }
  return { engine, url, database, drop }
}

const freshOnServer = async (engine: string, serverUrl: string): Promise<TestDatabase> => {
  const name = PREFIX + randomBytes(6).toString('hex')
  await onServer(serverUrl, server => server.knex.raw('CREATE DATABASE ?? CHARACTER SET utf8mb4', [name]))
  const url = new URL(serverUrl)
  url.pathname = name
  const database = await connect(url.href)
  const drop = async () => {
    await database.close()
    await onServer(serverUrl, server => server.knex.raw('DROP DATABASE IF EXISTS ??', [name]))
  }
  return { engine, url: url.href, database, drop }
}

const onServer = async (url: string, work: (server: Database) => Promise<void>): Promise<void> => {
  const server = await connect(url, { poolSize: 1 })
  try {
    await work(server)
  } finally {
    await server.close()
  }
}
