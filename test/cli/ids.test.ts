import assert from 'node:assert/strict'
import { test } from 'node:test'
import pc from 'picocolors'
import { renderTable } from '../../cli/output/table.ts'
import { describeDelivery } from '../../cli/resources/timeline.ts'
import { startSandbox } from './sandbox-server.ts'
import { connectedTo, startStubServer } from './stub-server.ts'
import { temporaryFolder, tidings } from './tidings.ts'

// Ids as people read and give them: their ends, and a webhook's URL in the place of one.

const home = temporaryFolder()
await startSandbox(home)
const run = (...line: string[]) => tidings(line, { home })
const json = async (...line: string[]) => JSON.parse((await run(...line)).stdout)
const register = async (endpoint: string) => {
  // It ends at once, with its command.
  const { stdout, code, stderr } = await run(
    'listen',
    '--register',
    '--port',
    '0',
    '--once',
    '--path',
    endpoint,
    '--run',
    'exit 9',
  )
  assert.equal(code, 1, stdout + stderr)
  return (await json('webhooks', 'list')).find((webhook: { url: string }) => webhook.url.endsWith(endpoint))
}
const webhook = await register('/one')
const [delivery] = await json('deliveries', 'list')

test('the end of an id that no other has is taken for the whole one', async () => {
  assert.equal((await json('webhooks', 'show', webhook.id.slice(-8))).id, webhook.id)
  assert.equal((await json('deliveries', 'show', delivery.id.slice(-8).toUpperCase())).id, delivery.id)
  assert.equal((await json('deliveries', 'list', '--webhook', webhook.id.slice(-8)))[0].id, delivery.id)
})

test('a webhook’s URL is taken for its id, with its scheme or without', async () => {
  assert.equal((await json('webhooks', 'show', webhook.url)).id, webhook.id)
  assert.equal((await json('webhooks', 'show', webhook.url.replace('http://', ''))).id, webhook.id)
})

test('the end of an id is taken for it by filters that are set, and by the end of an access token', async () => {
  const [organisation] = await json('organisations', 'list')
  const [project] = await json('projects', 'list')
  const limited = await json(
    ...['webhooks', 'update', webhook.id, '--yes'],
    ...['--organisation', organisation.id.slice(-10), '--project', project.id.slice(-10)],
  )
  assert.deepEqual([limited.organisationIds, limited.projectIds], [[organisation.id], [project.id]])
  const made = await json(
    ...['tokens', 'create', '--name', 'short', '--permissions', 'read', '--organisation', organisation.id.slice(-10)],
  )
  assert.deepEqual(made.accessToken?.organisationIds ?? made.organisationIds, [organisation.id])
  const id = made.accessToken?.id ?? made.id
  assert.equal((await json('tokens', 'revoke', id.slice(-10), '--yes')).id, id)
})

test('listen takes the end of the id of the webhook that it receives from', async () => {
  const listen = (id: string) => run('listen', '--port', '0', '--webhook-id', id, '--run', 'exit 9')
  const { code, stderr } = await listen(webhook.id.slice(-8))
  assert.equal(code, 1, stderr)
  assert.match(stderr, /Listening on/)
  assert.equal((await listen('ffffffff')).code, 3)
})

test('an end that several ids have is wrong usage, and names them', async () => {
  const rows = [
    { id: 'one', name: 'c6d7' },
    { id: 'two', name: 'Ledger' },
  ]
  const stub = await startStubServer(() => ({ data: { rows } }))
  const { code, stderr } = await tidings(['webhooks', 'show', 'c6d7'], { home, env: connectedTo(stub) })
  assert.equal(code, 2)
  assert.match(stderr, /c6d7 may be more than one webhook: one, two \(Ledger\)\./)
  // A webhook may be called so, too.
  const selector = { $or: [{ id: { $regex: 'c6d7$' } }, { name: 'c6d7' }] }
  assert.deepEqual(stub.received[0]!.variables, { query: { selector, limit: 5 } })
})

test('a name is taken for an id, in any case, and a report is called by its project and quarter', async () => {
  const [project] = await json('projects', 'list')
  const [user] = await json('users', 'list')
  const submit = ['--project', project.name.toUpperCase(), '--quarter', '2023-1', '--submitter', user.name]
  const report = await json('reports', 'submit', ...submit)
  assert.deepEqual([report.project.id, report.submitter.id], [project.id, user.id])
  const approved = await json('reports', 'approve', `${project.name} 2023-1`, '--approver', user.name)
  assert.equal(approved.id, report.id)
  const events = await json('events', 'list', '--project', project.name, '--organisation', project.organisation.name)
  assert.ok(events.length >= 2)
  const changes = await json('audit', 'list', '--subject', `${project.name} 2023-1`)
  assert.deepEqual(
    changes.map(({ operation }: { operation: string }) => operation),
    ['approveProjectReport'],
  )
})

test('a misspelt name is told with the one that exists, and what has none with some that do', async () => {
  const [organisation] = await json('organisations', 'list')
  const misspelt = `${organisation.name.slice(0, -1)}x`
  const { code, stderr } = await run('events', 'list', '--organisation', misspelt)
  assert.equal(code, 3)
  assert.ok(stderr.includes(`Did you mean ${organisation.name}?`), stderr)
  assert.match((await run('projects', 'list', '--organisation', 'Zzz')).stderr, /There are \w/)
})

test('a misspelt operation of the audit log is wrong usage', async () => {
  const { code, stderr } = await run('audit', 'list', '--operation', 'upsertWebhok')
  assert.equal(code, 2)
  assert.match(stderr, /upsertWebhook/)
})

test('a dry run shows the id of what is named, and sends nothing', async () => {
  const before = (await json('webhooks', 'show', webhook.id)).updatedAt
  const { stdout } = await run('webhooks', 'disable', webhook.url, '--dry-run')
  assert.deepEqual(JSON.parse(stdout).body.variables, { id: webhook.id, status: 'disabled' })
  assert.equal((await json('webhooks', 'show', webhook.id)).updatedAt, before)
})

test('an id that is nobody’s is exit code 3, in a filter too', async () => {
  const nobody = '00000000-0000-7000-8000-000000000000'
  for (const line of [
    ['webhooks', 'show', 'ffffffff'],
    ['webhooks', 'ping', 'https://nobody.example/hooks'],
    ['deliveries', 'show', nobody],
    ['deliveries', 'redeliver', 'ffffffff'],
    ['deliveries', 'list', '--webhook', nobody],
    ['deliveries', 'watch', '--webhook', nobody],
    ['events', 'list', '--project', nobody],
    ['reports', 'list', '--project', nobody],
    ['dashboard', '--webhook', nobody],
    ['doctor', '--webhook', 'Nobody'],
    ['doctor', '--webhook', nobody],
    ['audit', 'list', '--subject', nobody],
    ['reports', 'approve', 'Nowhere 2026-3', '--approver', nobody],
  ]) {
    const { code, stdout, stderr } = await run(...line)
    assert.equal(code, 3, `${line.join(' ')}: ${stderr}`)
    assert.equal(stdout, '')
  }
})

test('a list that found nothing says which filters were on', async () => {
  const { code, stdout, stderr } = await run('deliveries', 'list', '--status', 'dropped', '--since', '2h')
  assert.deepEqual([code, JSON.parse(stdout)], [0, []])
  assert.equal(stderr, 'No deliveries with --status dropped --since 2h.\n')
})

const columns = [
  { title: 'ID', isId: true as const },
  { title: 'URL', shrinks: 'url' as const },
  { title: 'NEXT', optional: true as const },
]
const id = '01a2021a-ba70-7411-85e9-43a90c4955c6'

test('ids are whole where they have room, and their ends where not', () => {
  const rows = [[id, 'https://example.com/a/rather/long/path/to/hooks', '–']]
  assert.match(renderTable(columns, rows, { width: 120 }), new RegExp(`^${id}`, 'm'))
  const narrow = renderTable(columns, rows, { width: 70 })
  assert.match(narrow, /^0c4955c6 {2}https:\/\/example\.com\/a\/rather\/long\/path\/to\/hooks/m)
})

test('below 64 columns each row is a block of lines that fit', () => {
  const rows = [[id, 'https://example.com/a/rather/long/path/to/hooks', 'in 5 s']]
  for (const width of [40, 63]) {
    const lines = renderTable(columns, [...rows, ...rows], { width })
      .trimEnd()
      .split('\n')
    assert.equal(lines.length, 7)
    for (const line of lines) assert.ok(line.length <= width, line)
    assert.match(lines[0]!, /^ID {4}\S*0c4955c6$/)
    assert.match(lines[2]!, /^NEXT {2}in 5 s$/)
  }
})

test('the story of a delivery that another’s 429 holds says so', () => {
  const until = '2026-11-21T01:00:00.000+00:00'
  const held = {
    ...{ id, webhookId: 'w', webhook: null, eventType: 'ping', event: null, status: 'pending' as const },
    ...{ attemptCount: 0, nextAttemptAt: until, createdAt: '2026-11-21T00:40:01.000+00:00', finishedAt: null },
    ...{ attempts: [], heldBy: { id: 'other', until } },
  }
  const story = describeDelivery(held, Date.parse('2026-11-21T00:41:00Z'), pc.createColors(false))
  assert.match(story, /It is held: the endpoint answered delivery other with 429 and asked to wait until/)
  const free = describeDelivery(
    { ...held, heldBy: undefined },
    Date.parse('2026-11-21T00:41:00Z'),
    pc.createColors(false),
  )
  assert.doesNotMatch(free, /held/)
})

test('what many type is understood: ls, rm, tail and orgs', async () => {
  assert.deepEqual(await json('orgs', 'ls'), await json('organisations', 'list'))
  for (const line of ['webhooks rm --help', 'deliveries tail --help'])
    assert.equal((await run(...line.split(' '))).code, 0)
})
