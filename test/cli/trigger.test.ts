import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { payloadOf } from '../../cli/commands/trigger.ts'
import { eventually } from '../support/eventually.ts'
import { startReceiver } from '../support/receiver.ts'
import { startSandbox } from './sandbox-server.ts'
import { temporaryFolder, tidings } from './tidings.ts'

const home = temporaryFolder()
await startSandbox(home)
const receiver = await startReceiver()
after(() => receiver.close())

const run = (...args: string[]) => tidings(args, { home })
const json = async (...args: string[]) => {
  const ended = await run(...args)
  assert.equal(ended.code, 0, ended.stderr)
  return JSON.parse(ended.stdout)
}
const arrived = (id: string) =>
  eventually(
    'the example to arrive',
    () => receiver.requests.map(({ body }) => body.eventId),
    ids => ids.includes(id),
  )

test('without a webhook to send to, trigger says how one is made', async () => {
  const { code, stderr } = await run('trigger', 'token_expired')
  assert.equal(code, 3)
  assert.match(stderr, /webhooks create/)
})

test('trigger sends an example to the only webhook there is, and with --webhook to one by its name', async () => {
  await json('webhooks', 'create', receiver.url, '--name', 'Ledger')
  const alone = await json('trigger', 'project_report_quarterly_overdue')
  assert.equal(alone.event.example, true)
  await arrived(alone.id)
  const shown = await run('trigger', 'token_expired', '--count', '3', '--dry-run')
  assert.equal(JSON.parse(shown.stdout).body.variables.eventType, 'token_expired')
  assert.match(shown.stderr, /for each of 3 examples/)
  await json('webhooks', 'create', receiver.url, '--name', 'Other')
  const { code, stderr } = await run('trigger', 'token_expired')
  assert.equal(code, 2)
  assert.match(stderr, /Ledger .*Other|Other .*Ledger/s)
  const named = await json('trigger', 'token_expired', '--webhook', 'Ledger')
  assert.equal(named.webhook.name, 'Ledger')
  await arrived(named.id)
})

test('--set changes the payload, and what it cannot change is told', async () => {
  const line = ['trigger', 'project_report_quarterly_submitted', '--webhook', 'Ledger', '--set']
  const { event } = await json(...line, 'projectReport.quarter=2031-1', '--set', 'projectReport.submitterName=A=B')
  assert.equal(event.payload.projectReport.quarter, '2031-1')
  assert.equal(event.payload.projectReport.submitterName, 'A=B')
  const { code, stderr } = await run(...line, 'projectReport.id=01930000-0000-7000-8000-000000000001')
  assert.equal(code, 2)
  assert.match(stderr, /cannot be replaced/)
})

test('--count sends so many, and prints the id of each', async () => {
  const sent = await json('trigger', 'token_expired', '--webhook', 'Ledger', '--count', '7', '--output', 'json')
  assert.equal(new Set(sent.map(({ id }: { id: string }) => id)).size, 7)
  for (const { id } of sent) await arrived(id)
})

test('an example is shown as one wherever it is told of', async () => {
  const { id, event } = await json('trigger', 'token_expired', '--webhook', 'Ledger')
  for (const line of [
    ['events', 'list'],
    ['events', 'show', event.id],
    ['deliveries', 'show', id],
  ]) {
    const { stdout } = await run(...line, '--output', 'table')
    assert.match(stdout, /example/, line.join(' '))
  }
})

test('what --set says is an object; a value that is no JSON is a text', () => {
  const given = ['a.b=1', 'a.c=x', 'd={"e":[true]}', 'f=']
  assert.deepEqual(JSON.parse(JSON.stringify(payloadOf(given))), { a: { b: 1, c: 'x' }, d: { e: [true] }, f: '' })
  assert.throws(() => payloadOf(['a']), /sets nothing/)
  assert.throws(() => payloadOf(['a..b=1']), /sets nothing/)
})
