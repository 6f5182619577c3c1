import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdir, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, before, it } from 'node:test'
import { calculateJwkThumbprint } from 'jose'
import { readConfig } from '../../server/config.ts'
import { connect, type Database } from '../../server/database/connect.ts'
import { migrate, rollback } from '../../server/database/migrate.ts'
import { createLog } from '../../server/log.ts'
import { type RunningServer, startServer } from '../../server/main.ts'
import { type DatabaseProxy, startProxy } from '../database/proxy.ts'
import { describeEachEngine, freshDatabase, type TestDatabase } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { freePort } from '../support/ports.ts'

const start = async (databaseUrl: string): Promise<RunningServer> => {
  const config = readConfig({
    TIDINGS_DATABASE_URL: databaseUrl,
    TIDINGS_MASTER_KEY: randomBytes(32).toString('base64'),
    TIDINGS_PORT: String(await freePort()),
    TIDINGS_HOME: '/nonexistent',
  })
  return startServer(config, createLog('silent'))
}

const get = async ({ url }: RunningServer, route: string) => {
  const answer = await fetch(new URL(route, url))
  // biome-ignore lint/suspicious/noExplicitAny: tests look into whatever was answered
  const body = (await answer.json()) as any
  return { status: answer.status, headers: answer.headers, body }
}

// One server through its whole life, in this order: what it says of itself follows its database.
describeEachEngine('a server', engine => {
  let fresh: TestDatabase
  let database: Database | undefined
  let proxy: DatabaseProxy | undefined
  let folder: string
  let url: string
  let server: RunningServer
  before(async () => {
    fresh = await freshDatabase(engine)
    folder = await mkdtemp(path.join(tmpdir(), 'tidings-test-'))
    if (engine !== 'sqlite') proxy = await startProxy(fresh.url)
    url = proxy?.url ?? `sqlite:${path.join(folder, 'late', 'tidings.sqlite')}`
    proxy?.break('refuses')
    server = await start(url)
  })
  after(async () => {
    await server.stop()
    await database?.close()
    proxy?.close()
    await fresh.drop()
    await rm(folder, { recursive: true })
  })

  it('waits for a database that is not there when it starts, and says so', async () => {
    const { status, body } = await get(server, '/readyz')
    assert.equal(status, 503)
    assert.deepEqual(body, { status: 'not ready', reason: 'the database does not answer' })
    assert.deepEqual((await get(server, '/livez')).body, { status: 'live' })
    await mkdir(path.join(folder, 'late'))
    proxy?.mend()
    database = await connect(url)
  })

  it('is live, and not ready, before its database has been migrated', async () => {
    assert.deepEqual((await get(server, '/livez')).body, { status: 'live' })
    const { status, body } = await untilReason(/migrate/)
    assert.equal(status, 503)
    assert.equal(body.status, 'not ready')
    assert.match(body.reason, /tidings server migrate.*0001_initial/)
  })

  it('asks API clients to wait until it is ready', async () => {
    const answer = await fetch(new URL('/graphql', server.url), { method: 'POST', body: '{}' })
    assert.equal(answer.status, 503)
    assert.ok(Number(answer.headers.get('retry-after')) > 0)
    const keys = await get(server, '/.well-known/jwks.json')
    assert.equal(keys.status, 503)
  })

  it('becomes ready by itself when the database is migrated', async () => {
    await migrate(database!)
    await server.ready
    const { body } = await untilReady()
    assert.deepEqual(body, { status: 'ready' })
  })

  it('shows its public keys and nothing else of them, to be kept for 5 minutes', async () => {
    const { status, headers, body } = await get(server, '/.well-known/jwks.json')
    assert.equal(status, 200)
    assert.equal(headers.get('cache-control'), 'public, max-age=300')
    assert.match(headers.get('content-type') ?? '', /^application\/json/)
    assert.deepEqual(Object.keys(body), ['keys'])
    assert.equal(body.keys.length, 1)
    const [key] = body.keys
    assert.deepEqual(Object.keys(key).sort(), ['alg', 'crv', 'kid', 'kty', 'use', 'x'])
    const { kty, crv, use, alg, x, kid } = key
    assert.deepEqual({ kty, crv, use, alg }, { kty: 'OKP', crv: 'Ed25519', use: 'sig', alg: 'EdDSA' })
    assert.equal(kid, await calculateJwkThumbprint({ kty, crv, x }))
  })

  it('is not ready while its database does not answer, and ready again when it does', async t => {
    if (!proxy) return t.skip('SQLite is in the process')
    proxy.break('refuses')
    await untilReason(/database does not answer/)
    assert.equal((await get(server, '/readyz')).status, 503)
    assert.equal((await get(server, '/livez')).status, 200)
    proxy.mend()
    await untilReady()
  })

  it('is not ready when its schema has been taken back', async () => {
    await rollback(database!)
    await untilReason(/migrate/)
    assert.equal((await get(server, '/readyz')).status, 503)
    await migrate(database!)
    // A heartbeat meanwhile has failed, where a migration takes seconds.
    await untilReady()
  })

  const untilReady = () =>
    eventually(
      'it to be ready',
      () => get(server, '/readyz'),
      ({ status }) => status === 200,
    )

  const untilReason = (reason: RegExp) =>
    eventually(
      `/readyz to say ${reason}`,
      () => get(server, '/readyz'),
      ({ body }) => reason.test(body.reason),
    )
})
