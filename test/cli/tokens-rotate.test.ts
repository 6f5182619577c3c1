import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { eventually } from '../support/eventually.ts'
import { startReceiver } from '../support/receiver.ts'
import { startSandbox } from './sandbox-server.ts'
import { temporaryFolder, tidings } from './tidings.ts'

// Access tokens replaced without a gap, against a sandbox of its own.

const home = temporaryFolder()
await startSandbox(home)
const receiver = await startReceiver()
after(() => receiver.close())

const run = (...args: string[]) => tidings(args, { home })
const json = async (...args: string[]) => {
  const { code, stdout, stderr } = await run(...args)
  assert.equal(code, 0, stderr)
  return JSON.parse(stdout)
}
const [organisation] = await json('organisations', 'list')
const create = (name: string, ...args: string[]) =>
  json(...['tokens', 'create', '--name', name, '--permissions', 'read,webhooks', '--save', name], ...args)

test('a rotated token has the name, permissions, sight and lifetime of the old one, and both are valid', async () => {
  const old = await create('ci', '--organisation', organisation.name, '--expires', '30d')
  const next = await json('tokens', 'rotate', 'ci', '--save', 'next')
  assert.notEqual(next.id, old.id)
  const { name, permissions, organisationIds } = old
  assert.deepEqual(
    { name: next.name, permissions: next.permissions, organisationIds: next.organisationIds },
    { name, permissions, organisationIds },
  )
  const days = (Date.parse(next.expiresAt) - Date.now()) / 86_400_000
  assert.ok(days > 29 && days < 31, `${days}`)
  for (const profile of ['ci', 'next']) assert.equal((await run('whoami', '--profile', profile)).code, 0)
})

test('--finish revokes the old one, and asks for it', async () => {
  const unasked = await run('tokens', 'rotate', 'ci', '--finish')
  assert.equal(unasked.code, 2)
  assert.match(unasked.stderr, /Revoke the old ci, last used/)
  await json('tokens', 'rotate', 'ci', '--finish', '--yes')
  assert.deepEqual(
    [(await run('whoami', '--profile', 'ci')).code, (await run('whoami', '--profile', 'next')).code],
    [4, 0],
  )
  const again = await run('tokens', 'rotate', 'ci', '--finish', '--yes')
  assert.equal(again.code, 1)
  assert.match(again.stderr, /There is no newer access token/)
})

test('with --ends the old one ends by itself at that time', async () => {
  const old = await create('timed')
  const next = await json('tokens', 'rotate', 'timed', '--ends', '2h', '--save', 'timed-next')
  const tokens = await json('tokens', 'list', '--selector', '{"name":"timed"}')
  const expiryOf = (id: string) => tokens.find((token: { id: string }) => token.id === id).expiresAt
  assert.ok(Math.abs(Date.parse(expiryOf(old.id)) - Date.now() - 7_200_000) < 600_000)
  assert.equal(expiryOf(next.id), null)
})

test('the webhooks of a token go on when it is rotated, and the new one sees and changes them', async () => {
  await create('owner', '--organisation', organisation.name)
  const webhook = await json('webhooks', 'create', receiver.url, '--profile', 'owner')
  await json('tokens', 'rotate', 'owner', '--save', 'owner-next')
  await json('tokens', 'rotate', 'owner', '--finish', '--yes')
  const changed = await json('webhooks', 'update', webhook.id, '--name', 'Kept', '--profile', 'owner-next')
  assert.equal(changed.name, 'Kept')
  const [project] = await json('projects', 'list', '--organisation', organisation.name)
  const [user] = await json('users', 'list')
  await json('reports', 'submit', '--project', project.id, '--quarter', '2022-1', '--submitter', user.id)
  await eventually(
    'the event to arrive at the webhook of the revoked token',
    () => receiver.requests.map(({ body }) => body.eventType),
    types => types.includes('project_report_quarterly_submitted'),
  )
})
