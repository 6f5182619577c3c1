import assert from 'node:assert/strict'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { connectedTo, startStubServer } from './stub-server.ts'
import { temporaryFolder, tidings } from './tidings.ts'

const server = await startStubServer()
const home = temporaryFolder()
const file = join(home, 'webhooks.json')
const id = '01930000-0000-7000-8000-000000000001'
const stored = {
  id,
  url: 'https://example.com/a',
  events: [],
  organisationIds: ['b', 'a'],
  projectIds: [],
  status: 'active',
}

/** Applies a file where the server has these webhooks; `refuse` says which URLs do not answer their ping. */
const apply = (content: unknown, webhooks: object[] = [], { args = [] as string[], refuse = '' } = {}) => {
  writeFileSync(file, typeof content === 'string' ? content : JSON.stringify(content))
  server.received.length = 0
  server.answer = ({ query, variables }) =>
    !query.includes('mutation')
      ? { data: { webhooks } }
      : variables.url === refuse
        ? { errors: [{ message: 'No.', extensions: { code: 'PING_FAILED' } }] }
        : { data: { webhook: { id: variables.id } } }
  return tidings(['webhooks', 'create', '--file', file, ...args], { home, env: connectedTo(server) })
}
const mutations = () =>
  server.received.filter(({ query }) => query.includes('mutation')).map(({ variables }) => variables)
const outcomes = (stdout: string) => JSON.parse(stdout).map(({ outcome }: { outcome: string }) => outcome)

test('a file creates what is missing, under ids that stay the same when it is run again', async () => {
  const entries = [
    { url: 'https://example.com/a', events: ['token_expired'] },
    { url: 'https://example.com/b', id },
  ]
  const { code, stdout } = await apply(entries)
  assert.equal(code, 0)
  assert.deepEqual(outcomes(stdout), ['created', 'created'])
  const [first, second] = mutations()
  assert.deepEqual(second, { url: 'https://example.com/b', id })
  await apply(entries)
  assert.deepEqual(mutations()[0], first)
})

test('what is wrong is told with its file, or as standard input', async () => {
  const { code, stderr } = await apply('[')
  assert.equal(code, 2)
  assert.ok(stderr.includes(file), stderr)
  const args = ['webhooks', 'create', '--file', '-']
  const piped = await tidings(args, { home, env: connectedTo(server), stdin: '[' })
  assert.equal(piped.code, 2)
  assert.match(piped.stderr, /Standard input/)
})

test('what is as the file says is left alone, whatever the order of its lists', async () => {
  const { code, stdout } = await apply([{ url: stored.url, organisationIds: ['a', 'b'] }], [stored])
  assert.equal(code, 0)
  assert.deepEqual(outcomes(stdout), ['unchanged'])
  assert.deepEqual(mutations(), [])
})

test('what differs is changed, and nothing else of it', async () => {
  const { stdout } = await apply([{ id, url: 'https://example.com/new', events: [] }], [stored])
  assert.deepEqual(JSON.parse(stdout)[0].changed, ['url'])
  assert.deepEqual(mutations(), [{ id, url: 'https://example.com/new' }])
})

test('an endpoint that does not answer keeps none of the others back, and the exit code is 1', async () => {
  const entries = [{ url: 'https://example.com/a' }, { url: 'https://example.com/b' }, { url: 'https://example.com/c' }]
  const { code, stdout, stderr } = await apply(entries, [], { refuse: 'https://example.com/b' })
  assert.equal(code, 1)
  assert.deepEqual(outcomes(stdout), ['created', 'failed', 'created'])
  assert.match(stderr, /Entry 2: No\./)
  assert.match(stderr, /1 of 3 webhooks could not be set up/)
})

test('--dry-run tells what would be done and changes nothing', async () => {
  const entries = [{ url: 'https://example.com/b' }, { url: stored.url, events: ['token_expired'] }]
  const { code, stdout } = await apply(entries, [stored], { args: ['--dry-run'] })
  assert.equal(code, 0)
  assert.deepEqual(outcomes(stdout), ['to create', 'to change'])
  assert.deepEqual(mutations(), [])
})

test('a line a webhook is read as well, and so is what webhooks list prints', async () => {
  const listed = { ...stored, statusReason: null, createdAt: 'x', updatedAt: 'x', lastDeliveryAt: null, health: {} }
  const lines = await apply(`{"url":"https://example.com/b"}\n\n{"url":"https://example.com/c"}\n`)
  assert.deepEqual(outcomes(lines.stdout), ['created', 'created'])
  const back = await apply([listed], [stored])
  assert.deepEqual(outcomes(back.stdout), ['unchanged'])
})

test('a list on standard input that is empty is nothing to do, and an empty file is a mistake', async () => {
  for (const stdin of ['', '\n', '[]']) {
    const given = { home, env: connectedTo(server), stdin }
    const { code, stdout, stderr } = await tidings(['webhooks', 'create', '--file', '-'], given)
    assert.deepEqual([code, stdout, stderr], [0, '[]\n', 'No webhooks: nothing to do.\n'])
  }
  assert.equal((await apply('')).code, 2)
})

test('every fault of a file is told at once, and nothing is sent', async () => {
  const { code, stderr } = await apply([
    { url: 'ftp://x', event: [] },
    { url: 'https://a' },
    5,
    { url: 'https://b', id: 'x' },
  ])
  assert.equal(code, 2)
  assert.match(stderr, /entry 1: "event" is unknown/)
  assert.match(stderr, /entry 1: its url is "ftp:\/\/x"/)
  assert.match(stderr, /entry 3: it is no JSON object/)
  assert.match(stderr, /entry 4: its id is "x"/)
  assert.equal(server.received.length, 0)
})

test('two entries that mean one webhook are a fault', async () => {
  const { code, stderr } = await apply([{ url: 'https://a' }, { url: 'https://a' }])
  assert.equal(code, 2)
  assert.match(stderr, /entry 2: the same url as entry 1/)
})

test('a URL that several webhooks have needs an id, and the message names them', async () => {
  const { code, stderr } = await apply([{ url: stored.url }], [stored, { ...stored, id: 'other' }])
  assert.equal(code, 1)
  assert.match(stderr, new RegExp(`${id}, other`))
  assert.deepEqual(mutations(), [])
})

test('a line that is not JSON is named by its number', async () => {
  const { code, stderr } = await apply(`{"url":"https://a"}\n{"url":\n`)
  assert.equal(code, 2)
  assert.match(stderr, /Line 2 of/)
})

test('a file that would disable a webhook is refused where there is nobody to ask, and done with --yes', async () => {
  const entries = [{ url: stored.url, status: 'disabled' }]
  const refused = await apply(entries, [stored])
  assert.equal(refused.code, 2)
  assert.match(refused.stderr, /Disable https:\/\/example\.com\/a, and cancel.*--yes/s)
  assert.deepEqual(mutations(), [])
  const done = await apply(entries, [stored], { args: ['--yes'] })
  assert.deepEqual(outcomes(done.stdout), ['changed'])
  assert.equal((await apply(entries, [{ ...stored, status: 'disabled' }])).code, 0)
})

test('signing, a secret of one’s own and static headers are in the file; what is read back keeps them', async () => {
  const secret = `whsec_${Buffer.alloc(24, 7).toString('base64')}`
  const signed = { url: 'https://example.com/s', signing: 'standard', secret, headers: { 'X-Api-Key': 'k-1' } }
  await apply([signed])
  const { id: made, ...sent } = mutations()[0]!
  assert.deepEqual(sent, signed)
  const listed = { ...stored, ...signed, id: made, secret: null, headers: ['X-Api-Key'] }
  const back = await apply([listed], [listed])
  assert.deepEqual(outcomes(back.stdout), ['unchanged'])
  const wrong = await apply([{ ...signed, secret: 'whsec_short', headers: { 'X-Api-Key': 7 } }])
  assert.equal(wrong.code, 2)
  assert.match(wrong.stderr, /entry 1: its secret is not whsec_/)
  assert.match(wrong.stderr, /entry 1: each of its headers needs a text/)
  assert.deepEqual(mutations(), [])
})

test('a file of static headers has each name once, and is shown without its values', async () => {
  const given = (text: string) => {
    writeFileSync(file, text)
    const args = ['webhooks', 'create', 'https://example.com/h', '--headers-file', file, '--dry-run']
    return tidings(args, { home, env: connectedTo(server) })
  }
  const shown = await given('# for the gateway\nX-Api-Key: top secret\nX-Tenant:7\n')
  assert.equal(shown.code, 0)
  assert.deepEqual(JSON.parse(shown.stdout).body.variables.headers, { 'X-Api-Key': '…', 'X-Tenant': '…' })
  const twice = await given('X-Api-Key: one\nX-Api-Key: two\n')
  assert.equal(twice.code, 2)
  assert.match(twice.stderr, /Line 2 of the headers names X-Api-Key again/)
})
