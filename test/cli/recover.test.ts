import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Answer, connectedTo, startStubServer } from './stub-server.ts'
import { temporaryFolder, tidings } from './tidings.ts'

const server = await startStubServer()
const home = temporaryFolder()
const id = '01930000-0000-7000-8000-000000000001'
const webhook = (status = 'active'): Answer => ({
  data: { webhooks: [{ id, url: 'https://example.com/hooks', status }] },
})
const recovery = (queued: number, resumeSince: string | null): Answer => ({
  data: { recovery: { queued, resumeSince } },
})
/** @param webhook answers each query; `recoveries` answer the mutations, one after the other */
const recover = (args: string[], webhook: Answer, ...recoveries: Answer[]) => {
  server.received.length = 0
  server.answer = ({ query }) => (query.startsWith('mutation') ? recoveries.shift()! : webhook)
  return tidings(['webhooks', 'recover', id, '--since', '2026-11-20', ...args], { home, env: connectedTo(server) })
}

test('a recovery goes on where the server left off until nothing is left, and tells how far it is', async () => {
  const later = '2026-11-20T12:00:00.000+00:00'
  const { code, stdout, stderr } = await recover(['--yes'], webhook(), recovery(500, later), recovery(20, null))
  assert.equal(code, 0)
  assert.deepEqual(
    server.received.filter(({ query }) => query.startsWith('mutation')).map(({ variables }) => variables.since),
    ['2026-11-20T00:00:00.000+00:00', later],
  )
  assert.match(stderr, /Queued 500 deliveries so far; going on from 2026-11-20T12/)
  assert.equal(JSON.parse(stdout).queued, 520)
})

test('a recovery that breaks off says what it did and how to go on', async () => {
  const fault: Answer = { errors: [{ message: 'No.', extensions: { code: 'CONFLICT' } }] }
  const later = '2026-11-20T12:00:00.000+00:00'
  const { code, stderr } = await recover(['--yes', '--until', '2026-11-21'], webhook(), recovery(500, later), fault)
  assert.equal(code, 1)
  assert.match(
    stderr,
    new RegExp(
      `500 deliveries are queued\\. Go on with: tidings webhooks recover ${id} --since ` +
        `${later.replaceAll('+', '\\+')} --until 2026-11-21`,
    ),
  )
})

test('a recovery is refused where there is nobody to ask', async () => {
  const { code, stderr } = await recover([], webhook())
  assert.equal(code, 2)
  assert.match(stderr, /--yes/)
  assert.ok(server.received.every(({ query }) => !query.includes('mutation')))
})

test('a webhook that is not active has to be enabled first, and the message says how', async () => {
  const { code, stderr } = await recover(['--yes'], webhook('disabled'))
  assert.equal(code, 1)
  assert.match(stderr, new RegExp(`tidings webhooks enable ${id}`))
})

test('a time that is none is wrong usage with examples of what would be', async () => {
  const { code, stderr } = await tidings(['webhooks', 'recover', id, '--since', 'soon'], {
    home,
    env: connectedTo(server),
  })
  assert.equal(code, 2)
  assert.match(stderr, /15m, 1h30m, 7d, 1w.*10:00, yesterday/)
})

test('a dry run counts what would be sent, however many requests that takes, and shows the request', async () => {
  const later = '2026-11-20T12:00:00.000+00:00'
  const { code, stdout, stderr } = await recover(['--dry-run'], webhook(), recovery(500, later), recovery(20, null))
  assert.equal(code, 0)
  assert.match(stderr, /It would send 520 events again\./)
  const { query, variables } = JSON.parse(stdout).body
  assert.deepEqual(variables, { webhookId: id, since: '2026-11-20T00:00:00.000+00:00' })
  assert.ok(!query.includes('dryRun'))
  assert.equal(server.received.length, 2)
  assert.ok(server.received.every(({ query }) => query.includes('dryRun: true')))
})
