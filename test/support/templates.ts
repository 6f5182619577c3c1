import { execFile } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import type { RowDataPacket } from 'mysql2'
import { createConnection } from 'mysql2/promise'
import { connect, type Database, rows } from '../../server/database/connect.ts'
import { migrate } from '../../server/database/migrate.ts'
import { parseMysqlUrl } from '../../server/database/mysql-url.ts'
import { databaseFile } from '../../shared/database-url.ts'

/**
 * An empty database that has had every migration, once for the whole run: the bytes of a SQLite file, or the statements
 * that make it on a server. Migrating one takes a second on MariaDB, replaying one a tenth of that.
 */
export type Templates = {
  /** In base64. */
  sqlite: string
  /** By the server's URL. */
  servers: Record<string, { name: string; statements: string }>
}

const PROGRAM = fileURLToPath(new URL('../../bin/tidings.js', import.meta.url))

/** Names the databases of this run, so that those of a killed test can be found. */
export const PREFIX = `tidings_test_${process.env.TIDINGS_TEST_RUN ?? 'alone'}_`

/** The servers that TIDINGS_TEST_DATABASE_URLS names. */
export const namedServers = (process.env.TIDINGS_TEST_DATABASE_URLS ?? '')
  .split(',')
  .map(url => url.trim())
  .filter(Boolean)

/** Makes the templates and writes them into a file, for the other processes of the run. */
export const writeTemplates = async (file: string): Promise<Templates> => {
  const templates: Templates = { sqlite: '', servers: {} }
  const making = namedServers.map(async url => {
    const name = await nameOf(url)
    return [url, { name, statements: await migratedOnServer(url) }] as const
  })
  const [sqlite, ...servers] = await Promise.all([migratedFile(), ...making])
  Object.assign(templates, { sqlite, servers: Object.fromEntries(servers) })
  await writeFile(file, JSON.stringify(templates))
  return templates
}

let ofThisProcess: Promise<Templates> | undefined

/** The templates of the run; a test file that runs by itself makes its own. */
export const readTemplates = (): Promise<Templates> => {
  const file = process.env.TIDINGS_TEST_TEMPLATES
  ofThisProcess ??= file ? readFile(file, 'utf8').then(JSON.parse) : alone()
  return ofThisProcess
}

/** Gives an empty database the schema, by the run's template of it if there is one. */
export const giveSchema = async (url: string, serverUrl: string): Promise<void> => {
  const made = process.env.TIDINGS_TEST_TEMPLATES ? await readTemplates() : undefined
  const file = databaseFile(url)
  const statements = made?.servers[serverUrl]?.statements
  if (made && file !== undefined) return writeFile(file, Buffer.from(made.sqlite, 'base64'), { mode: 0o600 })
  if (statements !== undefined) return void (await onServer(url, statements))
  const database = await connect(url)
  try {
    await migrate(database)
  } finally {
    await database.close()
  }
}

const alone = async (): Promise<Templates> => {
  const folder = await mkdtemp(path.join(tmpdir(), PREFIX))
  try {
    return await writeTemplates(path.join(folder, 'templates.json'))
  } finally {
    await rm(folder, { recursive: true })
  }
}

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

/** It ends well, and keeps what V8 has compiled for `server` commands (bin/program.js): tests kill hundreds of them. */
const migrateByProgram = async (url: string): Promise<void> => {
  const env = { ...process.env, TIDINGS_DATABASE_URL: url, TIDINGS_MASTER_KEY: randomBytes(32).toString('base64') }
  await promisify(execFile)(process.execPath, [PROGRAM, 'server', 'migrate'], { env })
}

const migratedFile = async (): Promise<string> => {
  const folder = await mkdtemp(path.join(tmpdir(), PREFIX))
  const file = path.join(folder, 'template.sqlite')
  await migrateByProgram(`sqlite:${file}`)
  const bytes = await readFile(file)
  await rm(folder, { recursive: true })
  return bytes.toString('base64')
}

const migratedOnServer = async (serverUrl: string): Promise<string> => {
  const name = PREFIX + randomBytes(6).toString('hex')
  await onServer(serverUrl, createDatabase(name))
  const url = urlOf(serverUrl, name)
  const database = await connect(url)
  try {
    await migrateByProgram(url)
    return await statementsOf(database)
  } finally {
    await database.close()
    await onServer(serverUrl, dropDatabase(name))
  }
}

/** What makes this database's tables and rows in another one. */
const statementsOf = async ({ knex }: Database): Promise<string> => {
  const tables = await rows<{ name: string }>(
    knex,
    'SELECT table_name AS name FROM information_schema.tables WHERE table_schema = DATABASE()',
  )
  const statements: string[] = []
  for (const { name } of tables) {
    const [shown] = await rows<{ 'Create Table': string }>(knex, `SHOW CREATE TABLE ${name}`)
    const found = await knex(name)
    statements.push(shown!['Create Table'])
    if (found.length > 0) statements.push(knex(name).insert(found).toString())
  }
  return ['SET SESSION foreign_key_checks = 0', ...statements].join(';\n')
}

export const createDatabase = (name: string): string => `CREATE DATABASE ${name} CHARACTER SET utf8mb4`
export const dropDatabase = (name: string): string => `DROP DATABASE IF EXISTS ${name}`

export const urlOf = (serverUrl: string, database: string): string => {
  const url = new URL(serverUrl)
  url.pathname = database
  return url.href
}

/** Runs statements on a server, several in one packet. */
export const onServer = async (url: string, statements: string): Promise<Record<string, string>[]> => {
  const connection = await createConnection({ ...(parseMysqlUrl(url) as object), multipleStatements: true })
  try {
    const [found] = await connection.query<RowDataPacket[]>(statements)
    return found
  } finally {
    await connection.end()
  }
}
