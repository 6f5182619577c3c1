import assert from 'node:assert/strict'
import { after, before, beforeEach, it } from 'node:test'
import { v7 as uuid } from 'uuid'
import { insertMany } from '../../server/database/connect.ts'
import type { Credentials } from '../../shared/hmac.ts'
import { describeEachEngine } from '../support/databases.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'
import { addWebhook } from '../support/webhooks.ts'

const REDELIVER = `mutation($webhookId: UUID!, $query: MangoQuery!, $dryRun: Boolean) {
  redeliverMany(webhookId: $webhookId, query: $query, dryRun: $dryRun) { webhookId queued resumeSince resumeAfter } }`

// Nothing is claimed here: what is queued stays pending until the test says what became of it.
describeEachEngine('redelivering many', engine => {
  let server: TestServer
  let project: Awaited<ReturnType<typeof addProject>>
  let owner: Credentials & { id: string }
  let webhookId: string
  before(async () => {
    server = await startTestServer(engine, { env: { TIDINGS_ROLES: 'api', TIDINGS_RATE_LIMIT: '0' } })
    project = await addProject(server.database)
    owner = await server.token({ permissions: ['read', 'webhooks'], organisationIds: [project.organisationId] })
  })
  beforeEach(async () => {
    webhookId = await addWebhook(server.database.knex, { accessTokenId: owner.id })
  })
  after(() => server.stop())

  /** So many events with a delivery each to the webhook; answers with the events' ids, in their order. */
  const delivered = async (
    number: number,
    { status = 'delivered', type = 'project_report_quarterly_overdue', organisationId = project.organisationId } = {},
  ): Promise<string[]> => {
    const now = Date.now() - 60_000
    const made = Array.from({ length: number }, () => ({ eventId: uuid(), id: uuid() }))
    await insertMany(
      server.database.knex,
      'events',
      made.map(({ eventId }, nth) => ({
        id: eventId,
        type,
        organisation_id: organisationId,
        project_id: organisationId === project.organisationId ? project.projectId : null,
        payload: JSON.stringify({ nth }),
        created_at: now + nth,
      })),
    )
    await insertMany(
      server.database.knex,
      'deliveries',
      made.map(({ eventId, id }, nth) => ({
        id,
        event_id: eventId,
        event_type: type,
        webhook_id: webhookId,
        status,
        created_at: now + nth,
        finished_at: now + nth,
      })),
    )
    return made.map(({ eventId }) => eventId)
  }
  const redeliver = async (query: object, more: object = {}, as: Credentials = owner) => {
    const { data, errors } = await server.graphql(REDELIVER, { webhookId, query, ...more }, as)
    assert.equal(errors, undefined, JSON.stringify(errors))
    return data.redeliverMany
  }
  const codeOf = async (given: object, as: Credentials = owner) => {
    const { errors } = await server.graphql(REDELIVER, { webhookId, query: {}, ...given }, as)
    return errors?.[0]?.extensions.code
  }
  const pending = (): Promise<string[]> =>
    server.database
      .knex('deliveries')
      .where({ webhook_id: webhookId, status: 'pending' })
      .orderBy('id')
      .pluck('event_id')
  const acknowledge = async () => {
    const { knex } = server.database
    await knex('delivery_queue').where({ webhook_id: webhookId }).delete()
    await knex('deliveries').where({ webhook_id: webhookId }).update({ status: 'delivered', finished_at: Date.now() })
  }

  it('queues the events of what matches, behind what is new', async () => {
    const events = await delivered(3)
    await delivered(2, { status: 'rejected' })
    assert.deepEqual(await redeliver({ selector: { status: 'delivered' } }), {
      webhookId,
      queued: 3,
      resumeSince: null,
      resumeAfter: null,
    })
    assert.deepEqual(await pending(), events)
    const queue = await server.database.knex('delivery_queue').where({ webhook_id: webhookId })
    assert.deepEqual(
      queue.map(row => row.recovered),
      [1, 1, 1],
    )
  })

  it('ends, though what it queues matches as well, however many pages there are', async () => {
    await delivered(1_203)
    assert.equal((await redeliver({})).queued, 1_203)
    assert.equal((await pending()).length, 1_203)
  })

  it('queues nothing twice while it is pending, and all of it again once it was acknowledged', async () => {
    await delivered(5)
    assert.equal((await redeliver({})).queued, 5)
    assert.equal((await redeliver({})).queued, 0)
    await acknowledge()
    assert.equal((await redeliver({})).queued, 5)
  })

  it('goes on where it ended, without what it has queued itself', async () => {
    const events = await delivered(6)
    const { knex } = server.database
    const [third] = await knex('deliveries').where({ event_id: events[2] })
    assert.equal((await redeliver({ selector: { id: { $lte: third.id } } })).queued, 3)
    await acknowledge()
    // As a first call would have answered that came no further.
    assert.equal((await redeliver({ after: third.id })).queued, 3)
    assert.deepEqual(await pending(), events.slice(3))
  })

  it('sends an event once that several deliveries have carried', async () => {
    const [event] = await delivered(1)
    await redeliver({})
    await acknowledge()
    const { data } = await server.graphql(`{ deliveries(query: {selector: {eventId: "${event}"}}) { id } }`, {}, owner)
    assert.equal(data.deliveries.length, 2)
    assert.equal((await redeliver({})).queued, 1)
  })

  it('only counts in a dry run', async () => {
    await delivered(700)
    assert.equal((await redeliver({}, { dryRun: true })).queued, 700)
    assert.deepEqual(await pending(), [])
  })

  it('queues as many as the limit says, in the order of the sort', async () => {
    const events = await delivered(5)
    const query = { sort: [{ createdAt: 'desc' }], limit: 2 }
    assert.equal((await redeliver(query)).queued, 2)
    assert.deepEqual(await pending(), [events[4], events[3]])
    assert.equal((await redeliver({ limit: 0 })).queued, 0)
  })

  it('matches what lies in the payload', async () => {
    const events = await delivered(4)
    assert.equal((await redeliver({ selector: { 'event.payload.nth': { $mod: [2, 1] } } })).queued, 2)
    assert.deepEqual(await pending(), [events[1], events[3]])
  })

  it('leaves out pings, and what the caller does not see', async () => {
    await delivered(2, { type: 'ping' })
    const other = await addProject(server.database)
    await delivered(2, { organisationId: other.organisationId })
    assert.equal((await redeliver({})).queued, 0)
    const [event] = await delivered(1)
    assert.equal((await redeliver({})).queued, 1)
    assert.deepEqual(await pending(), [event])
  })

  it('needs an active webhook that the caller sees, and a right query', async () => {
    const stranger = await server.token({ permissions: ['webhooks'], organisationIds: [] })
    assert.equal(await codeOf({}, stranger), 'NOT_FOUND')
    assert.equal(await codeOf({ query: { selector: { nowhere: 1 } } }), 'BAD_USER_INPUT')
    assert.equal(await codeOf({ query: { limit: -1 } }), 'BAD_USER_INPUT')
    await server.database.knex('webhooks').where({ id: webhookId }).update({ status: 'disabled' })
    assert.equal(await codeOf({}), 'CONFLICT')
    assert.equal(await codeOf({ dryRun: true }), 'CONFLICT')
  })
})
