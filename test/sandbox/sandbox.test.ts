import assert from 'node:assert/strict'
import { existsSync, mkdtempSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, it } from 'node:test'
import { createLog } from '../../server/log.ts'
import { startServer } from '../../server/main.ts'
import { prepareSandbox } from '../../server/sandbox.ts'
import { tidings } from '../cli/tidings.ts'
import { freePort } from '../support/ports.ts'
import { sendGraphql } from '../support/server.ts'

const home = mkdtempSync(join(tmpdir(), 'tidings-sandbox-test-'))
after(() => rmSync(home, { recursive: true, force: true }))

const start = async () => {
  const { config, credentials } = await prepareSandbox({ TIDINGS_HOME: home, TIDINGS_PORT: String(await freePort()) })
  const server = await startServer(config, createLog('error'))
  await server.ready
  return { server, credentials }
}

it('a second start of the sandbox keeps its data and its access token', async () => {
  const first = await start()
  const { data } = await sendGraphql(
    first.server.url,
    first.credentials,
    'mutation { upsertOrganisation(name: "Kept") { id } }',
  )
  await first.server.stop()
  const second = await start()
  try {
    assert.deepEqual(second.credentials, first.credentials)
    const kept = await sendGraphql(
      second.server.url,
      second.credentials,
      'query ($query: MangoQuery) { organisations(query: $query) { id } }',
      { query: { selector: { name: 'Kept' } } },
    )
    assert.deepEqual(kept.data.organisations, [{ id: data.upsertOrganisation.id }])
    const all = await sendGraphql(second.server.url, second.credentials, '{ organisations { id } users { id } }')
    assert.equal(all.data.organisations.length, 4, 'the samples are there once')
    assert.equal(all.data.users.length, 3)
  } finally {
    await second.server.stop()
  }
})

it('the sandbox keeps its secrets from other users of the machine', () => {
  assert.equal(statSync(home).mode & 0o777, 0o700)
  assert.equal(statSync(join(home, 'sandbox.env')).mode & 0o777, 0o600)
})

it('a database that the environment names is never taken for the sandbox', async () => {
  const elsewhere = join(home, 'elsewhere.sqlite')
  const { config } = await prepareSandbox({ TIDINGS_HOME: home, TIDINGS_DATABASE_URL: `sqlite:${elsewhere}` })
  assert.equal(config.databaseUrl, `sqlite:${join(home, 'tidings.sqlite')}`)
  assert.equal(existsSync(elsewhere), false)
})

it('tidings demo shows the whole job on a server of its own, and exits 0', { timeout: 60_000 }, async () => {
  const nowhere = mkdtempSync(join(home, 'demo-'))
  const { code, stdout, stderr } = await tidings(['demo', '--output', 'json'], { home: nowhere })
  assert.equal(code, 0, stderr)
  assert.match(stderr, /\nTo keep a server and look around: npm start\n/)
  const { deliveries } = JSON.parse(stdout)
  assert.deepEqual(
    deliveries.map(({ eventType, status, attemptCount }: Record<string, unknown>) => [eventType, status, attemptCount]),
    [
      ['ping', 'delivered', 1],
      ['project_report_quarterly_submitted', 'delivered', 2],
      ['project_report_quarterly_approved', 'delivered', 1],
    ],
  )
})
