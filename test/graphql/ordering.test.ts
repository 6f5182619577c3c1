import assert from 'node:assert/strict'
import { after, before, it } from 'node:test'
import { describeEachEngine } from '../support/databases.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, type GraphqlAnswer, startTestServer, type TestServer } from '../support/server.ts'

const CREATE = `mutation($url: String!, $ordering: WebhookOrdering) {
  createWebhook(url: $url, ordering: $ordering) { id ordering } }`
const UPSERT = `mutation($id: UUID, $ordering: WebhookOrdering) {
  upsertWebhook(id: $id, ordering: $ordering) { id ordering } }`
const SUBMIT = `mutation($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
  submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) { id } }`
const DELIVERIES = `query($query: MangoQuery) {
  deliveries(query: $query) { id status nextAttemptAt waitsFor { id status waitsFor { id } } } }`

describeEachEngine('the order of a webhook', engine => {
  let server: TestServer
  let receiver: Receiver
  before(async () => {
    // Nothing claims deliveries here: what is pending stays so.
    server = await startTestServer(engine, { env: { TIDINGS_ROLES: 'api' } })
    receiver = await startReceiver()
  })
  after(async () => {
    await receiver?.close()
    await server?.stop()
  })

  const data = ({ data, errors }: GraphqlAnswer) => {
    assert.equal(errors, undefined, JSON.stringify(errors))
    return data
  }
  const create = async (ordering?: string) =>
    data(await server.graphql(CREATE, { url: receiver.url, ordering })).createWebhook
  const submit = async ({ projectId, userId }: { projectId: string; userId: string }, quarter: string) =>
    data(await server.graphql(SUBMIT, { projectId, quarter, submitterId: userId }))
  const pendingOf = async (webhookId: string) => {
    const query = { selector: { webhookId, eventType: { $ne: 'ping' } }, sort: [{ id: 'asc' }] }
    return data(await server.graphql(DELIVERIES, { query })).deliveries
  }

  it('is none if not asked for, as created if it is, and stays where an update does not name it', async () => {
    assert.equal((await create()).ordering, 'none')
    const { id, ordering } = await create('project')
    assert.equal(ordering, 'project')
    assert.equal(data(await server.graphql(UPSERT, { id })).upsertWebhook.ordering, 'project')
    assert.equal(data(await server.graphql(UPSERT, { id, ordering: 'none' })).upsertWebhook.ordering, 'none')
  })

  it('is refused where there is no such order, and nothing is stored', async () => {
    const { errors } = await server.graphql(CREATE, { url: receiver.url, ordering: 'organisation' })
    assert.equal(errors![0]!.extensions.code, 'BAD_USER_INPUT')
  })

  it('can be selected by', async () => {
    const { id } = await create('project')
    const document = 'query($query: MangoQuery) { webhooks(query: $query) { id } }'
    const { webhooks } = data(await server.graphql(document, { query: { selector: { ordering: 'project' } } }))
    assert.ok(webhooks.some((webhook: { id: string }) => webhook.id === id))
  })

  it('is not told of to a token that does not see the delivery that has the turn, nor found by it', async () => {
    const project = await addProject(server.database)
    const elsewhere = await addProject(server.database)
    const seeing = await server.token({ permissions: ['admin'], organisationIds: [project.organisationId] })
    const created = await server.graphql(CREATE, { url: receiver.url, ordering: 'project' }, seeing)
    const { id } = data(created).createWebhook
    for (const quarter of ['2026-1', '2026-2']) await submit(project, quarter)
    const [first, second] = await pendingOf(id)
    const found = async () => {
      const query = { selector: { webhookId: id, waitsFor: { $ne: null } } }
      return data(await server.graphql(DELIVERIES, { query }, seeing)).deliveries
    }
    assert.deepEqual(
      (await found()).map((one: { id: string }) => one.id),
      [second.id],
    )
    const { event_id } = await server.database.knex('deliveries').where('id', first.id).first()
    await server.database.knex('events').where('id', event_id).update({ organisation_id: elsewhere.organisationId })
    assert.deepEqual(await found(), [])
  })

  it('says of what waits for its turn which one has it, and when that is sent next', async () => {
    const { id } = await create('project')
    const project = await addProject(server.database)
    for (const quarter of ['2026-1', '2026-2', '2026-3']) await submit(project, quarter)
    const [first, second, third] = await pendingOf(id)
    assert.equal(first.waitsFor, null)
    assert.notEqual(first.nextAttemptAt, null)
    for (const one of [second, third]) {
      assert.equal(one.nextAttemptAt, null)
      assert.deepEqual(one.waitsFor, { id: first.id, status: 'pending', waitsFor: null })
    }
    const selector = { webhookId: id, waitsFor: { $ne: null } }
    const { deliveries } = data(await server.graphql(DELIVERIES, { query: { selector } }))
    assert.deepEqual(new Set(deliveries.map((delivery: { id: string }) => delivery.id)), new Set([second.id, third.id]))
  })

  it('holds for what happens from its change on, and waits for what was pending', async () => {
    const { id } = await create()
    const project = await addProject(server.database)
    await submit(project, '2026-1')
    data(await server.graphql(UPSERT, { id, ordering: 'project' }))
    await submit(project, '2026-2')
    const [first, second] = await pendingOf(id)
    assert.equal(second.waitsFor.id, first.id)
  })

  it('takes recovered events into the place that they have among what is pending', async () => {
    const { id } = await create('project')
    const project = await addProject(server.database)
    const since = new Date(Date.now() - 60_000).toISOString()
    const status = `mutation($id: UUID, $status: WebhookStatus) { upsertWebhook(id: $id, status: $status) { id } }`
    data(await server.graphql(status, { id, status: 'disabled' }))
    for (const quarter of ['2026-1', '2026-2']) await submit(project, quarter)
    data(await server.graphql(status, { id, status: 'active' }))
    await submit(project, '2026-3')
    const recover = `mutation($webhookId: UUID!, $since: DateTime!) {
      recoverDeliveries(webhookId: $webhookId, since: $since) { queued } }`
    assert.equal(data(await server.graphql(recover, { webhookId: id, since })).recoverDeliveries.queued, 2)
    const order = await server.database
      .knex('ordered_deliveries as o')
      .join('deliveries as d', 'd.id', 'o.delivery_id')
      .join('events as e', 'e.id', 'd.event_id')
      .where('d.webhook_id', id)
      .orderBy(['o.waits', 'o.event_at'])
      .pluck('e.payload')
    const quarters = order.map((payload: string) => JSON.parse(payload).projectReport.quarter)
    assert.deepEqual(quarters, ['2026-3', '2026-1', '2026-2'], 'the one that has its turn keeps it')
  })
})
