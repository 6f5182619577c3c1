import { randomBytes, randomUUID } from 'node:crypto'
import { migrations } from '../../../migrations/index.ts'
import { connect, type Database, rows } from '../../../server/database/connect.ts'
import { migrate } from '../../../server/database/migrate.ts'
import { type DatabaseProxy, startProxy } from '../proxy.ts'
import { type Ended, startTidings } from '../stage/processes.ts'
import type { Stage } from '../stage/stage.ts'
import { type Case, SHARED } from './case.ts'

// The schema, changed by processes that die of it.

/** The last migration of the release before this one: from then on there are rows to be taken along. */
const RELEASED = '0005_named_organisations'
const CHANGING = /^\s*(create|alter|drop|insert|update|delete)/i
const TIMES = /'\d{4}-\d\d-\d\d[^']*'|\b\d{5,}\b/g

/** Of `TIMES`: a process that is given its statements by way of a proxy is killed at the first one that is new. */
type Kill = 'before the database has it' | 'while the database does it'

const migrateKilled: Case = {
  name: 'migrate-killed',
  says: 'A migration killed at any of its statements is completed by the next run, to the same schema and rows',
  engines: SHARED,
  async run(stage) {
    const [clean, killed] = [await emptyDatabase(stage), await emptyDatabase(stage)]
    const fixture = rowsBefore()
    await migrate(clean, { migrations: untilReleased() })
    await fill(clean, fixture)
    await migrate(clean)

    const proxy = await startProxy(killed.url)
    stage.after(proxy.close)
    const settings = {
      TIDINGS_DATABASE_URL: proxy.url,
      TIDINGS_MASTER_KEY: randomBytes(32).toString('base64'),
    }
    const seen: Record<Kill, Set<string>> = {
      'before the database has it': new Set(),
      'while the database does it': new Set(),
    }
    let isFilled = false
    let kills = 0
    let ended: Ended
    do {
      const kill: Kill = isFilled && kills % 2 === 0 ? 'while the database does it' : 'before the database has it'
      ended = await migrateUntilKilled(proxy, settings, kill, seen[kill])
      if (ended.signal) kills += 1
      if (!isFilled && (await done(killed)).includes(RELEASED)) {
        await fill(killed, fixture)
        isFilled = true
      }
    } while (ended.signal)
    stage.say(`killed ${kills} times`)
    stage.expect('the last one ended well', ended.code === 0, `exit code ${ended.code}`)
    const statements = seen['before the database has it'].size
    stage.expect('each statement was died at', statements > 60, `${statements} statements, ${kills} kills`)
    stage.expect('rows were there before', isFilled, isFilled ? `since ${RELEASED}` : 'none')
    const differing = differences(await contentsOf(clean), await contentsOf(killed))
    stage.expect('schema and rows are those of a run that nobody killed', differing.length === 0, say(differing))
  },
}

const say = (lines: string[]): string => (lines.length === 0 ? 'nothing differs' : lines.slice(0, 5).join('; '))

/**
 * Runs `tidings server migrate`, and kills it at the first statement that is not in `seen`; it is in it from then on.
 *
 * @returns how it ended, by itself if there was none
 */
const migrateUntilKilled = async (
  proxy: DatabaseProxy,
  settings: Record<string, string>,
  kill: Kill,
  seen: Set<string>,
): Promise<Ended> => {
  let isMet = false
  const isNew = (text: string): boolean => {
    const statement = text.replaceAll(TIMES, '?')
    if (isMet || !CHANGING.test(statement) || seen.has(statement)) return false
    seen.add(statement)
    isMet = true
    return true
  }
  const process = startTidings(['server', 'migrate'], settings)
  if (kill === 'before the database has it') {
    const hold = proxy.hold(isNew)
    await Promise.race([hold.caught, process.ended])
    if (isMet) process.signal('SIGKILL')
    const ended = await process.ended
    // It is not handed on to the database with its process gone.
    proxy.cut()
    hold.end()
    return ended
  }
  const unwatch = proxy.watch(text => {
    if (isNew(text)) process.signal('SIGKILL')
  })
  const ended = await process.ended
  unwatch()
  return ended
}

const untilReleased = () => {
  const names = Object.keys(migrations)
  return Object.fromEntries(names.slice(0, names.indexOf(RELEASED) + 1).map(name => [name, migrations[name]!]))
}

const done = async ({ knex }: Database): Promise<string[]> =>
  (await rows<{ name: string }>(knex, 'SELECT name FROM knex_migrations').catch(() => [])).map(({ name }) => name)

/** Beside the stage's own database, which has the schema. */
const emptyDatabase = async (stage: Stage): Promise<Database & { url: string }> => {
  const name = `tidings_case_${randomBytes(4).toString('hex')}`
  await stage.sql.run(`CREATE DATABASE ${name} CHARACTER SET utf8mb4`)
  stage.after(() => stage.sql.run(`DROP DATABASE ${name}`))
  const url = new URL(stage.databaseUrl)
  url.pathname = name
  const database = await connect(url.href)
  stage.after(database.close)
  return { ...database, url: url.href }
}

const PROJECTS = 500

/** What a database of the release before holds, by table. */
const rowsBefore = (): [table: string, rows: object[]][] => {
  const times = { created_at: 1_700_000_000_000, updated_at: 1_700_000_000_000 }
  const [organisation, token, webhook, event] = [randomUUID(), randomUUID(), randomUUID(), randomUUID()]
  const projects = Array.from({ length: PROJECTS }, () => randomUUID())
  const deliveries = projects.map(() => randomUUID())
  return [
    ['organisations', [{ id: organisation, name: 'O', ...times }]],
    ['projects', projects.map(id => ({ id, organisation_id: organisation, name: 'P', ...times }))],
    [
      'project_reports',
      projects.map(id => ({
        id: randomUUID(),
        project_id: id,
        quarter: '2025-1',
        due_date: '2025-04-30',
        status: 'missing',
        ...times,
      })),
    ],
    [
      'access_tokens',
      [{ id: token, name: 'T', api_key: 'k', secret_sealed: 'v1.abcdefgh.x', expires_at: 1, ...times }],
    ],
    [
      'signing_keys',
      [
        {
          kid: 'k',
          generation: 1,
          public_jwk: '{}',
          private_key_sealed: 'v1.hgfedcba.x',
          created_at: 1,
          active_from: 1,
        },
      ],
    ],
    ['webhooks', [{ id: webhook, access_token_id: token, url: 'https://example.com', status: 'active', ...times }]],
    ['webhook_events', [{ webhook_id: webhook, event_type: 'token_expired' }]],
    ['webhook_projects', projects.map(id => ({ webhook_id: webhook, project_id: id, organisation_id: organisation }))],
    ['events', [{ id: event, type: 'token_expired', payload: '{}', created_at: 1 }]],
    [
      'deliveries',
      deliveries.map(id => ({
        id,
        event_id: event,
        webhook_id: webhook,
        event_type: 'token_expired',
        status: 'pending',
        created_at: 1,
      })),
    ],
    [
      'delivery_queue',
      deliveries.map(id => ({ delivery_id: id, event_id: event, webhook_id: webhook, due_at: 1, epoch: 0 })),
    ],
  ]
}

const fill = async ({ knex }: Database, fixture: [table: string, rows: object[]][]): Promise<void> => {
  for (const [table, rows] of fixture) await knex.batchInsert(table, rows, 100)
}

/** Columns, indexes, foreign keys and rows, a line each. */
const contentsOf = async ({ knex }: Database): Promise<string[]> => {
  const schema = await rows<{ words: string }>(
    knex,
    `SELECT CONCAT_WS(' ', table_name, column_name, column_type, is_nullable, column_default, collation_name) AS words
     FROM information_schema.columns WHERE table_schema = DATABASE()
     UNION ALL
     SELECT CONCAT_WS(' ', table_name, 'index', index_name, non_unique, GROUP_CONCAT(column_name ORDER BY seq_in_index))
     FROM information_schema.statistics WHERE table_schema = DATABASE() GROUP BY table_name, index_name, non_unique
     UNION ALL
     SELECT CONCAT_WS(' ', table_name, 'foreign key', constraint_name, column_name, referenced_table_name)
     FROM information_schema.key_column_usage
     WHERE table_schema = DATABASE() AND referenced_table_name IS NOT NULL`,
  )
  const lines = schema.map(({ words }) => words)
  const tables = await rows<{ name: string }>(
    knex,
    'SELECT table_name AS name FROM information_schema.tables WHERE table_schema = DATABASE()',
  )
  for (const { name } of tables) {
    for (const row of await rows<object>(knex, `SELECT * FROM ${name}`))
      lines.push(`${name}: ${JSON.stringify(bare(row))}`)
  }
  return lines.toSorted()
}

/** Without when and in which run a migration was made. */
const bare = (row: object): object =>
  'migration_time' in row ? { ...row, id: 0, batch: 0, migration_time: 0, migrated_at: 0 } : row

const differences = (expected: string[], found: string[]): string[] => {
  const [ours, theirs] = [new Set(expected), new Set(found)]
  return [
    ...expected.filter(line => !theirs.has(line)).map(line => `lacks ${line}`),
    ...found.filter(line => !ours.has(line)).map(line => `has ${line}`),
  ]
}

export const upgradeCases: readonly Case[] = [migrateKilled]
