import assert from 'node:assert/strict'
import { createHmac } from 'node:crypto'
import { existsSync, openSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import { eventTypes } from '../../shared/vocabulary.ts'
import { type Answer, connectedTo, startStubServer } from './stub-server.ts'
import { startTidings, temporaryFolder, tidings } from './tidings.ts'

const webhook = {
  id: '01930000-0000-7000-8000-000000000001',
  url: 'https://example.com/hooks',
  events: [],
  organisationIds: [],
  projectIds: [],
  status: 'active',
  statusReason: null,
  createdAt: '2026-11-21T00:40:01.123+00:00',
  updatedAt: '2026-11-21T00:40:01.123+00:00',
  lastDeliveryAt: null,
  health: { delivered: 3, pending: 1, rejected: 0, dropped: 0, cancelled: 0 },
}

const server = await startStubServer()
const home = temporaryFolder()
/** Runs the command line against a server that gives these answers, one a request, the last one from then on. */
const run = (args: string[], ...answers: Answer[]) => {
  server.received.length = 0
  server.answer = () => (answers.length > 1 ? answers.shift()! : (answers[0] ?? { data: {} }))
  return tidings(args, { home, env: connectedTo(server) })
}
const refusal = (code: string, extensions: object = {}, message = 'No.'): Answer => ({
  errors: [{ message, extensions: { code, ...extensions } }],
})

test('webhooks create sends what is given as one list each, and prints the webhook', async () => {
  const args = [
    'webhooks',
    'create',
    webhook.url,
    '--events',
    'ping,token_expired',
    '--organisation',
    'Acme',
    '--organisation',
    'Blue',
  ]
  const found = (id: string) => ({ data: { rows: [{ id, name: id }] } })
  const { code, stdout } = await run(args, found('o1'), found('o2'), { data: { webhook } })
  assert.equal(code, 0)
  assert.deepEqual(server.received[2]!.variables, {
    url: webhook.url,
    events: ['ping', 'token_expired'],
    organisationIds: ['o1', 'o2'],
  })
  assert.deepEqual(JSON.parse(stdout), webhook)
})

test('--output id prints nothing but the id', async () => {
  const { stdout } = await run(['webhooks', 'create', webhook.url, '--output', 'id'], { data: { webhook } })
  assert.equal(stdout, `${webhook.id}\n`)
})

test('the order of a webhook is sent where it is given, and shown where there is one', async () => {
  const ordered = { ...webhook, ordering: 'project' }
  const args = ['webhooks', 'create', webhook.url, '--ordering', 'project', '--output', 'table']
  const { stdout } = await run(args, { data: { webhook: ordered } })
  assert.deepEqual(server.received[0]!.variables, { url: webhook.url, ordering: 'project' })
  assert.match(stdout, /Ordering +by project/)
  const found = { data: { webhooks: [ordered] } }
  await run(['webhooks', 'update', webhook.id, '--ordering', 'none'], found, { data: { webhook } })
  assert.deepEqual(server.received.at(-1)!.variables, { id: webhook.id, ordering: 'none' })
  const { code, stderr } = await run(['webhooks', 'create', webhook.url, '--ordering', 'event'])
  assert.equal(code, 2)
  assert.match(stderr, /none, project/)
})

test('--output ndjson prints a row a line', async () => {
  const { stdout } = await run(['webhooks', 'list', '-o', 'ndjson'], { data: { rows: [webhook, webhook] } })
  assert.deepEqual(
    stdout
      .trimEnd()
      .split('\n')
      .map(line => JSON.parse(line)),
    [webhook, webhook],
  )
})

test('a table has aligned columns and no colour codes where nobody watches', async () => {
  const other = { ...webhook, status: 'disabled', url: 'https://example.com/much/longer' }
  const { stdout } = await run(['webhooks', 'list', '--output', 'table'], { data: { rows: [webhook, other] } })
  const [title, first, second] = stdout.split('\n')
  assert.equal(title!.indexOf('EVENTS'), first!.indexOf('all'))
  assert.equal(first!.indexOf('all'), second!.indexOf('all'))
  assert.match(first!, /1 pending, 3 delivered/)
  // biome-ignore lint/suspicious/noControlCharactersInRegex: their absence is what is tested
  assert.doesNotMatch(stdout, /\u001b/)
})

test('--color colours a table even in a pipe, and NO_COLOR counts less than the flag', async () => {
  server.answer = () => ({ data: { rows: [webhook] } })
  const env = { ...connectedTo(server), NO_COLOR: '1' }
  const coloured = await tidings(['webhooks', 'list', '--output', 'table', '--color'], { home, env })
  assert.ok(coloured.stdout.includes('\u001b[32mactive'))
})

test('control characters in what the server says do not reach the terminal', async () => {
  const nasty = { ...webhook, url: 'https://example.com/\u001b]0;owned\u0007\u009b2J\u202e\nfake row' }
  const table = await run(['webhooks', 'list', '--output', 'table'], { data: { rows: [nasty] } })
  // biome-ignore lint/suspicious/noControlCharactersInRegex: their absence is what is tested
  assert.doesNotMatch(table.stdout, /[\u001b\u0007\u009b\u202e]/)
  assert.equal(table.stdout.trimEnd().split('\n').length, 2)
  const json = await run(['webhooks', 'list', '--output', 'json'], { data: { rows: [nasty] } })
  // biome-ignore lint/suspicious/noControlCharactersInRegex: their absence is what is tested
  assert.doesNotMatch(json.stdout, /[\u001b\u0007\u009b\u202e]/)
  assert.equal(JSON.parse(json.stdout)[0].url, nasty.url)
})

test('an empty table tells what to do next, on stderr', async () => {
  const { code, stdout, stderr } = await run(['webhooks', 'list', '--output', 'table'], { data: { rows: [] } })
  assert.equal(code, 0)
  assert.equal(stdout, '')
  assert.match(stderr, /tidings webhooks create/)
})

test('a program, or a pipe of any form, gets every row', async () => {
  const rows = Array.from({ length: 120 }, (_, index) => ({ ...webhook, id: `row-${index}` }))
  for (const args of [[], ['--output', 'table']]) {
    const { stdout } = await run(['webhooks', 'list', ...args], { data: { rows } })
    assert.equal((server.received[0]!.variables.query as { limit?: number }).limit, 1000)
    assert.match(stdout, /row-119/)
  }
})

/** A list of so many webhooks, of which a request gets as many as it asks for. */
const manyWebhooks = (length: number) => {
  const all = Array.from({ length }, (_, index) => ({ ...webhook, id: `row-${index}`, sortedBy0: webhook.createdAt }))
  server.received.length = 0
  server.answer = ({ variables }) => {
    const { limit, after } = variables.query as { limit: number; after?: string }
    const from = all.findIndex(({ id }) => id === after) + 1
    return { data: { rows: all.slice(from, from + limit) } }
  }
  return (...args: string[]) => tidings(['webhooks', 'list', ...args], { home, env: connectedTo(server) })
}

test('a list of ten thousand rows comes page by page, as one', async () => {
  const list = manyWebhooks(10_000)
  const rows = JSON.parse((await list('--output', 'json')).stdout)
  assert.deepEqual([rows.length, rows[9_999].id], [10_000, 'row-9999'])
  assert.equal(Object.hasOwn(rows[0], 'sortedBy0'), false)
  assert.deepEqual(
    server.received.slice(0, 2).map(({ variables }) => variables.query),
    [
      { sort: [{ createdAt: 'desc' }], limit: 1000 },
      { sort: [{ createdAt: 'desc' }], limit: 1000, after: 'row-999', afterValues: [webhook.createdAt] },
    ],
  )
})

test('--output id asks for ids alone', async () => {
  const list = manyWebhooks(3)
  assert.equal((await list('--output', 'id')).stdout, 'row-0\nrow-1\nrow-2\n')
  assert.match(server.received[0]!.query, /\{ rows: webhooks\(query: \$query\) \{ id sortedBy0: createdAt \} \}/)
})

test('a list of more than ten thousand rows is refused with what gets all of them, and never cut', async () => {
  const { code, stdout, stderr } = await manyWebhooks(10_001)()
  assert.equal(code, 1)
  assert.equal(stdout, '')
  assert.match(stderr, /more than 10,000 webhooks\.\n.*--all/)
})

test('filters, a selector, sorting and paging reach the API as one Mango query', async () => {
  const args = [
    'webhooks',
    'list',
    '--status',
    'inactive',
    '--selector',
    '{"url":{"$regex":"x"}}',
    '--sort=-createdAt,url',
    '--limit',
    '5',
    '--after',
    webhook.id,
    '--after-values',
    '["2026-11-21T00:40:01+00:00",null]',
  ]
  await run(args, { data: { rows: [] } })
  assert.deepEqual(server.received[0]!.variables.query, {
    selector: { $and: [{ status: 'inactive' }, { url: { $regex: 'x' } }] },
    sort: [{ createdAt: 'desc' }, { url: 'asc' }],
    limit: 5,
    after: webhook.id,
    afterValues: ['2026-11-21T00:40:01+00:00', null],
  })
})

test('a selector that is not JSON is wrong usage, and nothing is sent', async () => {
  const { code, stderr } = await run(['query', 'deliveries', '{status:rejected}'])
  assert.equal(code, 2)
  assert.match(stderr, /not JSON/)
  assert.equal(server.received.length, 0)
})

test('query asks for the fields named, below each other where they are dotted', async () => {
  const args = ['query', 'deliveries', '{"status":"rejected"}', '--fields', 'status,webhook.url,webhook.status']
  const rows = [{ id: 'd1', status: 'rejected', webhook: { url: 'https://a', status: 'active' } }]
  const { stdout } = await run([...args, '--output', 'table'], { data: { rows } })
  assert.match(server.received[0]!.query, /deliveries\(query: \$query\) \{ id status webhook \{ url status \} \}/)
  assert.match(stdout, /rejected +https:\/\/a +active/)
})

test('a webhook is updated only in what is given; “all” takes a limit away', async () => {
  await run(
    ['webhooks', 'update', webhook.id, '--events', 'all'],
    { data: { webhooks: [webhook] } },
    { data: { webhook } },
  )
  assert.deepEqual(server.received[1]!.variables, { id: webhook.id, events: [] })
})

test('an update of a webhook that does not exist creates none', async () => {
  const { code } = await run(['webhooks', 'update', webhook.id, '--endpoint', 'https://b'], { data: { webhooks: [] } })
  assert.equal(code, 3)
  assert.equal(server.received.length, 1)
})

test('disabling is refused where there is nobody to ask, and done with --yes', async () => {
  const answers: Answer[] = [
    { data: { webhooks: [webhook] } },
    { data: { webhook: { ...webhook, status: 'disabled' } } },
  ]
  const refused = await run(['webhooks', 'disable', webhook.id], ...answers)
  assert.equal(refused.code, 2)
  assert.match(refused.stderr, /--yes/)
  assert.ok(server.received.every(({ query }) => !query.includes('mutation')))
  const done = await run(['webhooks', 'disable', webhook.id, '--yes'], ...answers)
  assert.equal(done.code, 0)
  assert.deepEqual(server.received[1]!.variables, { id: webhook.id, status: 'disabled' })
})

test('--dry-run shows the request without secret or signature, and sends nothing', async () => {
  const { code, stdout } = await run(['webhooks', 'disable', webhook.id, '--dry-run'])
  assert.equal(code, 0)
  assert.equal(server.received.length, 0)
  const shown = JSON.parse(stdout)
  assert.equal(shown.url, `${server.url}/graphql`)
  assert.deepEqual(shown.body.variables, { id: webhook.id, status: 'disabled' })
  assert.deepEqual(Object.keys(shown), ['method', 'url', 'body'])
})

test('each request carries a nonce of its own', async () => {
  await run(['webhooks', 'list'], { data: { rows: [] } })
  const first = server.received[0]!.nonce
  await run(['webhooks', 'list'], { data: { rows: [] } })
  assert.ok(first)
  assert.notEqual(first, server.received[0]!.nonce)
})

for (const [code, exitCode] of [
  ['UNAUTHENTICATED', 4],
  ['FORBIDDEN', 4],
  ['NOT_FOUND', 3],
  ['BAD_USER_INPUT', 2],
  ['PING_FAILED', 1],
  ['CONFLICT', 1],
  ['RATE_LIMITED', 1],
  ['UNAVAILABLE', 5],
  ['INTERNAL_SERVER_ERROR', 1],
] as const) {
  test(`an answer of ${code} ends with exit code ${exitCode}`, async () => {
    const ended = await run(['webhooks', 'list', '--output', 'json'], refusal(code))
    assert.equal(ended.code, exitCode)
    assert.equal(ended.stdout, '')
    const { error } = JSON.parse(ended.stderr)
    assert.deepEqual(Object.keys(error), ['code', 'message', 'hint'])
    assert.equal(error.code, code)
    assert.equal(error.message, 'No.')
  })
}

test('what an endpoint says as it refuses its ping is shown, and cannot act on the terminal', async () => {
  const response = '{"error":"audience",\n"found":"\u001b[2Jhttps://other.example/"}'
  const { stderr } = await run(['webhooks', 'list'], refusal('PING_FAILED', { response }))
  assert.ok(stderr.includes('It said: {"error":"audience", "found":"'), stderr)
  assert.ok(!stderr.includes('\u001b'))
})

test('a pulled webhook whose ping nobody pulls is told of as one that is pulled', async () => {
  const message = 'https://tidings.example/pull/1 must answer the ping with 200, but it gave no answer: Nobody pulled.'
  const { stderr } = await run(['webhooks', 'list'], refusal('PING_FAILED', {}, message))
  assert.match(stderr, /tidings listen --pull/)
})

test('a clock that is off is shown beside the server’s', async () => {
  const serverTime = new Date(Date.now() - 3_600_000).toISOString()
  const { code, stderr } = await run(['whoami'], refusal('UNAUTHENTICATED', { reason: 'clock_skew', serverTime }))
  assert.equal(code, 4)
  assert.match(stderr, new RegExp(serverTime))
  assert.match(stderr, /This one is 1 h ahead/)
})

test('a server that is not there is exit code 5, and its address is named', async () => {
  const { code, stderr } = await tidings(['webhooks', 'list'], {
    home,
    env: { ...connectedTo(server), TIDINGS_URL: 'http://127.0.0.1:1' },
  })
  assert.equal(code, 5)
  assert.match(stderr, /http:\/\/127\.0\.0\.1:1 was not reached/)
})

test('something else that answers at the address is exit code 5, and said to be something else', async () => {
  const { code, stderr } = await run(['webhooks', 'list'], { text: '<h1>Welcome</h1>', status: 200 })
  assert.equal(code, 5)
  assert.match(stderr, /not as a Tidings server does/)
})

test('a query whose connection breaks is repeated, without an Idempotency-Key', async () => {
  assert.equal((await run(['webhooks', 'list'], 'reset')).code, 5)
  assert.equal(server.received.length, 3)
  assert.deepEqual(new Set(server.received.map(({ idempotencyKey }) => idempotencyKey)), new Set([undefined]))
})

test('a mutation is sent again under its key until it is answered, and --verbose says so', async () => {
  const busy: Answer = { errors: [{ message: 'Not now.', extensions: { code: 'UNAVAILABLE' } }], status: 503 }
  const running = { message: 'At work.', extensions: { code: 'CONFLICT', retryAfterSeconds: 1 } }
  const args = ['webhooks', 'create', webhook.url, '--output', 'id']
  const { code, stdout, stderr } = await run(
    [...args, '--verbose'],
    'reset',
    { text: '<h1>Bad gateway</h1>', status: 502 },
    busy,
    { errors: [running], status: 409 },
    { data: { webhook } },
  )
  assert.equal(code, 0)
  assert.equal(stdout, `${webhook.id}\n`)
  const sent = server.received.filter(({ query }) => query.startsWith('mutation'))
  const keys = sent.map(({ idempotencyKey }) => idempotencyKey)
  assert.equal(keys.length, 5)
  assert.equal(new Set(keys).size, 1)
  assert.match(keys[0]!, /^[0-9a-f-]{36}$/)
  assert.equal(new Set(sent.map(({ nonce }) => nonce)).size, 5, 'each is signed anew')
  assert.deepEqual(
    [...stderr.matchAll(/(\(ECONNRESET\)|answered 502|Not now|still working).*Trying again in/g)].map(([, why]) => why),
    ['(ECONNRESET)', 'answered 502', 'Not now', 'still working'],
  )
  await run(args, { data: { webhook } })
  assert.notEqual(server.received[0]!.idempotencyKey, keys[0], 'another run has another key')
})

test('a mutation that was refused is not sent again', async () => {
  const { code } = await run(['webhooks', 'create', webhook.url], refusal('CONFLICT', { status: 'inactive' }))
  assert.equal(code, 1)
  assert.equal(server.received.length, 1)
})

test('wrong usage is exit code 2, says what was meant, and is JSON where that was asked for', async () => {
  const { code, stdout, stderr } = await run(['webhooks', 'lst', '--output=json'])
  assert.equal(code, 2)
  assert.equal(stdout, '')
  const { error } = JSON.parse(stderr)
  assert.equal(error.code, 'USAGE')
  assert.match(error.message, /list/)
  assert.match(error.hint, /tidings webhooks --help/)
})

test('a misspelt choice is told with the one that was meant', async () => {
  const { code, stderr } = await run(['audit', 'list', '--operation', 'upsertWebhok'])
  assert.equal(code, 2)
  assert.match(stderr, /Did you mean upsertWebhook\?/)
})

test('a ping that is not delivered is shown, with exit code 1', async () => {
  const attempt = {
    number: 1,
    startedAt: webhook.createdAt,
    durationMs: 12,
    statusCode: 500,
    failure: null,
    failureDetail: null,
    response: 'oops',
    retryAfter: null,
  }
  const delivery = { id: 'd1', webhookId: webhook.id, status: 'pending', attempts: [attempt] }
  const { code, stdout, stderr } = await run(['webhooks', 'ping', webhook.id, '--output', 'table'], {
    data: { delivery },
  })
  assert.equal(code, 1)
  assert.match(stdout, /answered 500 +after 12 ms/)
  assert.match(stderr, /tidings deliveries show d1/)
})

test('the story of a delivery tells attempts, answers, waits, and what happens next', async () => {
  const next = new Date(Date.now() + 600_000)
  const none = { failure: null, failureDetail: null, response: null, retryAfter: null }
  const delivery = {
    id: 'd1',
    webhookId: webhook.id,
    webhook,
    eventType: 'project_report_quarterly_submitted',
    event: { id: 'e1', payload: { projectReport: { quarter: '2026-3' } } },
    status: 'pending',
    attemptCount: 3,
    nextAttemptAt: next.toISOString(),
    createdAt: '2026-11-21T00:40:01.000+00:00',
    finishedAt: null,
    attempts: [
      {
        ...none,
        number: 1,
        startedAt: '2026-11-21T00:40:01.000+00:00',
        durationMs: 500,
        statusCode: 500,
        response: 'out of paper',
      },
      {
        ...none,
        number: 2,
        startedAt: '2026-11-21T00:40:06.500+00:00',
        durationMs: 15_000,
        statusCode: null,
        failure: 'timeout',
        failureDetail: 'No answer within 15 s',
      },
      {
        ...none,
        number: 3,
        startedAt: '2026-11-21T00:40:31.500+00:00',
        durationMs: 10,
        statusCode: 429,
        retryAfter: '2026-11-21T00:50:31.510+00:00',
      },
    ],
  }
  const found = { data: { rows: [{ id: 'd1' }] } }
  const show = ['deliveries', 'show', 'd1d1', '--output', 'table']
  const { stdout } = await run(show, found, { data: { deliveries: [delivery] } })
  assert.match(stdout, /attempt 1 +answered 500 +after 500 ms\n.*out of paper\n +waited 5 s\n/)
  assert.match(stdout, /attempt 2 +no answer, timeout: No answer within 15 s +after 15 s\n +waited 10 s\n/)
  assert.match(stdout, /attempt 3 +answered 429, asked to wait 10 min/)
  assert.match(stdout, /Next: attempt 4 in (9|10) min/)
})

test('graphql reads document and variables from files and prints the data', async () => {
  const folder = temporaryFolder()
  writeFileSync(join(folder, 'q.graphql'), 'query ($id: UUID) { x }')
  const { stdout } = await run(['graphql', `@${join(folder, 'q.graphql')}`, '--variables', '{"id":"1"}'], {
    data: { x: [1] },
  })
  assert.deepEqual(server.received[0], {
    ...server.received[0],
    query: 'query ($id: UUID) { x }',
    variables: { id: '1' },
  })
  assert.deepEqual(JSON.parse(stdout), { x: [1] })
})

test('the headers that sign prints make a request that is served', async () => {
  const body = '{"query":"{ x }"}'
  const { stdout } = await run(['sign', '--body', body])
  server.answer = () => ({ data: { x: 1 } })
  const headers = stdout
    .trimEnd()
    .split('\n')
    .map(line => [line.slice(0, line.indexOf(':')), line.slice(line.indexOf(':') + 2)] as [string, string])
  const response = await fetch(`${server.url}/graphql`, { method: 'POST', headers, body })
  assert.equal(response.status, 200)
  assert.deepEqual(await response.json(), { data: { x: 1 } })
})

test('sign --verbose shows the string to sign, as a refusal says', async () => {
  const { stdout, stderr } = await run(['sign', '--path', '/graphql?a=b', '--body', 'x', '--verbose'])
  const [, signature] = /Signature=(.*)/.exec(stdout)!
  const [, text] = /The string to sign:\n(.*)\n\n/s.exec(stderr)!
  assert.match(text!, /^POST\n\/graphql\?a=b\n127\.0\.0\.1:\d+;/)
  const { TIDINGS_API_SECRET: secret } = connectedTo(server)
  assert.equal(createHmac('sha256', Buffer.from(secret!, 'base64')).update(text!).digest('base64'), signature)
})

test('a reader that stops early ends the command without an error', async () => {
  const rows = Array.from({ length: 999 }, () => webhook)
  server.answer = () => ({ data: { rows } })
  const child = startTidings(['webhooks', 'list'], { home, env: connectedTo(server) })
  let stderr = ''
  child.stderr.on('data', chunk => {
    stderr += chunk
  })
  child.stdout.once('data', () => child.stdout.destroy())
  const code = await new Promise(resolve => child.once('close', resolve))
  assert.equal(code, 0)
  assert.equal(stderr, '')
})

const full = { skip: existsSync('/dev/full') ? false : 'there is no /dev/full' }
test('output that cannot be written is a failure in a sentence', full, async () => {
  server.answer = () => ({ data: { rows: [webhook] } })
  const child = startTidings(['webhooks', 'list'], {
    home,
    env: connectedTo(server),
    stdout: openSync('/dev/full', 'w'),
  })
  const [stderr, code] = await Promise.all([text(child.stderr), new Promise(resolve => child.once('close', resolve))])
  assert.equal(code, 1)
  assert.match(stderr, /^Error: The output cannot be written: ENOSPC.*\n$/)
})

test('what has no id is wrong usage with --output id', async () => {
  const { code, stdout, stderr } = await run(['config', '--output', 'id'])
  assert.equal(code, 2)
  assert.equal(stdout, '')
  assert.match(stderr, /has no id/)
})

test('the help of webhooks create lists every event type there is', async () => {
  const { stdout } = await run(['webhooks', 'create', '--help'])
  assert.deepEqual(/Event types:\n((?: {2}\w+\n)+)/.exec(stdout)?.[1]?.trim().split(/\s+/), eventTypes)
})

test('an idempotency key that the server would refuse is not signed', async () => {
  for (const key of ['', ' ', 'Ä', 'x'.repeat(256)]) {
    const { code, stdout, stderr } = await run(['sign', '--idempotency-key', key])
    assert.deepEqual([code, stdout], [2, ''])
    assert.match(stderr, /1 to 255 printable ASCII characters/)
  }
})
