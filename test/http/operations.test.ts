import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdir, mkdtemp, rm } from 'node:fs/promises'
import { Agent, get as askOn } from 'node:http'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { describe, it, type TestContext } from 'node:test'
import { readConfig } from '../../server/config.ts'
import { connect } from '../../server/database/connect.ts'
import { migrate } from '../../server/database/migrate.ts'
import { onlyOperators } from '../../server/http/metrics.ts'
import { createLog } from '../../server/log.ts'
import { startServer } from '../../server/main.ts'
import { eventually } from '../support/eventually.ts'
import { freePort } from '../support/ports.ts'
import { startTestServer } from '../support/server.ts'

const statusOf = async (url: string): Promise<number> => (await fetch(url)).status
const isRefused = (url: string): Promise<boolean> =>
  fetch(url).then(
    () => false,
    error => error.cause?.code === 'ECONNREFUSED',
  )

describe('an address for those who run the server', () => {
  it('has metrics and health, which the public one has not any more', async t => {
    const port = await freePort()
    const server = await startTestServer('sqlite', { env: { TIDINGS_METRICS_PORT: String(port) } })
    t.after(server.stop)
    const inside = `http://127.0.0.1:${port}`
    for (const route of ['/metrics', '/livez', '/readyz']) {
      assert.equal(await statusOf(inside + route), 200, route)
      assert.equal(await statusOf(server.url + route), 404, route)
    }
    for (const route of ['/graphql', '/docs', '/.well-known/jwks.json']) {
      assert.equal(await statusOf(inside + route), 404, route)
    }
    assert.equal(await statusOf(`${server.url}/.well-known/jwks.json`), 200)
  })

  it('is not needed for metrics: the public one tells them to machines nearby and to holders of the token', async t => {
    const metricsToken = randomBytes(16).toString('hex')
    const server = await startTestServer('sqlite', { env: { TIDINGS_METRICS_TOKEN: metricsToken } })
    t.after(server.stop)
    const status = async (headers: Record<string, string>) => (await fetch(`${server.url}/metrics`, { headers })).status
    assert.equal(await status({}), 200)
    for (const header of ['forwarded', 'X-Forwarded-For', 'X-Real-IP', 'Via', 'CF-Connecting-IP']) {
      assert.equal(await status({ [header]: '203.0.113.9' }), 401, header)
    }
    const through = { 'x-forwarded-for': '203.0.113.9' }
    assert.equal(await status({ ...through, authorization: `Bearer ${metricsToken}` }), 200)
    assert.equal(await status({ ...through, authorization: `Bearer ${metricsToken}0` }), 401)
  })

  it('is not needed for metrics, which no other spelling of their path tells through a proxy', async t => {
    const server = await startTestServer('sqlite')
    t.after(server.stop)
    for (const path of ['/metrics/', '/METRICS', '/Metrics/', '//metrics', '/%6detrics', '/./metrics', '/metrics?a']) {
      const { status } = await fetch(server.url + path, { headers: { via: '1.1 proxy' } })
      assert.ok(status === 401 || status === 404, `${path} is answered with ${status}`)
    }
  })

  it('is not needed for metrics, which no public address is told', async () => {
    const passed = async (remoteAddress: string): Promise<boolean> => {
      let isPassed = false
      const req = { headers: {}, socket: { remoteAddress } }
      const ctx = { path: '/metrics', req, state: {}, set() {}, get: () => '', accepts: () => false }
      await onlyOperators(undefined)(ctx as never, async () => {
        isPassed = true
      })
      return isPassed
    }
    for (const near of ['127.0.0.1', '::1', '10.1.2.3', '::ffff:192.168.0.1', 'fd00::7']) {
      assert.equal(await passed(near), true, near)
    }
    for (const far of ['203.0.113.9', '8.8.8.8', '::ffff:8.8.8.8', '2001:4860::1', '']) {
      assert.equal(await passed(far), false, far)
    }
  })

  it('is loopback unless told', () => {
    const least = {
      TIDINGS_DATABASE_URL: 'sqlite:x',
      TIDINGS_MASTER_KEY: Buffer.alloc(32).toString('base64'),
      TIDINGS_HOME: '/nonexistent',
      TIDINGS_METRICS_PORT: '9400',
    }
    assert.deepEqual(readConfig(least).operations, { host: '127.0.0.1', port: 9400 })
    const told = { ...least, TIDINGS_METRICS_HOST: '10.0.0.7' }
    assert.deepEqual(readConfig(told).operations, { host: '10.0.0.7', port: 9400 })
    assert.throws(() => readConfig({ ...least, TIDINGS_PORT: '9400' }), /METRICS_PORT is the same as TIDINGS_PORT/)
    const { TIDINGS_METRICS_PORT: _, ...without } = told
    assert.throws(() => readConfig(without), /without TIDINGS_METRICS_PORT/)
  })

  it('answers at once, while the public one is not listened on before the server is ready', async t => {
    const { config, folder } = await notMigrated(t, { TIDINGS_METRICS_PORT: String(await freePort()) })
    const server = await startServer(config, createLog('silent'))
    t.after(server.stop)
    const inside = `http://127.0.0.1:${config.operations!.port}`
    assert.equal(await statusOf(`${inside}/livez`), 200)
    assert.equal(await statusOf(`${inside}/readyz`), 503)
    assert.ok(await isRefused(`${server.url}/.well-known/jwks.json`))
    await migrateIn(folder)
    await eventually(
      'the server to be ready',
      () => statusOf(`${inside}/readyz`),
      status => status === 200,
    )
    assert.equal(await statusOf(`${server.url}/.well-known/jwks.json`), 200)
  })
})

describe('a server that starts', () => {
  it('is not listened on before it is ready, where nothing keeps it from that', async t => {
    const { config, folder } = await notMigrated(t)
    await migrateIn(folder)
    const starting = startServer(config, createLog('silent'))
    const answers: number[] = []
    let isStarted = false
    starting.then(() => {
      isStarted = true
    })
    while (!isStarted) {
      const status = await statusOf(`${config.baseUrl}/readyz`).catch(() => undefined)
      if (status) answers.push(status)
    }
    const server = await starting
    t.after(server.stop)
    assert.deepEqual(
      answers.filter(status => status !== 200),
      [],
    )
    assert.equal(await statusOf(`${server.url}/readyz`), 200)
  })

  it('lets go of everything where its port is taken', async t => {
    const { config, folder } = await notMigrated(t)
    await migrateIn(folder)
    const other = createServer().listen(config.port, config.host)
    t.after(() => other.close())
    const server = await startServer(config, createLog('silent'))
    await assert.rejects(server.ready, { code: 'EADDRINUSE' })
    await server.stop()
  })
})

describe('a server that stops behind a proxy', () => {
  it('answers what comes on a connection that the proxy has kept, and takes no new one', async t => {
    const env = { TIDINGS_BASE_URL: 'http://example.com', TIDINGS_BEHIND_PROXY: 'true' }
    const server = await startTestServer('sqlite', { env })
    const inside = `http://127.0.0.1:${server.config.port}/.well-known/jwks.json`
    const kept = new Agent({ keepAlive: true, maxSockets: 1 })
    t.after(() => kept.destroy())
    assert.deepEqual(await ask(inside, kept), { status: 200, connection: 'keep-alive' })
    const stopped = server.stop()
    await eventually('new connections to be refused', () => isRefused(inside), Boolean)
    assert.deepEqual(await ask(inside, kept), { status: 200, connection: 'close' })
    await stopped
  })
})

const ask = (url: string, agent: Agent): Promise<{ status: number; connection: string }> =>
  new Promise((resolve, reject) => {
    askOn(url, { agent }, response => {
      response.resume().on('end', () => {
        resolve({ status: response.statusCode!, connection: response.headers.connection! })
      })
    }).once('error', reject)
  })

/** A configuration whose database is yet to be migrated. */
const notMigrated = async (t: TestContext, env: Record<string, string> = {}) => {
  const folder = await mkdtemp(path.join(tmpdir(), 'tidings-test-'))
  t.after(() => rm(folder, { recursive: true }))
  await mkdir(path.join(folder, 'data'))
  const config = readConfig({
    TIDINGS_DATABASE_URL: databaseIn(folder),
    TIDINGS_MASTER_KEY: randomBytes(32).toString('base64'),
    TIDINGS_PORT: String(await freePort()),
    TIDINGS_HOME: '/nonexistent',
    ...env,
  })
  return { config, folder }
}

const databaseIn = (folder: string): string => `sqlite:${path.join(folder, 'data', 'tidings.sqlite')}`

const migrateIn = async (folder: string): Promise<void> => {
  const database = await connect(databaseIn(folder))
  await migrate(database)
  await database.close()
}
