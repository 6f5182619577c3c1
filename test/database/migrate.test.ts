import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { describe, it } from 'node:test'
import { type Migration, migrations } from '../../migrations/index.ts'
import { connect, type Database, rows, run } from '../../server/database/connect.ts'
import {
  forceUnlock,
  migrate,
  pendingMigrations,
  rollback,
  schemaFault,
  schemaState,
} from '../../server/database/migrate.ts'
import { startTidings, temporaryFolder, tidings } from '../cli/tidings.ts'
import { describeEachEngine, engines, freshDatabase, type TestDatabase } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { atFullSize } from '../support/size.ts'

const withFresh = async (engine: string, work: (fresh: TestDatabase) => Promise<void>): Promise<void> => {
  const fresh = await freshDatabase(engine)
  try {
    await work(fresh)
  } finally {
    await fresh.drop()
  }
}

/** The schema in words: every column and index of every table of ours, and what makes it one of its kind. */
const schemaOf = async (database: Database): Promise<string[]> => {
  const { knex, dialect } = database
  const found =
    dialect.engine === 'sqlite'
      ? await rows<{ words: string }>(
          knex,
          "SELECT sql AS words FROM sqlite_master WHERE name NOT LIKE '%knex%' AND name NOT LIKE 'sqlite%'",
        )
      : await rows<{ words: string }>(
          knex,
          `SELECT CONCAT_WS(' ', table_name, column_name, column_type, is_nullable, column_key, collation_name) AS words
           FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name NOT LIKE '%knex%'`,
        )
  const parts = [...(await partsOf(database)).keys()].filter(
    part => !part.startsWith('knex') && !part.startsWith('sqlite'),
  )
  return [...found.map(({ words }) => words), ...parts].sort()
}

describeEachEngine('migrations', engine => {
  it('go forward, back to nothing, and forward to the same again', () =>
    withFresh(engine, async ({ database }) => {
      const pending = await pendingMigrations(database)
      assert.ok(pending.length > 0)
      assert.deepEqual(await migrate(database), pending)
      assert.deepEqual(await pendingMigrations(database), [])
      const schema = await schemaOf(database)
      assert.ok(schema.some(words => words.includes('delivery_queue')))

      assert.deepEqual([...(await rollback(database))].sort(), pending)
      assert.deepEqual(await schemaOf(database), [])
      assert.deepEqual(await pendingMigrations(database), pending)

      await migrate(database)
      assert.deepEqual(await schemaOf(database), schema)
      assert.deepEqual(await migrate(database), [], 'nothing is left to do')
    }))

  it('run once when two processes migrate at the same time', () =>
    withFresh(engine, async ({ database, url }) => {
      const second = await connect(url)
      try {
        const pending = await pendingMigrations(database)
        const ran = await Promise.all([migrate(database), migrate(second)])
        assert.deepEqual(ran.flat(), pending)
        assert.deepEqual(await pendingMigrations(second), [])
      } finally {
        await second.close()
      }
    }))

  it('wait for another that migrates for as long as it lives, and say so', () =>
    withFresh(engine, async ({ database, url }) => {
      await madeBefore(database)
      const other = await connect(url)
      try {
        const holder = await other.knex.transaction()
        await run(holder, 'UPDATE knex_migrations_lock SET is_locked = is_locked + 0')
        const waiting = Promise.withResolvers<void>()
        const migrating = migrate(database, { onWait: waiting.resolve })
        // An engine of one writer waits for the other's transaction by itself.
        if (engine !== 'sqlite') await waiting.promise
        // What a process holds that is killed, its server rolls back.
        await holder.rollback()
        assert.ok((await migrating).length > 0)
      } finally {
        await other.close()
      }
    }))

  it('wait for the mark of an earlier release, and go on when it is taken away', () =>
    withFresh(engine, async ({ database, url }) => {
      await madeBefore(database)
      const other = await connect(url)
      try {
        await other.knex('knex_migrations_lock').update({ is_locked: 1 })
        const waiting = Promise.withResolvers<void>()
        const migrating = migrate(database, { onWait: waiting.resolve })
        await waiting.promise
        await forceUnlock(other)
        assert.ok((await migrating).length > 0)
      } finally {
        await other.close()
      }
    }))

  it('go on from whichever statement they were killed at, forward and back', () =>
    withFresh(engine, async ({ database }) => {
      await migrate(database)
      const schema = await schemaOf(database)
      await killedAtEach(database, () => rollback(database))
      assert.deepEqual(await schemaOf(database), [])
      await killedAtEach(database, () => migrate(database))
      assert.deepEqual(await schemaOf(database), schema)
    }))

  it('take nothing away that the release before reads or writes, unless they say what has to be known', () =>
    withFresh(engine, async ({ database }) => {
      const names = Object.keys(migrations)
      const until = names.indexOf(RELEASED) + 1
      await migrate(database, { migrations: only(names.slice(0, until)) })
      const before = await partsOf(database)
      const added = names.slice(until).filter(name => !migrations[name]!.needs)
      await migrate(database, { migrations: only([...names.slice(0, until), ...added]) })
      const after = await partsOf(database)
      const isNeeded = (part: string) => !/\bindex\b/.test(part) || NAMED_INDEXES.some(name => part.includes(name))
      const missing = [...before.keys()].filter(part => isNeeded(part) && !after.has(part))
      assert.deepEqual(missing, [], 'is gone, or is another')
      const tables = new Set([...before.keys()].map(part => part.split(' ')[0]))
      const demanded = [...after].filter(
        ([part, isDemanded]) => isDemanded && !before.has(part) && tables.has(part.split(' ')[0]),
      )
      assert.deepEqual(demanded, [], 'must be given by who does not know it')
    }))

  it('are not undone or added to by a version that does not know all that there are', () =>
    withFresh(engine, async ({ database }) => {
      const nothing = async () => {}
      const later = { ...migrations, '9998_adds': { up: nothing, down: nothing } }
      await migrate(database, { migrations: later })
      assert.deepEqual(await schemaState(database), { pending: [], tooNew: [] }, 'it may run beside what only adds')
      await assert.rejects(rollback(database), { code: 'NEWER_SCHEMA', message: /9998_adds/ })

      const contracting = { ...later, '9999_takes': { up: nothing, down: nothing, needs: '9998_adds' } }
      await migrate(database, { migrations: contracting })
      const { tooNew } = await schemaState(database)
      assert.deepEqual(
        tooNew.map(({ name }) => name),
        ['9999_takes'],
      )
      assert.match((await schemaFault(database)) ?? '', /it has 9999_takes, .* know 9998_adds; this one knows 00/)
    }))
})

/** The last migration of the release before this one. */
const RELEASED = '0005_named_organisations'

/** The indexes that it names in statements, or that are unique. Another may be replaced by a better one. */
const NAMED_INDEXES = [
  ...['attempts', 'deliveries_by_event', 'deliveries_by_webhook', 'delivery_queue_by_due_time'],
  ...['delivery_queue_by_webhook', 'events_by_time', 'webhooks_by_sweeping', 'access_tokens_by_api_key'],
  ...['project_reports_by_project_and_quarter', 'signing_keys_by_generation', 'PRIMARY', 'autoindex'],
]

const only = (names: string[]): Record<string, Migration> =>
  Object.fromEntries(names.map(name => [name, migrations[name]!]))

/** The tables in which is kept what was migrated, and nothing else. */
const madeBefore = async (database: Database): Promise<void> => {
  await rollback(database)
}

class Killed extends Error {}

/** Runs `work` again and again, each time ended before a change that it was not ended at, until it comes to its end. */
const killedAtEach = async (database: Database, work: () => Promise<unknown>): Promise<void> => {
  const seen = new Set<string>()
  let isAlive = true
  const end = ({ sql, bindings }: { sql: string; bindings?: unknown[] }): void => {
    if (!/^(create|alter|drop|insert|update|delete)/i.test(sql)) return
    const names = (bindings ?? []).filter(value => typeof value === 'string')
    const statement = `${sql} ${names.join()}`
    if (isAlive && seen.has(statement)) return
    if (isAlive) seen.add(statement)
    if (isAlive && seen.size % atFullSize(1, 5) !== 0) return
    isAlive = false
    throw new Killed()
  }
  database.knex.on('query', end)
  do {
    isAlive = true
    await work().catch(error => {
      if (!(error instanceof Killed)) throw error
    })
  } while (!isAlive)
  database.knex.off('query', end)
  assert.ok(seen.size > 40, `ended at ${seen.size} statements`)
}

/** Each column with its type and each index with its columns, and whether an INSERT has to give it. */
const partsOf = async ({ knex, dialect }: Database): Promise<Map<string, boolean>> => {
  type Part = { part: string; demanded: number }
  const statement =
    dialect.engine === 'sqlite'
      ? `SELECT m.name || ' ' || c.name || ' ' || c.type AS part, c."notnull" AND c.dflt_value IS NULL AS demanded
         FROM sqlite_master m JOIN pragma_table_info(m.name) c WHERE m.type = 'table'
         UNION ALL
         SELECT m.name || ' index ' || i.name || ' ' || (SELECT GROUP_CONCAT(name) FROM pragma_index_info(i.name)), 0
         FROM sqlite_master m JOIN pragma_index_list(m.name) i WHERE m.type = 'table'`
      : `SELECT CONCAT_WS(' ', table_name, column_name, column_type) AS part,
           is_nullable = 'NO' AND column_default IS NULL AND extra NOT LIKE '%auto_increment%' AS demanded
         FROM information_schema.columns WHERE table_schema = DATABASE()
         UNION ALL
         SELECT CONCAT_WS(' ', table_name, 'index', index_name, GROUP_CONCAT(column_name ORDER BY seq_in_index)), 0
         FROM information_schema.statistics WHERE table_schema = DATABASE() GROUP BY table_name, index_name`
  const found = await rows<Part>(knex, statement)
  return new Map(found.map(({ part, demanded }) => [part, Number(demanded) === 1]))
}

for (const engine of engines.filter(name => name !== 'sqlite')) {
  describe(`migrations of a process that is killed (${engine})`, () => {
    it('are gone on with by the next one, which nothing keeps waiting', () =>
      withFresh(engine, async ({ database, url }) => {
        const home = temporaryFolder()
        const env = { TIDINGS_DATABASE_URL: url, TIDINGS_MASTER_KEY: Buffer.alloc(32).toString('base64') }
        for (const table of ['users', 'webhooks', 'deliveries']) {
          const child = startTidings(['server', 'migrate'], { home, env })
          const ended = new Promise(resolve => child.once('close', resolve))
          const isThere = () => database.knex.schema.hasTable(table)
          await eventually(`the table ${table}`, isThere, Boolean, { everyMs: 1, timeoutMs: 60_000 })
          child.kill('SIGKILL')
          await ended
        }
        const { code, stderr } = await tidings(['server', 'migrate'], { home, env })
        assert.equal(code, 0, stderr)
        assert.deepEqual(await pendingMigrations(database), [])
      }))

    it('a user that may not do what they need is told which grants it lacks', () =>
      withFresh(engine, async ({ database, url }) => {
        const limited = new URL(url)
        limited.username = `u${randomBytes(6).toString('hex')}`
        limited.password = 'grants'
        await database.knex.raw('CREATE USER ?@? IDENTIFIED BY ?', [limited.username, '%', 'grants'])
        await database.knex.raw(`GRANT SELECT, INSERT, UPDATE, DELETE ON ${limited.pathname.slice(1)}.* TO ?@?`, [
          limited.username,
          '%',
        ])
        try {
          const home = temporaryFolder()
          const env = { TIDINGS_DATABASE_URL: limited.href, TIDINGS_MASTER_KEY: Buffer.alloc(32).toString('base64') }
          const { code, stderr } = await tidings(['server', 'migrate', '--output', 'json'], { home, env })
          assert.equal(code, 1)
          const { error } = JSON.parse(stderr)
          assert.equal(error.code, 'GRANT_MISSING')
          assert.match(error.message, /CREATE command denied/)
          assert.match(error.hint, /GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX, REFERENCES ON/)
        } finally {
          await database.knex.raw('DROP USER ?@?', [limited.username, '%'])
        }
      }))
  })
}
