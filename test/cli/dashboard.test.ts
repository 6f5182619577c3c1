import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, beforeEach, suite, test } from 'node:test'
import { type Answer, type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'
import { noTerminal, openShell, type Terminal } from './terminal.ts'
import { temporaryFolder, tidings } from './tidings.ts'

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
    'mutation ($p: UUID!, $q: String!, $u: UUID!) ' +
      '{ submitProjectReport(projectId: $p, quarter: $q, submitterId: $u) { id } }',
    { p: organisation.projectId, q: `${quarter++}-1`, u: organisation.userId },
  )
  assert.equal(errors, undefined)
}

const open = async (size: { columns: number; rows: number }, args = ''): Promise<Terminal> => {
  const terminal = await openShell({ ...size, env })
  await terminal.type(`tidings dashboard ${args}\n`)
  await terminal.waitFor('● live')
  await terminal.waitFor('WHAT HAPPENED')
  await terminal.waitWhile('Looking')
  return terminal
}

suite('the dashboard in a terminal', { skip: noTerminal, timeout: 240_000 }, () => {
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

  test('webhooks are shown with their health, who needs attention first, and deliveries the newest first', async () => {
    const terminal = await open({ columns: 80, rows: 24 })
    const screen = await terminal.waitFor(/rejected \(400\)/)
    assert.match(screen, /WEBHOOK +DELIVERED +FAILED +PENDING +LAST DAY *\n/)
    assert.match(screen, /all +all 3 webhooks +4 +1 +1 *\n/)
    assert.match(
      screen,
      /active +\S+\/refusing +1 +1 +0[^\n]*\n[^\n]+\/failing +1 +0 +1[^\n]*\n[^\n]+\/well +2 +0 +0[^\n]*\n/,
    )
    assert.match(screen, /again in \d+ s \(503\)/)
    assert.match(screen, /✓ {2}\d\d:\d\d:\d\d {2}delivered \(200, \d+ ms\)/)
    await submitReport()
    await terminal.waitFor(/all 3 webhooks +5/)
    await terminal.waitFor(/(WEBHOOK\n)(.*(queued|\(\d+.*)\n){3}/)
  })

  test('a delivery’s story is opened, and sent again after a question', async () => {
    const terminal = await open({ columns: 80, rows: 24 }, '--status rejected')
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

  test('a wide terminal has the story of what is selected beside the lists', async () => {
    const terminal = await open({ columns: 200, rows: 60 })
    await terminal.press('Down')
    const screen = await terminal.waitFor(/attempt 1/)
    await terminal.waitFor(/\/well .* █ /)
    assert.match(screen, /─ Webhooks · 3 ─.*─ Story · /)
    assert.match(screen, /^> . {2}\d\d:\d\d:\d\d/m)
  })

  test('the list is limited by status, by webhook and by what is searched for, and esc shows all again', async () => {
    const terminal = await open({ columns: 100, rows: 30 })
    await terminal.waitFor(/rejected \(400\)/)
    await terminal.press('s', 's')
    const failed = await terminal.waitWhile(/delivered \(200/)
    assert.match(failed, /Deliveries · rejected or dropped/)
    await terminal.press('Escape')
    await terminal.waitFor(/delivered \(200/)
    await terminal.press('/')
    await terminal.type('failing')
    await terminal.press('Enter')
    await terminal.waitFor(/Deliveries · “failing”/)
    await terminal.waitWhile(/✗|\/well\n/)
    await terminal.press('Escape', '/')
    await terminal.type('nothing like it')
    await terminal.press('Enter')
    await terminal.waitFor('None are like that. Esc shows them all again.')
    await terminal.press('Escape', 'Tab', 'Down')
    const limited = await terminal.waitFor(/Deliveries · \S+\/(refusing|failing|well)/)
    assert.doesNotMatch(limited, /EVENT +WEBHOOK/)
  })

  test('a webhook is pinged, disabled, enabled and recovered, each after a question that names it', async () => {
    const id = await createWebhook('/own')
    const terminal = await open({ columns: 80, rows: 24 }, `--webhook ${id}`)
    const act = async (key: string, question: RegExp, outcome: RegExp) => {
      await terminal.press(key)
      await terminal.waitFor(question)
      await terminal.press('y')
      await terminal.waitFor(outcome)
    }
    await act('p', /Send a ping to \S+\/own now\? y\/n/, /Ping delivered: answered 200 +after/)
    await act('d', /Disable \S+\/own\?/, /\/own is disabled\./)
    await terminal.waitFor(/> disabled/)
    await act('e', /Make \S+\/own\s+active\?/, /\/own is active\./)
    await terminal.press('c')
    await terminal.waitFor(/has not\s+acknowledged\s+since:\s+2h/)
    await terminal.press('BSpace', 'BSpace')
    await terminal.type('soon')
    await terminal.press('Enter')
    await terminal.waitFor(/Give how long ago/)
    await terminal.press('C-u')
    await terminal.type('1d')
    await act('Enter', /since\s+\d{4}-\d\d-\d\d/, /Nothing to send/)
    await server.graphql('mutation ($id: UUID!) { upsertWebhook(id: $id, status: disabled) { id } }', { id })
    await act('p', /Send a ping/, /The webhook is disabled\. Set its status to active/)
  })

  test('a token that may only read is told so, by what it lacks', async () => {
    const { apiKey, apiSecret } = await server.token({ name: 'viewer', permissions: ['read'] })
    const reading = await openShell({
      columns: 80,
      rows: 24,
      env: { ...env, TIDINGS_API_KEY: apiKey, TIDINGS_API_SECRET: apiSecret },
    })
    await reading.type('tidings dashboard\n')
    await reading.waitFor('token viewer (read only)')
    await reading.press('d')
    await reading.waitFor(/may read but not disable: it lacks the\s+permission “webhooks”/)
  })

  test('it keeps to a terminal that changes its size, and asks for more room where there is too little', async () => {
    const terminal = await open({ columns: 80, rows: 24 })
    for (const [columns, rows] of [
      [120, 40],
      [60, 15],
      [180, 30],
    ] as const) {
      await terminal.resize(columns, rows)
      // On one screen: a frame of the new width may come before one of the new height.
      const screen = await terminal.waitFor(
        new RegExp(`^Tidings.{${columns - 10}}UTC\n(?:.*\n){${rows - 2}}.*c recover\\s*$`),
      )
      assert.equal(screen.match(/Webhooks/g)?.length, 1)
    }
    await terminal.resize(50, 10)
    await terminal.waitFor(/needs 60 columns and 15 rows/)
    await terminal.resize(80, 24)
    await terminal.waitFor('WHAT HAPPENED')
  })

  for (const [how, end] of [
    ['q', async (terminal: Terminal) => terminal.press('q')],
    ['ctrl-C', async (terminal: Terminal) => terminal.press('C-c')],
    ['SIGTERM', async (terminal: Terminal) => terminal.kill('SIGTERM')],
    ['SIGINT from elsewhere', async (terminal: Terminal) => terminal.kill('SIGINT')],
    // Not one that it sends itself: it is as if a bug had thrown.
    ['a crash', async (terminal: Terminal) => terminal.kill('SIGUSR2')],
  ] as const) {
    test(`the terminal is as it was after ${how}`, async () => {
      const terminal = await openShell({ columns: 80, rows: 24, env: { ...env, NODE_OPTIONS: CRASHING } })
      await terminal.type('echo first; stty -a | cksum; tidings dashboard\n')
      await terminal.waitFor('● live')
      assert.equal(await terminal.ask('alternate_on'), '1')
      assert.equal(await terminal.ask('cursor_flag'), '0')
      await end(terminal)
      const left = await terminal.waitFor(/^[$#] *\n*$/m)
      if (how === 'a crash') assert.match(left, /Error: a bug\n/)
      await terminal.type('stty -a | cksum; echo last\n')
      const screen = await terminal.waitFor(/^last$/m)
      assert.equal(await terminal.ask('alternate_on'), '0')
      assert.equal(await terminal.ask('cursor_flag'), '1')
      assert.doesNotMatch(screen, /Webhooks/)
      const [before, after] = screen.match(/^\d+ \d+$/gm)!
      assert.equal(after, before)
    })
  }

  test('NO_COLOR is kept: a screen without a single colour', async () => {
    const terminal = await openShell({ columns: 80, rows: 24, env: { ...env, NO_COLOR: '1' } })
    await terminal.type('tidings dashboard\n')
    await terminal.waitFor(/rejected \(400\)/)
    await terminal.press('Down')
    await terminal.waitFor(/^> ./m)
    const screen = await terminal.screen({ codes: true })
    // biome-ignore lint/suspicious/noControlCharactersInRegex: colour codes begin with one
    assert.doesNotMatch(screen, /\x1b\[[0-9;]*[1-9][0-9;]*m/)
  })
})

/** Lets a signal stand for a bug: what it throws is caught nowhere. */
const CRASHING = `--import=data:text/javascript,${encodeURIComponent(
  "process.on('SIGUSR2', () => { throw new Error('a bug') })",
)}`

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

test('no other command loads what draws screens, which would cost it a third of a second', async () => {
  const file = join(home, 'seen.txt')
  const hooks = `import { appendFileSync } from 'node:fs'; import { registerHooks } from 'node:module'
    registerHooks({ load: (url, context, next) => {
      if (/node_modules\\/(ink|react)\\//.test(url)) appendFileSync(${JSON.stringify(file)}, url + '\\n')
      return next(url, context)
    } })`
  const env = { NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(hooks)}` }
  for (const args of [
    ['--help'],
    ['dashboard', '--help'],
    ['deliveries', '--help'],
    ['webhooks', 'list'],
    ['dashboard'],
  ]) {
    await tidings(args, { home, env })
  }
  assert.equal(existsSync(file), false)
})
