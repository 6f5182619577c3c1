import { randomBytes } from 'node:crypto'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { describe } from 'node:test'
import { fileURLToPath } from 'node:url'
import { connect, type Database } from '../../server/database/connect.ts'
import { oneEngineByDay } from './engines-by-day.ts'
import { isAtFullSize } from './size.ts'
import { createDatabase, dropDatabase, namedServers, onServer, PREFIX, readTemplates, urlOf } from './templates.ts'

export type TestDatabase = {
  /** The engine's name in `engines`. */
  engine: string
  /** The URL for `connect` and `TIDINGS_DATABASE_URL`, so that another process can use the same database. */
  url: string
  database: Database
  /** Closes `database` and removes what it was connected to. */
  drop(): Promise<void>
}

const templates = namedServers.length > 0 || process.env.TIDINGS_TEST_TEMPLATES ? await readTemplates() : undefined

const servers = new Map<string, string>()
for (const [url, { name }] of Object.entries(templates?.servers ?? {}))
  servers.set(servers.has(name) ? `${name} at ${new URL(url).host}` : name, url)

/** For the `skip` of what cannot come about with SQLite: a file, and one transaction at a time. */
export const NOT_ON_SQLITE = 'it cannot come about on SQLite: a database server runs it'

/** The engines of the tests: always SQLite, and each server in TIDINGS_TEST_DATABASE_URLS. */
export const engines: readonly string[] = ['sqlite', ...servers.keys()]

/** Those that the tests of a file, by its path in the repository, run on. */
export const enginesFor = (file: string, isWhole: boolean, all = engines): readonly string[] => {
  const one = isWhole ? undefined : oneEngineByDay[file]
  if (one === undefined) return all
  const wanted = all.filter(engine => (engine === 'sqlite') === (one === 'SQLite'))
  return wanted.length > 0 ? wanted : all
}

/** The engines of the test file that runs: all of them, or by day the one of `engines-by-day.ts`. */
export const enginesHere = (): readonly string[] =>
  enginesFor(path.relative(fileURLToPath(new URL('../..', import.meta.url)), process.argv[1] ?? ''), isAtFullSize)

/** `describe(name, fn)`, once for each engine of this test file. */
export const describeEachEngine = (name: string, fn: (engine: string) => void): void => {
  for (const engine of enginesHere()) describe(`${name} (${engine})`, () => fn(engine))
}

/** An empty database of its own. */
export const freshDatabase = (engine: string): Promise<TestDatabase> =>
  engine === 'sqlite' ? onFile(engine) : onOwn(engine, servers.get(engine)!)

/** A database of its own with the current schema: a copy of the run's template. */
export const migratedDatabase = async (engine: string): Promise<TestDatabase> => {
  const made = await readTemplates()
  if (engine === 'sqlite') return onFile(engine, Buffer.from(made.sqlite, 'base64'))
  const url = servers.get(engine)!
  return onOwn(engine, url, made.servers[url]!.statements)
}

/** Drops the databases that tests of this run have left on the servers. */
export const dropLeftovers = async (): Promise<void> => {
  for (const url of servers.values()) {
    const names = await onServer(
      url,
      `SELECT schema_name AS name FROM information_schema.schemata
       WHERE schema_name LIKE '${PREFIX.replaceAll('_', '\\\\_')}%'`,
    )
    for (const { name } of names) await onServer(url, dropDatabase(name!))
  }
}

const onFile = async (engine: string, template?: Buffer): Promise<TestDatabase> => {
  const folder = await mkdtemp(path.join(tmpdir(), PREFIX))
  const file = path.join(folder, 'tidings.sqlite')
  if (template) await writeFile(file, template, { mode: 0o600 })
  const database = await connect(`sqlite:${file}`)
  const drop = async () => {
    await database.close()
    await rm(folder, { recursive: true, force: true })
  }
  return { engine, url: `sqlite:${file}`, database, drop }
}

const onOwn = async (engine: string, serverUrl: string, statements?: string): Promise<TestDatabase> => {
  const name = PREFIX + randomBytes(6).toString('hex')
  await onServer(serverUrl, [createDatabase(name), ...(statements ? [`USE ${name}`, statements] : [])].join(';\n'))
  const url = urlOf(serverUrl, name)
  const database = await connect(url)
  const drop = async () => {
    await database.close()
    await onServer(serverUrl, dropDatabase(name))
  }
  return { engine, url, database, drop }
}
