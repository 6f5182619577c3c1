import assert from 'node:assert/strict'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, test } from 'node:test'
import { startReceiver } from '../support/receiver.ts'
import { startSandbox } from './sandbox-server.ts'
import { temporaryFolder, tidings } from './tidings.ts'

// An access token with the permission webhooks and no other, as a script that sets webhooks up has it.

const home = temporaryFolder()
await startSandbox(home)
const endpoint = await startReceiver()
after(() => endpoint.close())
const made = await tidings(['tokens', 'create', '--name', 'setup', '--permissions', 'webhooks', '--save', 'setup'], {
  home,
})
assert.equal(made.code, 0, made.stderr)

const run = async (...line: string[]) => {
  const { code, stdout, stderr } = await tidings([...line, '--profile', 'setup'], { home })
  assert.equal(code, 0, `${line.join(' ')}: ${stderr}`)
  return { data: stdout === '' ? undefined : JSON.parse(stdout), stderr }
}
const { id } = (await run('webhooks', 'create', endpoint.url)).data

test('it disables, enables, changes and recovers what it has made', async () => {
  assert.equal((await run('webhooks', 'disable', id, '--yes')).data.status, 'disabled')
  const enabled = await run('webhooks', 'enable', id)
  assert.equal(enabled.data.status, 'active')
  assert.doesNotMatch(enabled.stderr, /was created/)
  assert.deepEqual((await run('webhooks', 'update', id, '--events', 'token_expired')).data.events, ['token_expired'])
  assert.equal((await run('webhooks', 'recover', id, '--since', '1h', '--yes')).data.queued, 0)
})

test('it makes the webhooks of a file, again and again the same ones', async () => {
  const file = join(home, 'webhooks.json')
  writeFileSync(file, JSON.stringify([{ url: `${endpoint.url}/a` }, { url: `${endpoint.url}/b` }]))
  const first = (await run('webhooks', 'create', '--file', file)).data
  assert.deepEqual(
    first.map(({ outcome }: { outcome: string }) => outcome),
    ['created', 'created'],
  )
  const second = (await run('webhooks', 'create', '--file', file)).data
  assert.deepEqual(
    second.map(({ id: one }: { id: string }) => one),
    first.map(({ id: one }: { id: string }) => one),
  )
})

test('listen --register takes up its own webhook again', async () => {
  const ids: string[] = []
  for (let run = 0; run < 2; run++) {
    // Without a delivery to wait for it ends as it is told to.
    const { stderr, code } = await listenOnce()
    assert.equal(code, 0, stderr)
    ids.push(/Registered as webhook (\S+)\./.exec(stderr)![1]!)
  }
  assert.equal(ids[0], ids[1])
})

const listenOnce = async () => {
  const line = ['listen', '--register', '--profile', 'setup', '--port', '4299', '--once']
  const listening = tidings(line, { home })
  for (let tries = 0; tries < 200; tries++) {
    const { stdout } = await tidings(['webhooks', 'list', '--status', 'active', '--output', 'json'], { home })
    const found = JSON.parse(stdout).find(({ url }: { url: string }) => url.includes(':4299/'))
    if (found) {
      await tidings(['webhooks', 'ping', found.id], { home })
      break
    }
  }
  return listening
}
