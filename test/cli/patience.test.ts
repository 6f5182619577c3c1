import assert from 'node:assert/strict'
import { suite, test } from 'node:test'
import { connectedTo, startStubServer } from './stub-server.ts'
import { temporaryFolder, tidings } from './tidings.ts'

// A server that takes a request and does not answer.

const home = temporaryFolder()
const id = '0193f000-0000-7000-8000-000000000001'
const GIVE_UP_MS = 15_000

suite('a server that hangs', { concurrency: true, timeout: 90_000 }, () => {
  for (const line of [
    ['webhooks', 'list'],
    ['whoami'],
    ['deliveries', 'show', id],
    ['reports', 'approve', id, '--approver', id],
  ]) {
    test(`${line.slice(0, 2).join(' ')} says after 3 s that it waits, and gives up after 15 s`, async () => {
      const server = await startStubServer(() => 'hang')
      const startedAt = performance.now()
      const { code, stdout, stderr } = await tidings(line, { home, env: connectedTo(server) })
      assert.equal(code, 5, stderr)
      assert.equal(stdout, '')
      assert.match(stderr, /^Still waiting for 127\.0\.0\.1:\d+ …\n/)
      assert.match(stderr, /did not answer within 15 s\./)
      const tookMs = performance.now() - startedAt
      assert.ok(tookMs > 0.97 * GIVE_UP_MS && tookMs < (5 / 3) * GIVE_UP_MS, `${tookMs} ms`)
    })
  }

  test('what waits for a ping waits longer', async () => {
    const ping = { id, status: 'delivered', attempts: [] }
    const server = await startStubServer(({ query }) =>
      query.includes('pingWebhook') ? { data: { delivery: ping }, afterMs: 16_500 } : { data: { rows: [{ id }] } },
    )
    const { code, stderr } = await tidings(['webhooks', 'ping', id], { home, env: connectedTo(server) })
    assert.equal(code, 0, stderr)
    assert.match(stderr, /Still waiting/)
  })

  test('--quiet does without the line that it waits', async () => {
    const server = await startStubServer(() => ({ data: { rows: [] }, afterMs: 4_000 }))
    const { code, stderr } = await tidings(['webhooks', 'list', '--quiet'], { home, env: connectedTo(server) })
    assert.equal(code, 0)
    assert.equal(stderr, '')
  })
})
