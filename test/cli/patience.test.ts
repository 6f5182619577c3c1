import assert from 'node:assert/strict'
import { suite, test } from 'node:test'
import { connectedTo, startStubServer } from './stub-server.ts'
import { startTidings, temporaryFolder, tidings } from './tidings.ts'

// A server that takes a request and does not answer.

const home = temporaryFolder()
const id = '0193f000-0000-7000-8000-000000000001'

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
      assert.ok(tookMs > 14_500 && tookMs < 25_000, `${tookMs} ms`)
    })
  }

  test('what waits for a ping waits longer', async () => {
    const ping = { id, status: 'delivered', attempts: [] }
    const server = await startStubServer(() => ({ data: { delivery: ping }, afterMs: 16_500 }))
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

  test('deliveries watch says within seconds that nothing is answered, and when the server is back', async () => {
    const server = await startStubServer(() => ({ data: { deliveries: [] } }))
    const watch = startTidings(['deliveries', 'watch'], { home, env: connectedTo(server) })
    let told = ''
    const says = (text: RegExp) =>
      new Promise<void>(resolve => {
        const look = () => text.test(told) && resolve()
        watch.stderr.on('data', look)
        look()
      })
    watch.stderr.on('data', chunk => {
      told += chunk
    })
    await says(/Watching/)
    server.answer = () => 'hang'
    const frozenAt = performance.now()
    await says(/did not answer within 5 s\. Still trying; nothing is missed meanwhile/)
    assert.ok(performance.now() - frozenAt < 12_000)
    server.answer = () => ({ data: { deliveries: [] } })
    const backAt = performance.now()
    await says(/The server is back/)
    assert.ok(performance.now() - backAt < 15_000)
    watch.kill()
  })
})
