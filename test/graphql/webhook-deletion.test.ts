import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, it } from 'node:test'
import { purgeWebhooks } from '../../server/domain/webhooks.ts'
import type { Credentials } from '../../shared/hmac.ts'
import { describeEachEngine } from '../support/databases.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'

describeEachEngine('deleting a webhook', engine => {
  let server: TestServer
  let receiver: Receiver
  let project: Awaited<ReturnType<typeof addProject>>
  let owner: Credentials
  let stranger: Credentials
  before(async () => {
    const env = { TIDINGS_ROLES: 'api', TIDINGS_RATE_LIMIT: '0', TIDINGS_WEBHOOKS_PER_TOKEN: '4' }
    server = await startTestServer(engine, { env })
    receiver = await startReceiver()
    project = await addProject(server.database)
    const other = await addProject(server.database)
    owner = await server.token({ permissions: ['read', 'webhooks'], organisationIds: [project.organisationId] })
    stranger = await server.token({ permissions: ['read', 'webhooks'], organisationIds: [other.organisationId] })
  })
  after(async () => {
    await receiver.close()
    await server.stop()
  })

  const ask = async (document: string, variables: object = {}, as?: Credentials) => {
    const { data, errors } = await server.graphql(document, variables, as)
    assert.equal(errors, undefined, JSON.stringify(errors))
    return data
  }
  const codeOf = async (document: string, as?: Credentials): Promise<string> => {
    const { errors } = await server.graphql(document, {}, as)
    return errors?.[0]?.extensions.code
  }
  const create = async (): Promise<string> =>
    (await ask('mutation($url: String!) { made: createWebhook(url: $url) { id } }', { url: receiver.url }, owner)).made
      .id
  const disable = (id: string) => ask(`mutation { upsertWebhook(id: "${id}", status: disabled) { id } }`, {}, owner)
  const remove = (id: string) => `mutation { deleteWebhook(id: "${id}") }`
  const deleted = async (): Promise<string> => {
    const id = await create()
    await disable(id)
    assert.deepEqual(await ask(remove(id), {}, owner), { deleteWebhook: id })
    return id
  }
  const seen = async (id: string, as?: Credentials) =>
    (await ask(`{ webhooks(query: {selector: {id: "${id}"}}) { id } }`, {}, as)).webhooks
  const deliveriesTo = async (webhookId: string, as?: Credentials) =>
    (
      await ask(
        `{ deliveries(query: {selector: {webhookId: "${webhookId}"}}) { status webhook { id url status deletedAt } } }`,
        {},
        as,
      )
    ).deliveries

  it('needs it to be disabled first', async () => {
    const id = await create()
    assert.equal(await codeOf(remove(id), owner), 'CONFLICT')
    assert.equal((await seen(id)).length, 1)
    await disable(id)
    assert.deepEqual(await ask(remove(id), {}, owner), { deleteWebhook: id })
  })

  it('takes it out of every list, and makes its id that of none', async () => {
    const id = await deleted()
    for (const as of [owner, undefined]) {
      assert.deepEqual(await seen(id, as), [])
      for (const [document, code] of [
        [remove(id), 'NOT_FOUND'],
        [`mutation { pingWebhook(id: "${id}") { id } }`, 'NOT_FOUND'],
        [`mutation { recoverDeliveries(webhookId: "${id}", since: "2026-01-01T00:00:00Z") { queued } }`, 'NOT_FOUND'],
        [`mutation { upsertWebhook(id: "${id}", status: disabled) { id } }`, 'BAD_USER_INPUT'],
      ] as const) {
        assert.equal(await codeOf(document, as), code, document)
      }
    }
    const { counts } = await ask(`{ counts(resource: webhooks, selector: {id: "${id}"}) { count } }`)
    assert.deepEqual(counts, [{ count: 0 }])
  })

  it('leaves its deliveries to those who saw them, and tells of each that the webhook was deleted', async () => {
    const id = await deleted()
    for (const as of [owner, undefined]) {
      const [delivery] = await deliveriesTo(id, as)
      assert.equal(delivery.status, 'delivered')
      assert.equal(delivery.webhook.id, id)
      assert.equal(delivery.webhook.url, receiver.url)
      assert.equal(delivery.webhook.status, 'disabled')
      assert.match(delivery.webhook.deletedAt, /^\d{4}-/)
      const { counts } = await ask(
        `{ counts(resource: deliveries, selector: {webhook: {id: "${id}", url: "${receiver.url}"}}) { count } }`,
        {},
        as,
      )
      assert.deepEqual(counts, [{ count: 1 }])
    }
    assert.deepEqual(await deliveriesTo(id, stranger), [])
  })

  it('is for those who see it, and may change webhooks', async () => {
    const id = await create()
    await disable(id)
    assert.equal(await codeOf(remove(id), stranger), 'NOT_FOUND')
    assert.equal(await codeOf(remove(randomUUID()), owner), 'NOT_FOUND')
    const reader = await server.token({ permissions: ['read'] })
    assert.equal(await codeOf(remove(id), reader), 'FORBIDDEN')
    assert.equal((await seen(id)).length, 1)
    await ask(remove(id))
  })

  it('sends it nothing of what happens from then on', async () => {
    const id = await deleted()
    const { projectId, userId } = project
    const quarter = `${2000 + Math.floor(Math.random() * 5000)}-1`
    await ask(
      `mutation { submitProjectReport(projectId: "${projectId}", quarter: "${quarter}", submitterId: "${userId}") {
        id } }`,
    )
    assert.equal((await deliveriesTo(id)).length, 1)
  })

  it('makes room for another one of its token', async () => {
    const token = await server.token({ permissions: ['read', 'webhooks'], organisationIds: [project.organisationId] })
    const document = `mutation { made: createWebhook(url: "${receiver.url}") { id } }`
    const made: string[] = []
    for (let nth = 0; nth < 4; nth++) made.push((await ask(document, {}, token)).made.id)
    assert.equal(await codeOf(document, token), 'CONFLICT')
    await ask(
      `mutation { upsertWebhook(id: "${made[0]}", status: disabled) { id } ${'deleteWebhook'}(id: "${made[0]}") }`,
      {},
      token,
    )
    assert.equal(await codeOf(document, token), undefined)
  })

  it('is made good by an upsert with its id: a webhook anew, with nothing of the old one but its history', async () => {
    const token = await server.token({ permissions: ['read', 'webhooks'], organisationIds: [project.organisationId] })
    const id = randomUUID()
    const upsert = `mutation($events: [EventType!], $name: String) {
      webhook: upsertWebhook(id: "${id}", url: "${receiver.url}", events: $events, name: $name) {
        id name events status createdAt updatedAt deletedAt } }`
    await ask(upsert, { events: ['token_expired'], name: 'Old' }, token)
    await ask(`mutation { upsertWebhook(id: "${id}", status: disabled) { id } deleteWebhook(id: "${id}") }`, {}, token)
    assert.equal(
      await codeOf(
        upsert
          .replace('mutation($events: [EventType!], $name: String)', 'mutation')
          .replace(', events: $events, name: $name', ''),
        stranger,
      ),
      'NOT_FOUND',
    )
    const { webhook } = await ask(upsert, {}, token)
    assert.equal(webhook.createdAt, webhook.updatedAt)
    const { name, events, status, deletedAt } = webhook
    assert.deepEqual({ name, events, status, deletedAt }, { name: null, events: [], status: 'active', deletedAt: null })
    assert.equal((await deliveriesTo(id, token)).length, 2)
  })

  it('leaves its id to the token that used it, and to an admin that sees all, also when its row is gone', async () => {
    const id = await deleted()
    const upsert = `mutation { upsertWebhook(id: "${id}", url: "${receiver.url}") { id } }`
    const organisationIds = [project.organisationId]
    const others = [
      stranger,
      await server.token({ permissions: ['read', 'webhooks'], organisationIds }),
      await server.token({ permissions: ['admin'], organisationIds }),
      await server.token({ permissions: ['read', 'webhooks'] }),
    ]
    const before = receiver.requests.length
    const refuseOthers = async () => {
      for (const token of others) assert.equal(await codeOf(upsert, token), 'NOT_FOUND')
    }
    await refuseOthers()
    const { knex } = server.database
    await knex('deliveries').where('webhook_id', id).delete()
    await server.database.transaction(trx => purgeWebhooks(trx, Date.now() + 60_000, 200))
    assert.equal((await knex('webhooks').where({ id })).length, 0)
    await refuseOthers()
    assert.equal(receiver.requests.length, before)
    const remove = `mutation { upsertWebhook(id: "${id}", status: disabled) { id } deleteWebhook(id: "${id}") }`
    for (const token of [owner, await server.token({ permissions: ['admin'] })]) {
      await ask(upsert, {}, token)
      await ask(remove, {}, token)
    }
  })

  it('ends it for good once its deliveries are gone', async () => {
    const id = await deleted()
    const { knex } = server.database
    const purge = () => server.database.transaction(trx => purgeWebhooks(trx, Date.now() + 60_000, 200))
    await purge()
    assert.equal((await knex('webhooks').where({ id })).length, 1)
    await knex('deliveries').where('webhook_id', id).delete()
    await purge()
    assert.equal((await knex('webhooks').where({ id })).length, 0)
  })
})
