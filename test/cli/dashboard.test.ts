import assert from 'node:assert/strict'
import { after, before, beforeEach, suite, type TestContext, test } from 'node:test'
import { type Answer, type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'
import { temporaryFolder, tidings } from './tidings.ts'
import { noTmux, startTerminal, type Terminal } from './tmux.ts'

// The dashboard as people use it: a real server, a receiver that can be made to fail, and a real terminal.

const home = temporaryFolder()
let server: TestServer
let receiver: Receiver
let answers: Record<string, Answer>
let env: Record<string, string>
let organisation: { projectId: string; userId: string }
let quarter = 2000

const createWebhook = async (path: string): Promise<string> => {
  const { data, errors } = await server.graphql('mutation ($url: String!) { made: createWebhook(url: $url) { id } }', {
    url: new URL(path, receiver.url).href,
  })
  assert.equal(errors, undefined)
  return data.made.id
}

/** Something happens that every webhook is told of. */
const submitReport = async (): Promise<void> => {
  const { errors } = await server.graphql(
    'mutation ($p: UUID!, $q: String!, $u: UUID!) { submitProjectReport(projectId: $p, quarter: $q, submitterId: $u) { id } }',
    { p: organisation.projectId, q: `${quarter++}-1`, u: organisation.userId },
  )
  assert.equal(errors, undefined)
}

const open = async (t: TestContext, size: { columns: number; rows: number }, args = ''): Promise<Terminal> => {
  const terminal = await startTerminal(t, { ...size, env })
  await terminal.type(`tidings dashboard ${args}\n`)
  await terminal.waitFor('● live')
  await terminal.waitFor('WHAT HAPPENED')
  await terminal.waitWhile('Looking')
  return terminal
}

suite('the dashboard in a terminal', { skip: noTmux, timeout: 120_000 }, () => {
  before(async () => {
    receiver = await startReceiver({
      answer: ({ path, body }) => (body.eventType === 'ping' ? { status: 200 } : (answers[path] ?? { status: 200 })),
    })
    server = await startTestServer('sqlite', { env: { TIDINGS_RETRY_SCHEDULE: '60,60' } })
    const { apiKey, apiSecret } = await server.token({ name: 'support' })
    env = { TIDINGS_URL: server.url, TIDINGS_API_KEY: apiKey, TIDINGS_API_SECRET: apiSecret, XDG_CONFIG_HOME: home }
    organisation = await addProject(server.database)
    answers = {
      '/refusing': { status: 400, body: 'no such quarter' },
      '/failing': { status: 503, body: 'out of paper' },
    }
    for (const path of ['/well', '/refusing', '/failing']) await createWebhook(path)
    await submitReport()
    await receiver.waitFor(requests => requests.length >= 6)
  })
  after(async () => {
    await server.stop()
    await receiver.close()
  })
  beforeEach(() => {
    answers = {
      '/refusing': { status: 400, body: 'no such quarter' },
      '/failing': { status: 503, body: 'out of paper' },
    }
  })

  test('webhooks stand there with their health, who needs attention first, and deliveries the newest first', async t => {
    const terminal = await open(t, { columns: 80, rows: 24 })
    const screen = await terminal.waitFor(/rejected \(400\)/)
    assert.match(screen, /all +all 3 webhooks +4 +1 +0 +1\n/)
    assert.match(screen, /active +\S+\/refusing +1 +1 +0 +0\n[^\n]+\/failing +1 +0 +0 +1\n[^\n]+\/well +2 +0 +0 +0\n/)
    assert.match(screen, /again in \d+ s \(503\)/)
    assert.match(screen, /✓ {2}\d\d:\d\d:\d\d {2}delivered \(200, \d+ ms\)/)
    await submitReport()
    await terminal.waitFor(/all 3 webhooks +5/, 20_000)
    await terminal.waitFor(/(WEBHOOK\n)(.*(queued|\(\d+.*)\n){3}/)
  })

  test('a delivery’s story is opened, and sent again after a question', async t => {
    const terminal = await open(t, { columns: 80, rows: 24 }, '--status rejected')
    await terminal.press('Enter')
    const story = await terminal.waitFor(/attempt 1 +answered 400/)
    assert.match(story, /Story · rejected \(400\)/)
    assert.match(story, /it said: no such quarter/)
    answers = {}
    await terminal.press('r')
    await terminal.waitFor(/Send project_report_quarterly_submitted to \S+refusing\s+again,\s+as a new delivery\? y\/n/)
    await terminal.press('n')
    await terminal.waitFor('Nothing was done.')
    await terminal.press('r')
    await terminal.waitFor('y/n')
    await terminal.press('y')
    await terminal.waitFor(/Queued as [0-9a-f-]{36}/)
    await terminal.waitFor(/Delivered after 1 attempt/)
  })
})

test('without a terminal it prints once how things are, as JSON or as text', { timeout: 60_000 }, async t => {
  const server = await startTestServer('sqlite')
  t.after(() => server.stop())
  const { apiKey, apiSecret } = await server.token()
  const env = { TIDINGS_URL: server.url, TIDINGS_API_KEY: apiKey, TIDINGS_API_SECRET: apiSecret }
  const asJson = await tidings(['dashboard'], { home, env })
  assert.equal(asJson.code, 0, asJson.stderr)
  assert.deepEqual(JSON.parse(asJson.stdout), { webhooks: [], deliveries: [] })
  const asText = await tidings(['dashboard', '--output', 'table'], { home, env })
  assert.equal(asText.code, 0, asText.stderr)
  assert.match(asText.stdout, /Webhooks/)
  assert.match(asText.stderr, /tidings webhooks create/)
})
