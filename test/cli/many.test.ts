import assert from 'node:assert/strict'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { startIssuer } from './issuer.ts'
import { type Answer, connectedTo, type Received, startStubServer } from './stub-server.ts'
import { temporaryFolder, tidings } from './tidings.ts'

// Many of the same at once.

const home = temporaryFolder()
const id = (number: number) => `0193f000-0000-7000-8000-${String(number).padStart(12, '0')}`
const server = await startStubServer()
const run = (line: string[], answer: (received: Received) => Answer, stdin = '') => {
  server.received.length = 0
  server.answer = answer
  return tidings(line, { home, env: connectedTo(server), stdin })
}
const conflict: Answer = { errors: [{ message: 'It is not active.', extensions: { code: 'CONFLICT' } }] }
const redelivered = ({ variables }: Received): Answer =>
  variables.id === id(2) ? conflict : { data: { delivery: { id: `${variables.id}-again`, attempts: [] } } }

test('several deliveries are sent again, and one that cannot be keeps none of the others back', async () => {
  const ids = [id(1), id(2), id(3)]
  const { code, stdout, stderr } = await run(['deliveries', 'redeliver', ...ids], redelivered)
  assert.equal(code, 1)
  const results = JSON.parse(stdout).map(({ of, outcome }: { of: string; outcome: string }) => [of, outcome])
  assert.deepEqual(results, [
    [id(1), 'queued again'],
    [id(2), 'failed'],
    [id(3), 'queued again'],
  ])
  assert.match(stderr, new RegExp(`^${id(2)}: It is not active\\.\\n3 deliveries: 2 done, 1 failed\\.`))
})

test('an empty list of ids on standard input is nothing to do', async () => {
  for (const line of ['deliveries redeliver -', 'webhooks enable -', 'webhooks disable -', 'webhooks delete -']) {
    const { code, stdout, stderr } = await run(line.split(' '), redelivered, '\n')
    assert.deepEqual([code, JSON.parse(stdout)], [0, []], line)
    assert.match(stderr, /nothing to do/)
    assert.equal(server.received.length, 0)
  }
})

test('ids of deliveries are read from standard input, each once', async () => {
  const stdin = `${id(1)}\n${id(3)}\n${id(1)}\n`
  const { code, stdout } = await run(['deliveries', 'redeliver', '-', '--output', 'id'], redelivered, stdin)
  assert.equal(code, 0)
  assert.equal(stdout, `${id(1)}-again\n${id(3)}-again\n`)
})

test('what none of them can have ends it at once', async () => {
  const ids = Array.from({ length: 40 }, (_, index) => id(index + 1))
  const refused: Answer = { status: 401, errors: [{ message: 'No.', extensions: { code: 'UNAUTHENTICATED' } }] }
  const { code } = await run(['deliveries', 'redeliver', ...ids], () => refused)
  assert.equal(code, 4)
  assert.ok(server.received.length <= 10, `${server.received.length}`)
})

test('several webhooks are disabled after one question, and enabled again', async () => {
  const answer = ({ query, variables }: Received): Answer =>
    query.startsWith('query')
      ? { data: { webhooks: [{ id: 'w', url: 'https://example.com' }] } }
      : { data: { webhook: { ...variables } } }
  const refused = await run(['webhooks', 'disable', id(1), id(2)], answer)
  assert.equal(refused.code, 2)
  assert.match(refused.stderr, /Disable 2 webhooks and cancel what is waiting/)
  for (const [line, status] of [
    [['webhooks', 'disable', id(1), id(2), '--yes'], 'disabled'],
    [['webhooks', 'enable', id(1), id(2)], 'active'],
  ] as const) {
    const { code, stdout } = await run([...line], answer)
    assert.equal(code, 0)
    assert.deepEqual(
      JSON.parse(stdout).map((result: { outcome: string }) => result.outcome),
      [status, status],
    )
  }
})

test('--all walks through all pages and prints a row a line', async () => {
  const rows = Array.from({ length: 2_300 }, (_, index) => ({ id: id(index), name: `User ${index}` }))
  const page = ({ variables }: Received): Answer => {
    const { after, limit } = variables.query as { after?: string; limit: number }
    const from = after === undefined ? 0 : rows.findIndex(row => row.id === after) + 1
    return { data: { rows: rows.slice(from, from + limit).map(row => ({ ...row, sortedBy0: row.name })) } }
  }
  const { code, stdout } = await run(['users', 'list', '--all'], page)
  assert.equal(code, 0)
  const lines = stdout.trimEnd().split('\n')
  assert.deepEqual(
    lines.map(line => JSON.parse(line)),
    rows,
  )
  assert.equal(server.received.length, 3)
  assert.equal(JSON.parse((await run(['users', 'list', '--all', '--output', 'json'], page)).stdout).length, 2_300)
  assert.equal((await run(['users', 'list', '--all', '--limit', '5'], page)).code, 2)
})

test('many saved requests are verified, a line each, and a replay is found among them', async () => {
  const issuer = await startIssuer()
  const url = 'https://example.com/hooks'
  const save = (name: string, token: string, jti: string): string => {
    const file = join(home, name)
    writeFileSync(file, `POST ${url} HTTP/1.1\r\nauthorization: Bearer ${token}\r\n\r\n${issuer.bodyOf(jti)}`)
    return file
  }
  const [first, retry, other] = await Promise.all([
    issuer.token(url, 'one', { issuedAtSeconds: Math.floor(Date.now() / 1000) - 5 }),
    issuer.token(url, 'one'),
    issuer.token(url, 'two'),
  ])
  const files = [save('a', first, 'one'), save('b', retry, 'one'), save('c', other, 'two'), save('d', first, 'one')]
  const given = { home, env: { TIDINGS_URL: issuer.url } }
  const table = await tidings(['verify', '--request', ...files, '--output', 'table'], given)
  assert.equal(table.code, 6, table.stderr)
  assert.equal(table.stdout.trimEnd().split('\n').length, 4)
  assert.match(table.stdout, new RegExp(`✗ ${files[3]} {2}one {2}replay, the token of ${files[0]}$`, 'm'))
  assert.match(table.stderr, /4 requests: 3 valid, 1 not\./)
  const good = await tidings(['verify', '--request', ...files.slice(0, 3)], given)
  assert.equal(good.code, 0, good.stderr)
  assert.deepEqual(
    JSON.parse(good.stdout).map(({ ok }: { ok: boolean }) => ok),
    [true, true, true],
  )
})

test('--strict fails where the audience was not given', async () => {
  const issuer = await startIssuer()
  const token = await issuer.token('https://example.com/hooks', 'one')
  const given = { home, env: { TIDINGS_URL: issuer.url } }
  assert.equal((await tidings(['verify', token], given)).code, 0)
  const { code, stdout } = await tidings(['verify', token, '--strict'], given)
  assert.equal(code, 6)
  const audience = JSON.parse(stdout).checks.find((check: { name: string }) => check.name === 'audience')
  assert.match(audience.advice, /give --audience/)
  assert.equal((await tidings(['verify', token, '--strict', '--audience', 'https://example.com/hooks'], given)).code, 0)
})
