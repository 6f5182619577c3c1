import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, test } from 'node:test'
import { startReceiver } from '../support/receiver.ts'
import { startSandbox } from './sandbox-server.ts'
import { temporaryFolder, tidings } from './tidings.ts'

// Names, labels and deletion as people use them, against a sandbox of its own.

const home = temporaryFolder()
await startSandbox(home)
const receiver = await startReceiver()
after(() => receiver.close())

const run = (...args: string[]) => tidings(args, { home })
const done = async (...args: string[]) => {
  const ended = await run(...args)
  assert.equal(ended.code, 0, ended.stderr)
  return ended.stdout
}
const create = async (...args: string[]) => JSON.parse(await done('webhooks', 'create', receiver.url, ...args))

test('a webhook is made with a name and labels, and found by its name wherever one is asked for', async () => {
  const made = await create('--name', 'Ledger', '--label', 'team=payments', '--label', 'note=a,b=c')
  assert.deepEqual(made.labels, { note: 'a,b=c', team: 'payments' })
  assert.equal(JSON.parse(await done('webhooks', 'show', 'Ledger')).id, made.id)
  assert.equal(JSON.parse(await done('webhooks', 'ping', 'Ledger')).webhook.name, 'Ledger')
  const deliveries = JSON.parse(await done('deliveries', 'list', '--webhook', 'Ledger'))
  assert.equal(deliveries.length, 2)
  for (const args of [['webhooks', 'list'], ['webhooks', 'show', 'Ledger'], ['deliveries', 'list'], ['dashboard']]) {
    assert.match(await done(...args, '--output', 'table'), /Ledger/, args.join(' '))
  }
  assert.match(await done('deliveries', 'show', deliveries[0].id, '--output', 'table'), /Webhook +Ledger/)
  assert.match(await done('webhooks', 'list', '--output', 'table'), /note=a,b=c, team=payments/)
  const ofTeam = ['webhooks', 'list', '--selector', '{"labels.team":"payments"}', '--sort', 'name', '--output', 'id']
  assert.equal(await done(...ofTeam), `${made.id}\n`)
})

test('labels given to an update take the place of others; none, and an empty name, take them away', async () => {
  const { id } = await create('--name', 'Books', '--label', 'team=payments')
  const update = async (...args: string[]) => {
    const { name, labels } = JSON.parse(await done('webhooks', 'update', id, ...args))
    return { name, labels }
  }
  assert.deepEqual(await update('--label', 'env=live'), { name: 'Books', labels: { env: 'live' } })
  assert.deepEqual(await update('--label', 'none', '--name', ''), { name: null, labels: {} })
  const { code, stderr } = await run('webhooks', 'update', id, '--label', 'team')
  assert.equal(code, 2)
  assert.match(stderr, /--label team=payments/)
})

test('a name that several have is told with the ids that it may mean', async () => {
  const first = await create('--name', 'Twin')
  const second = await create('--name', 'Twin')
  const { code, stderr } = await run('webhooks', 'show', 'Twin')
  assert.equal(code, 2)
  for (const { id } of [first, second]) assert.ok(stderr.includes(id))
  assert.equal((await run('webhooks', 'show', 'Nobody')).code, 3)
})

test('a webhook is made under an id of one’s own, and again without making another', async () => {
  const id = randomUUID()
  const other = `${receiver.url}/own-id`
  const again = (...args: string[]) => run('webhooks', 'upsert', other, '--id', id, ...args)
  const first = await again('--events', 'token_expired')
  assert.match(first.stderr, /answered its ping with 200 and is registered/)
  assert.equal(JSON.parse(first.stdout).id, id)
  const second = await again('--name', 'Own')
  assert.match(second.stderr, /There was a webhook with this id/)
  assert.doesNotMatch(second.stderr, /warning/)
  const { name, events } = JSON.parse(second.stdout)
  assert.deepEqual({ name, events }, { name: 'Own', events: ['token_expired'] })
  const byName = await run('webhooks', 'create', other, '--id', 'Own', '--label', 'team=books')
  assert.equal(JSON.parse(byName.stdout).id, id)
  const all = ['webhooks', 'list', '--selector', JSON.stringify({ url: other }), '--output', 'id']
  assert.equal(await done(...all), `${id}\n`)
})

test('a second webhook of a URL is made with a warning that names the first', async () => {
  const url = `${receiver.url}/twice`
  const first = await run('webhooks', 'create', url)
  assert.doesNotMatch(first.stderr, /already/)
  const { id } = JSON.parse(first.stdout)
  const second = await run('webhooks', 'create', url)
  assert.equal(second.code, 0, second.stderr)
  assert.notEqual(JSON.parse(second.stdout).id, id)
  assert.match(second.stderr, new RegExp(`This URL had a webhook already: ${id}`))
})

test('a webhook is deleted once it is disabled, and the way there is told', async () => {
  const { id } = await create('--name', 'Old')
  const early = await run('webhooks', 'delete', 'Old', '--yes')
  assert.equal(early.code, 1)
  assert.match(early.stderr, new RegExp(`webhooks disable ${id}`))
  const unasked = await run('webhooks', 'delete', 'Old')
  assert.equal(unasked.code, 2, unasked.stderr)
  await done('webhooks', 'disable', id, '--yes')
  assert.deepEqual(JSON.parse(await done('webhooks', 'delete', 'Old', '--yes')), { id })
  assert.equal((await run('webhooks', 'show', id)).code, 3)
  const [delivery] = JSON.parse(await done('deliveries', 'list', '--selector', `{"webhookId":"${id}"}`))
  assert.match(await done('deliveries', 'show', delivery.id, '--output', 'table'), /Webhook +Old +deleted/)
})

test('many webhooks are deleted by one command, which says what failed', async () => {
  const [first, second] = [await create(), await create()]
  await done('webhooks', 'disable', first.id, '--yes')
  const { code, stdout, stderr } = await run('webhooks', 'delete', first.id, second.id, '--yes', '--output', 'json')
  assert.equal(code, 1)
  assert.deepEqual(
    JSON.parse(stdout).map(({ id, outcome }: { id: string; outcome: string }) => [id, outcome]),
    [
      [first.id, 'deleted'],
      [second.id, 'failed'],
    ],
  )
  assert.match(stderr, /1 of 2 webhooks failed/)
})
