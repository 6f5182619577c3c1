import assert from 'node:assert/strict'
import { it } from 'node:test'
import { connect, type Database, rows } from '../../server/database/connect.ts'
import { forceUnlock, migrate, pendingMigrations, rollback } from '../../server/database/migrate.ts'
import { describeEachEngine, freshDatabase, type TestDatabase } from '../support/databases.ts'

const withFresh = async (engine: string, work: (fresh: TestDatabase) => Promise<void>): Promise<void> => {
  const fresh = await freshDatabase(engine)
  try {
    await work(fresh)
  } finally {
    await fresh.drop()
  }
}

/** The schema in words: every column of every table of ours, with its type. */
const schemaOf = async ({ knex, dialect }: Database): Promise<string[]> => {
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
  return found.map(({ words }) => words).sort()
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

  it('wait for a lock that is held, and go on when one that was left behind is released', () =>
    withFresh(engine, async ({ database }) => {
      // Knex's own tables, and nothing else.
      await rollback(database)
      await database.knex('knex_migrations_lock').update({ is_locked: 1 })
      const triedTwice = new Promise<void>(resolve => {
        let tries = 0
        database.knex.on('query', ({ sql }) => {
          if (/^update .*knex_migrations_lock/.test(sql) && ++tries === 2) resolve()
        })
      })
      const migrating = migrate(database)
      await triedTwice
      assert.ok((await pendingMigrations(database)).length > 0)
      await forceUnlock(database)
      assert.ok((await migrating).length > 0)
    }))
})
