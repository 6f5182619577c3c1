import assert from 'node:assert/strict'
import { test } from 'node:test'
import { startSandbox } from './sandbox-server.ts'
import { connectedTo, startStubServer } from './stub-server.ts'
import { temporaryFolder, tidings } from './tidings.ts'

const home = temporaryFolder()
const stub = await startStubServer(() => ({
  data: {
    counts: [
      {
        key: { status: 'dropped', webhookId: 'w1', 'webhook.name': 'Ledger', 'webhook.url': 'https://a.example' },
        count: 1_234,
      },
      {
        key: { status: 'dropped', webhookId: 'w2', 'webhook.name': null, 'webhook.url': 'https://b.example' },
        count: 5,
      },
    ],
  },
}))
const run = (...args: string[]) => tidings(args, { home, env: connectedTo(stub) })

test('a list is counted by its filters and by fields, what is related under the name that people know', async () => {
  const line = ['deliveries', 'list', '--status', 'dropped', '--count', '--by', 'status,webhook', '--output', 'table']
  const { code, stdout } = await run(...line)
  assert.equal(code, 0)
  assert.deepEqual(stub.received.at(-1)!.variables, {
    resource: 'deliveries',
    selector: { status: 'dropped' },
    by: ['status', 'webhookId', 'webhook.name', 'webhook.url'],
  })
  assert.deepEqual(
    stdout
      .trimEnd()
      .split('\n')
      .map(row => row.trim().split(/\s+/)),
    [
      ['COUNT', 'STATUS', 'WEBHOOK'],
      ['1,234', 'dropped', 'Ledger'],
      ['5', 'dropped', 'https://b.example'],
    ],
  )
})

test('what is for lists alone is refused beside --count', async () => {
  for (const more of [['--all'], ['--limit', '5'], ['--sort', 'status'], ['--output', 'id']]) {
    const { code } = await run('deliveries', 'list', '--count', ...more)
    assert.equal(code, 2, more.join(' '))
  }
})

test('every list counts what it lists', async () => {
  await startSandbox(home)
  for (const noun of ['webhooks', 'deliveries', 'events', 'organisations', 'projects', 'users', 'reports', 'tokens']) {
    const answers = await Promise.all(
      [['--count'], ['--all', '--output', 'json']].map(more => tidings([noun, 'list', ...more], { home })),
    )
    const [counted, listed] = answers.map(({ stdout, code, stderr }) => {
      assert.equal(code, 0, stderr)
      return JSON.parse(stdout)
    })
    assert.deepEqual(counted, [{ key: {}, count: listed.length }], noun)
  }
  const { stdout } = await tidings(['query', 'projects', '--by', 'organisation', '--output', 'json'], { home })
  assert.ok(JSON.parse(stdout)[0].key['organisation.name'])
})
