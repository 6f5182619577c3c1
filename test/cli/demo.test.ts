import assert from 'node:assert/strict'
import { mkdirSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { suite, test } from 'node:test'
import { everyNth } from '../support/size.ts'
import { startSandbox } from './sandbox-server.ts'
import { startTidings, temporaryFolder, tidings } from './tidings.ts'

// What is left of a demo that is broken off.

/** Runs the demo until it says this, then sends a signal, twice as npx does; answers with how it ended. */
const brokenOff = async (
  said: RegExp,
  signal: NodeJS.Signals,
  given: { home: string; env?: Record<string, string> },
) => {
  const demo = startTidings(['demo'], given)
  let told = ''
  let isSent = false
  demo.stderr.on('data', chunk => {
    told += chunk
    if (isSent || !said.test(told)) return
    isSent = true
    demo.kill(signal)
    demo.kill(signal)
  })
  const ended = await new Promise<NodeJS.Signals | null>(resolve => demo.once('close', (_code, by) => resolve(by)))
  assert.ok(isSent, told)
  return ended
}

suite('a demo that is broken off', { timeout: 120_000 }, () => {
  for (const [said, signal] of everyNth(2, [
    [/No sandbox is running/, 'SIGINT'],
    [/answered 500/, 'SIGHUP'],
  ] as const)) {
    test(`leaves no folder of its own server behind: ${signal} at ${said.source}`, async () => {
      const home = temporaryFolder()
      const folder = join(home, 'tmp')
      mkdirSync(folder)
      assert.equal(await brokenOff(said, signal, { home, env: { TMPDIR: folder } }), signal)
      assert.deepEqual(readdirSync(folder), [])
    })
  }

  test('leaves no webhook on the sandbox, whenever that was', async () => {
    const home = temporaryFolder()
    await startSandbox(home)
    for (const [said, signal] of [
      [/A receiver listens/, 'SIGINT'],
      [/is registered/, 'SIGTERM'],
    ] as const) {
      assert.equal(await brokenOff(said, signal, { home }), signal)
      const { stdout } = await tidings(['webhooks', 'list', '--status', 'active'], { home })
      assert.deepEqual(JSON.parse(stdout), [], said.source)
    }
    assert.equal((await tidings(['webhooks', 'list', '--output', 'id'], { home })).stdout, '', 'each is deleted')
    // Their deliveries tell that there were some.
    assert.notEqual((await tidings(['deliveries', 'list', '--output', 'id'], { home })).stdout, '')
  })
})
