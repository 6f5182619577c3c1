import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import { after, before, it } from 'node:test'
import { v7 as uuid } from 'uuid'
import { diagnoseInstallation } from '../../cli/doctor/server-doctor.ts'
import type { Config } from '../../server/config.ts'
import { migrate } from '../../server/database/migrate.ts'
import { type InstallationFacts, inspectInstallation, type ReachedDatabaseFacts } from '../../server/doctor.ts'
import { createToken, rotateSigningKey } from '../../server/maintenance.ts'
import { describeEachEngine, engines, freshDatabase, type TestDatabase } from '../support/databases.ts'

type ConfiguredFacts = Extract<InstallationFacts, { configurationFaults: undefined }>

const masterKey = randomBytes(32)
const base64 = masterKey.toString('base64')

const inspect = async (env: Record<string, string>, endpoint?: URL): Promise<ConfiguredFacts> => {
  const facts = await inspectInstallation({ TIDINGS_MASTER_KEY: base64, TIDINGS_PORT: '0', ...env }, endpoint)
  assert.equal(facts.configurationFaults, undefined)
  return facts
}

describeEachEngine('facts about an installation', engine => {
  let fresh: TestDatabase
  before(async () => {
    fresh = await freshDatabase(engine)
    // SQLite's file is made by the first statement.
    await fresh.database.knex.raw('SELECT 1')
  })
  after(() => fresh.drop())

  const reached = async (env: Record<string, string> = {}): Promise<ReachedDatabaseFacts> => {
    const { database } = await inspect({ TIDINGS_DATABASE_URL: fresh.url, ...env })
    assert.equal(database.state, 'reached')
    return database
  }

  it('a database without a schema lacks every migration, and is not looked into', async () => {
    const { pendingMigrations, contents } = await reached()
    assert.ok(pendingMigrations.length > 0)
    assert.equal(contents, undefined)
  })

  it('a database is told by engine and version, and its clock by how far it is ahead', async () => {
    const beganAt = performance.now()
    const facts = await reached()
    assert.equal(facts.engine, fresh.database.dialect.name)
    assert.match(facts.version, /^\d+\.\d+/)
    assert.equal(facts.isSupported, true)
    // The same clock, read before or after.
    assert.ok(Math.abs(facts.clockAheadMs) <= performance.now() - beganAt, `ahead by ${facts.clockAheadMs} ms`)
  })

  it('a clock is told from a second on, and a problem from half a minute on', async () => {
    const facts = await inspect({ TIDINGS_DATABASE_URL: fresh.url })
    const told = async (clockAheadMs: number) => {
      const database = { ...facts.database, clockAheadMs } as ConfiguredFacts['database']
      const { status, found } = (await diagnoseInstallation({ ...facts, database })).find(it => it.name === 'clock')!
      return `${status}: ${/\d+.*(ahead|behind)|agrees/.exec(found)?.[0]}`
    }
    const near = await Promise.all([999, 1_000, -1_000, 29_999].map(told))
    assert.deepEqual(near, ['ok: agrees', 'ok: 1 s ahead', 'ok: 1 s behind', 'ok: 30 s ahead'])
    assert.deepEqual(await Promise.all([30_000, -30_000].map(told)), ['problem: 30 s ahead', 'problem: 30 s behind'])
  })

  it('an installation with a key, an admin and an overdue delivery has them counted', async () => {
    await migrate(fresh.database)
    const empty = (await reached()).contents
    assert.deepEqual(empty?.signingKeys, { number: 0, closedKids: [] })
    assert.deepEqual(empty?.accessTokens, { admins: 0, allOpen: true })
    assert.equal(empty?.overdue.number, 0)

    const config = { masterKeys: [masterKey] } as Config
    await rotateSigningKey(fresh.database, config)
    await createToken(fresh.database, config, { name: 'ops', permissions: ['admin'] })
    await createToken(fresh.database, config, { name: 'reader', permissions: ['read'] })
    await queueOverdue(fresh)
    const { contents } = await reached()
    assert.deepEqual(contents?.signingKeys, { number: 2, closedKids: [] })
    assert.deepEqual(contents?.accessTokens, { admins: 1, allOpen: true })
    assert.equal(contents?.overdue.number, 1)
    assert.ok(contents.overdue.longestMs >= 299_000, `${contents.overdue.longestMs} ms`)
    assert.equal(contents.signsInMs, 0)
  })

  it('a user that may do everything lacks no grant', async () => {
    assert.deepEqual((await reached()).lacking, [])
  })

  it('another master key opens none of the signing keys, and not the secrets', async () => {
    const { contents } = await reached({ TIDINGS_MASTER_KEY: randomBytes(32).toString('base64') })
    assert.equal(contents?.signingKeys.closedKids.length, 2)
    assert.equal(contents.accessTokens.allOpen, false)
  })
})

it('a SQLite file that is not there is absent, and stays so', async () => {
  const { database } = await inspect({ TIDINGS_DATABASE_URL: 'sqlite:/nowhere/tidings.sqlite' })
  assert.deepEqual(database, { url: 'sqlite:/nowhere/tidings.sqlite', state: 'absent' })
  assert.equal(existsSync('/nowhere/tidings.sqlite'), false)
})

it('an endpoint in a network that is not opened is closed, and http is refused where https is required', async () => {
  const env = { TIDINGS_DATABASE_URL: 'sqlite:/nowhere/tidings.sqlite' }
  const url = new URL('http://127.0.0.1:1/hooks')
  const { endpoint } = await inspect({ ...env, TIDINGS_REQUIRE_HTTPS: 'true' }, url)
  assert.deepEqual(endpoint, { url, isRefusedAsHttp: true, closedAddresses: ['127.0.0.1'] })
  const opened = await inspect({ ...env, TIDINGS_ALLOW_NETWORKS: '127.0.0.0/8' }, url)
  assert.deepEqual(opened.endpoint, { url, isRefusedAsHttp: false, closedAddresses: [] })
  assert.deepEqual(opened.guard.insideAllowed, ['127.0.0.1'])
})

/** A row of the queue that has been due for five minutes. */
const queueOverdue = async ({ database }: TestDatabase): Promise<void> => {
  await database.knex('delivery_queue').insert({
    delivery_id: uuid(),
    event_id: uuid(),
    webhook_id: uuid(),
    due_at: Date.now() - 300_000,
  })
}

for (const engine of engines.filter(name => name !== 'sqlite')) {
  it(`a user that may not write a table is told which (${engine})`, async () => {
    const fresh = await freshDatabase(engine)
    const user = `u${randomBytes(6).toString('hex')}`
    try {
      await migrate(fresh.database)
      const url = new URL(fresh.url)
      const { knex } = fresh.database
      await knex.raw('CREATE USER ?@? IDENTIFIED BY ?', [user, '%', 'grants'])
      await knex.raw(`GRANT SELECT, INSERT, UPDATE, DELETE ON ${url.pathname.slice(1)}.events TO ?@?`, [user, '%'])
      await knex.raw(`GRANT SELECT ON ${url.pathname.slice(1)}.* TO ?@?`, [user, '%'])
      url.username = user
      url.password = 'grants'
      const { database } = await inspect({ TIDINGS_DATABASE_URL: url.href })
      assert.equal(database.state, 'reached')
      assert.ok(database.lacking.includes('INSERT on webhooks'), database.lacking.join())
      assert.ok(database.lacking.includes('UPDATE on rate_limits'))
      assert.deepEqual(
        database.lacking.filter(each => / events$|^SELECT/.test(each)),
        [],
      )
      assert.equal(database.contents, undefined)
    } finally {
      await fresh.database.knex.raw('DROP USER IF EXISTS ?@?', [user, '%'])
      await fresh.drop()
    }
  })
}
