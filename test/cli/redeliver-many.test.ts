import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { eventually } from '../support/eventually.ts'
import { startReceiver } from '../support/receiver.ts'
import { startSandbox } from './sandbox-server.ts'
import { connectedTo, startStubServer } from './stub-server.ts'
import { temporaryFolder, tidings } from './tidings.ts'

const home = temporaryFolder()
await startSandbox(home)
const receiver = await startReceiver()
after(() => receiver.close())

const run = (...args: string[]) => tidings(args, { home })
const done = async (...args: string[]) => {
  const ended = await run(...args)
  assert.equal(ended.code, 0, ended.stderr)
  return ended
}
const arrived = (times: number) =>
  eventually(
    `${times} examples to arrive`,
    () => receiver.requests.filter(({ body }) => body.eventType === 'token_expired').length,
    number => number === times,
  )

test('what a webhook has acknowledged is sent again, after a question that says how many', async () => {
  await done('webhooks', 'create', receiver.url, '--name', 'Ledger')
  await done('trigger', 'token_expired', '--count', '3')
  await arrived(3)
  const line = ['deliveries', 'redeliver', '--webhook', 'Ledger', '--status', 'delivered', '--since', '1h']
  await eventually(
    'all to be delivered',
    async () => JSON.parse((await done('deliveries', 'list', '--status', 'delivered')).stdout).length,
    number => number === 4,
  )
  const unasked = await run(...line)
  assert.equal(unasked.code, 2)
  assert.match(unasked.stderr, /3 events to Ledger/)
  const dry = await done(...line, '--dry-run')
  assert.match(dry.stderr, /It would send 3 events again\./)
  assert.match(JSON.parse(dry.stdout).body.variables.webhookId, /^[0-9a-f-]{36}$/)
  assert.equal(JSON.parse((await done(...line, '--yes')).stdout).queued, 3)
  await arrived(6)
})

test('nothing is asked where nothing matches', async () => {
  const { stdout } = await done('deliveries', 'redeliver', '--webhook', 'Ledger', '--status', 'dropped')
  assert.equal(JSON.parse(stdout).queued, 0)
})

test('ids and filters are told apart', async () => {
  for (const args of [[], ['--status', 'dropped'], ['ID', '--webhook', 'Ledger']]) {
    assert.equal((await run('deliveries', 'redeliver', ...args)).code, 2, args.join(' '))
  }
})

test('a server that answers with where to go on is asked until it is complete, within the limit', async () => {
  const answers = [
    { queued: 4, resumeAfter: 'a' },
    { queued: 3, resumeAfter: null },
  ]
  const twice = [...answers, ...answers]
  const stub = await startStubServer(({ query }) =>
    /redeliverMany/.test(query) ? { data: { recovery: twice.shift() } } : { data: { webhooks: [{ id: 'w' }] } },
  )
  const id = '01930000-0000-7000-8000-000000000001'
  const line = ['deliveries', 'redeliver', '--webhook', id, '--limit', '9', '--yes']
  const { stdout, code } = await tidings(line, { home, env: connectedTo(stub) })
  assert.equal(code, 0)
  assert.equal(JSON.parse(stdout).queued, 7)
  const asked = stub.received.filter(({ query }) => /redeliverMany/.test(query)).map(({ variables }) => variables)
  assert.deepEqual(asked, [
    { webhookId: id, query: { limit: 9 }, dryRun: true },
    { webhookId: id, query: { limit: 5, after: 'a' }, dryRun: true },
    { webhookId: id, query: { limit: 9 } },
    { webhookId: id, query: { limit: 5, after: 'a' } },
  ])
})
