import assert from 'node:assert/strict'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { startSandbox } from './sandbox-server.ts'
import { noTerminal, openTerminal } from './terminal.ts'
import { temporaryFolder, tidings } from './tidings.ts'

// What a person does who sits at `listen`, and what it leaves out.

const PROGRAM = fileURLToPath(new URL('../../bin/tidings.js', import.meta.url))
const home = temporaryFolder()
await startSandbox(home)
const run = (...line: string[]) => tidings(line, { home })
const lines = (stdout: string): Record<string, unknown>[] =>
  stdout
    .trim()
    .split('\n')
    .map(line => JSON.parse(line))

test('listen --filter shows and counts only what matches, and takes everything else all the same', async () => {
  const trigger = `'${process.execPath}' '${PROGRAM}' trigger`
  const { stdout, code, stderr } = await run(
    ...['listen', '--register', '--port', '0', '--path', '/filtered', '--count', '1'],
    ...['--filter', '{"event.payload.projectReport":{"$exists":true}}'],
    ...[
      '--run',
      `${trigger} token_expired --webhook "$WEBHOOK_ID" && ${trigger} project_report_quarterly_overdue --webhook "$WEBHOOK_ID"`,
    ],
  )
  assert.equal(code, 0, stderr)
  const shown = lines(stdout).map(line => line.eventType)
  assert.deepEqual(shown, ['ping', 'project_report_quarterly_overdue'])
  const [other] = JSON.parse(
    (await run('deliveries', 'list', '--event-type', 'token_expired', '--output', 'json')).stdout,
  )
  assert.equal(other.status, 'delivered')
})

test('a filter that is no selector is wrong usage, before anything is registered', async () => {
  for (const filter of ['nonsense', '{"nosuchfield":1}']) {
    const { code, stderr } = await run('listen', '--register', '--port', '0', '--path', '/wrong', '--filter', filter)
    assert.equal(code, 2, stderr)
  }
  const { stdout } = await run('webhooks', 'list', '--output', 'json')
  assert.ok(!stdout.includes('/wrong'))
})

test('a webhook that listen receives from alone may be named by the end of its id', async () => {
  const [webhook] = JSON.parse((await run('webhooks', 'list', '--output', 'json')).stdout)
  const { code, stderr } = await run(
    ...['listen', '--port', '0', '--webhook-id', webhook.id.slice(-8), '--count', '1', '--run', 'exit 9'],
  )
  assert.equal(code, 1, stderr)
  const unknown = await run('listen', '--port', '0', '--webhook-id', 'ffffffff')
  assert.equal(unknown.code, 3, unknown.stderr)
})

test('at a terminal keys choose the next answer, show the last delivery, and send it again', {
  skip: noTerminal,
  timeout: 120_000,
}, async () => {
  const terminal = await openTerminal(
    [process.execPath, PROGRAM, 'listen', '--register', '--port', '0', '--path', '/keys'],
    { env: { XDG_CONFIG_HOME: home, HOME: home }, columns: 160, rows: 50 },
  )
  const shown = await terminal.waitForOutput(/Keys: r sends/)
  const [, id] = /Registered as webhook ([0-9a-f-]{36})/.exec(shown)!
  await terminal.type('r')
  await terminal.type('5')
  await terminal.waitForOutput(/The next delivery is answered with 500/)
  assert.equal((await run('trigger', 'token_expired', '--webhook', id!)).code, 0)
  await terminal.waitForOutput(/answered 500[\s\S]*answered 200/)
  await terminal.type('d')
  await terminal.waitForOutput(/"accessTokenId"[\s\S]*checks: /)
  await terminal.type('r')
  await terminal.waitForOutput(/Queued again, as [0-9a-f-]{36}/)
  await terminal.waitForOutput(/(answered 200[\s\S]*){3}/)
  await terminal.type('q')
  await terminal.waitForOutput(/The webhook is disabled/)
})
