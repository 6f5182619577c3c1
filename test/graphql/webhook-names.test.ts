import assert from 'node:assert/strict'
import { after, before, it } from 'node:test'
import { describeEachEngine } from '../support/databases.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { startTestServer, type TestServer } from '../support/server.ts'

const CREATE = `mutation($url: String!, $name: String, $labels: JSON) {
  webhook: createWebhook(url: $url, name: $name, labels: $labels) { id name labels } }`
const CHANGE = `mutation($id: UUID!, $name: String, $labels: JSON) {
  webhook: upsertWebhook(id: $id, name: $name, labels: $labels) { id name labels } }`

describeEachEngine('names and labels of webhooks', engine => {
  let server: TestServer
  let receiver: Receiver
  before(async () => {
    server = await startTestServer(engine, { env: { TIDINGS_ROLES: 'api', TIDINGS_RATE_LIMIT: '0' } })
    receiver = await startReceiver()
  })
  after(async () => {
    await receiver.close()
    await server.stop()
  })

  const ask = async (document: string, variables: object = {}) => {
    const { data, errors } = await server.graphql(document, variables)
    assert.equal(errors, undefined, JSON.stringify(errors))
    return data
  }
  const create = async (given: object) => (await ask(CREATE, { url: receiver.url, ...given })).webhook
  const change = async (given: object) => (await ask(CHANGE, given)).webhook
  const refusedWith = async (given: object): Promise<{ code: string; argument: string; message: string }> => {
    const { errors } = await server.graphql(CREATE, { url: receiver.url, ...given })
    const [{ message, extensions }] = errors as [NonNullable<typeof errors>[0]]
    return { code: extensions.code, argument: extensions.argument, message }
  }
  const named = async (query: object): Promise<string[]> => {
    const { webhooks } = await ask('query($query: MangoQuery) { webhooks(query: $query) { name } }', { query })
    return webhooks.map(({ name }: { name: string }) => name)
  }

  it('are set when a webhook is created, and told whenever it is read', async () => {
    const webhook = await create({ name: 'Ledger', labels: { team: 'payments', env: 'live' } })
    assert.deepEqual(webhook, { id: webhook.id, name: 'Ledger', labels: { env: 'live', team: 'payments' } })
    const { webhooks } = await ask(`{ webhooks(query: {selector: {id: "${webhook.id}"}}) { id name labels } }`)
    assert.deepEqual(webhooks, [webhook])
  })

  it('are none where none are given', async () => {
    const { name, labels } = await create({})
    assert.deepEqual({ name, labels }, { name: null, labels: {} })
  })

  it('stay as they are when others are changed, and are taken away by empty ones', async () => {
    const { id } = await create({ name: 'Ledger', labels: { team: 'payments' } })
    assert.deepEqual(await change({ id, labels: { team: 'risk' } }), { id, name: 'Ledger', labels: { team: 'risk' } })
    assert.deepEqual(await change({ id, name: 'Books' }), { id, name: 'Books', labels: { team: 'risk' } })
    assert.deepEqual(await change({ id, name: '', labels: {} }), { id, name: null, labels: {} })
  })

  it('select, sort and count webhooks', async () => {
    await create({ name: 'b', labels: { shelf: 'x', row: '2' } })
    await create({ name: 'a', labels: { shelf: 'x', row: '3' } })
    await create({ name: 'c', labels: { shelf: 'y' } })
    assert.deepEqual(await named({ selector: { 'labels.shelf': 'x' }, sort: ['name'] }), ['a', 'b'])
    assert.deepEqual(
      await named({ selector: { 'labels.shelf': { $exists: true } }, sort: [{ 'labels.shelf': 'desc' }, 'name'] }),
      ['c', 'a', 'b'],
    )
    assert.deepEqual(await named({ selector: { 'labels.shelf': 'x' }, sort: [{ 'labels.row': 'desc' }] }), ['a', 'b'])
    assert.deepEqual(await named({ selector: { name: { $in: ['a', 'c'] } }, sort: ['name'] }), ['a', 'c'])
    const { counts } = await ask(
      `query($selector: MangoSelector) {
        counts(resource: webhooks, selector: $selector, by: ["labels.shelf"]) { key count } }`,
      { selector: { 'labels.shelf': { $exists: true } } },
    )
    assert.deepEqual(counts, [
      { key: { 'labels.shelf': 'x' }, count: 2 },
      { key: { 'labels.shelf': 'y' }, count: 1 },
    ])
  })

  it('select deliveries by the webhook they go to', async () => {
    const { id } = await create({ name: 'Only me', labels: { only: 'me' } })
    const { deliveries } = await ask(
      '{ deliveries(query: {selector: {webhook: {labels: {only: "me"}}}}) { webhookId webhook { name } } }',
    )
    assert.deepEqual(deliveries, [{ webhookId: id, webhook: { name: 'Only me' } }])
  })

  it('are refused with what would be right, before anything is pinged', async () => {
    const pings = receiver.requests.length
    for (const labels of [
      ['team'],
      'team',
      { 'a.b': 'x' },
      { '': 'x' },
      { team: 7 },
      { team: 'x'.repeat(101) },
      { team: 'a\u0000b' },
    ]) {
      const { code, argument } = await refusedWith({ labels })
      assert.deepEqual({ code, argument }, { code: 'BAD_USER_INPUT', argument: 'labels' }, JSON.stringify(labels))
    }
    const many = Object.fromEntries(Array.from({ length: 21 }, (_, index) => [`l${index}`, '']))
    assert.match((await refusedWith({ labels: many })).message, /at most 20/)
    assert.equal((await refusedWith({ name: 'x'.repeat(256) })).argument, 'name')
    assert.equal((await refusedWith({ name: '  ' })).argument, 'name')
    assert.equal(receiver.requests.length, pings)
    const { l20, ...twenty } = many
    assert.equal(Object.keys((await create({ labels: twenty })).labels).length, 20)
    // The longest there can be, each character the longest in JSON, in bytes and in the database.
    const long = Object.fromEntries(
      Array.from({ length: 20 }, (_, index) => [`${'k'.repeat(38)}${index + 10}`, '"'.repeat(100)]),
    )
    assert.deepEqual((await create({ name: '😀'.repeat(255), labels: long })).labels, long)
  })
})
