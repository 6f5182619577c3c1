import assert from 'node:assert/strict'
import { after, before, it } from 'node:test'
import { events } from '../../shared/events.ts'
import type { Credentials } from '../../shared/hmac.ts'
import { eventTypes } from '../../shared/vocabulary.ts'
import { describeEachEngine } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'

const SEND = `mutation($webhookId: UUID!, $eventType: EventType!, $payload: JSON) {
  delivery: sendExample(webhookId: $webhookId, eventType: $eventType, payload: $payload) {
    id eventType status event { id example organisationId payload } } }`

describeEachEngine('an example of an event', engine => {
  let server: TestServer
  let receiver: Receiver
  let project: Awaited<ReturnType<typeof addProject>>
  let owner: Credentials
  let webhookId: string
  before(async () => {
    server = await startTestServer(engine, { env: { TIDINGS_RATE_LIMIT: '0' } })
    receiver = await startReceiver()
    project = await addProject(server.database)
    owner = await server.token({ permissions: ['read', 'webhooks'], organisationIds: [project.organisationId] })
    const made = await ask(`mutation { made: createWebhook(url: "${receiver.url}", events: [token_expired]) { id } }`)
    webhookId = made.made.id
  })
  after(async () => {
    await server.stop()
    await receiver.close()
  })

  const ask = async (document: string, variables: object = {}, as = owner) => {
    const { data, errors } = await server.graphql(document, variables, as)
    assert.equal(errors, undefined, JSON.stringify(errors))
    return data
  }
  const send = async (given: object) => (await ask(SEND, { webhookId, ...given })).delivery
  const refused = async (given: object, as = owner) => {
    const { errors } = await server.graphql(SEND, { webhookId, ...given }, as)
    const [{ message, extensions }] = errors as [NonNullable<typeof errors>[0]]
    return { message, code: extensions.code, argument: extensions.argument }
  }
  const delivered = (id: string) =>
    eventually(
      'the example to be delivered',
      () => server.database.knex('deliveries').where({ id }).first('status'),
      ({ status }) => status === 'delivered',
    )

  for (const eventType of eventTypes) {
    it(`of the type ${eventType} arrives as the registry has it, whatever the webhook is limited to`, async () => {
      const delivery = await send({ eventType })
      assert.equal(delivery.eventType, eventType)
      assert.deepEqual(delivery.event, {
        id: delivery.event.id,
        example: true,
        organisationId: null,
        payload: events[eventType].example,
      })
      await delivered(delivery.id)
      const request = receiver.requests.find(({ body }) => body.eventId === delivery.id)!
      assert.equal(request.body.eventType, eventType)
      assert.deepEqual(request.body.payload, events[eventType].example)
    })
  }

  it('differs in what is given, but for its ids', async () => {
    const eventType = 'project_report_quarterly_submitted'
    const { projectReport } = events[eventType].example
    const delivery = await send({ eventType, payload: { projectReport: { quarter: '2031-4' } } })
    assert.deepEqual(delivery.event.payload, { projectReport: { ...projectReport, quarter: '2031-4' } })
    for (const [payload, told] of [
      [{ projectReport: { quarter: 'soon' } }, /projectReport\.quarter: .*2026-3/],
      [{ projectReport: { id: project.projectId } }, /projectReport\.id cannot be replaced/],
      [{ projectReport: { projectId: project.projectId } }, /projectReport\.projectId cannot be replaced/],
      [{ projectReport: 'x' }, /projectReport must be an object/],
      [{ other: 1 }, /other/],
      [[], /must be an object/],
      [{ projectReport: { submitterName: 'x'.repeat(9_000) } }, /8192 bytes/],
    ] as const) {
      const { code, argument, message } = await refused({ eventType, payload })
      assert.deepEqual({ code, argument }, { code: 'BAD_USER_INPUT', argument: 'payload' }, message)
      assert.match(message, told)
    }
  })

  it('is seen by those who see the webhook, and by nobody else', async () => {
    const { event } = await send({ eventType: 'token_expired' })
    const seenBy = async (as: Credentials) =>
      (await ask(`{ events(query: {selector: {id: "${event.id}", example: true}}) { id } }`, {}, as)).events.length
    const other = await addProject(server.database)
    const stranger = await server.token({ permissions: ['read'], organisationIds: [other.organisationId] })
    const all = await server.token({ permissions: ['read'] })
    assert.deepEqual([await seenBy(owner), await seenBy(all), await seenBy(stranger)], [1, 1, 0])
    const { code } = await refused(
      { eventType: 'ping' },
      await server.token({ organisationIds: [other.organisationId] }),
    )
    assert.equal(code, 'NOT_FOUND')
  })

  it('is nothing that a recovery makes up for', async () => {
    const { id } = await send({ eventType: 'token_expired' })
    await delivered(id)
    await server.database.knex('deliveries').where({ id }).update({ status: 'dropped' })
    for (const as of [owner, undefined]) {
      const { data } = await server.graphql(
        `mutation { recoverDeliveries(webhookId: "${webhookId}", since: "2026-01-01T00:00:00Z") { queued } }`,
        {},
        as,
      )
      assert.equal(data.recoverDeliveries.queued, 0)
    }
  })

  it('is sent again as any other delivery is', async () => {
    const { id } = await send({ eventType: 'token_expired' })
    const { again } = await ask(`mutation { again: redeliver(deliveryId: "${id}") { id event { example } } }`)
    assert.equal(again.event.example, true)
    await delivered(again.id)
  })

  it('is not sent to a webhook that is not active', async () => {
    const { made } = await ask(`mutation { made: createWebhook(url: "${receiver.url}") { id } }`)
    await ask(`mutation { upsertWebhook(id: "${made.id}", status: disabled) { id } }`)
    assert.equal((await refused({ webhookId: made.id, eventType: 'token_expired' })).code, 'CONFLICT')
  })
})
