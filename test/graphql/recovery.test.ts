import assert from 'node:assert/strict'
import { randomBytes, randomUUID } from 'node:crypto'
import { after, before, it } from 'node:test'
import { v7 as uuid } from 'uuid'
import { toIso } from '../../shared/time.ts'
import { type TestClock, testClock } from '../support/clock.ts'
import { describeEachEngine } from '../support/databases.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'

type Project = Awaited<ReturnType<typeof addProject>>

// Nothing is claimed here: what is queued stays pending until the test says what became of it.
describeEachEngine('recovering deliveries', engine => {
  let server: TestServer
  let second: TestServer
  let receiver: Receiver
  let acme: Project
  let borealis: Project
  const clock: TestClock = testClock()
  before(async () => {
    const env = {
      TIDINGS_ROLES: 'api',
      TIDINGS_RATE_LIMIT: '0',
      TIDINGS_MASTER_KEY: randomBytes(32).toString('base64'),
    }
    server = await startTestServer(engine, { env, clock })
    second = await startTestServer(engine, { env, clock, url: server.config.databaseUrl })
    receiver = await startReceiver()
    acme = await addProject(server.database)
    borealis = await addProject(server.database)
  })
  after(async () => {
    await receiver.close()
    await second.stop()
    await server.stop()
  })

  const ask = async (document: string, variables: object = {}) => {
    const { data, errors } = await server.graphql(document, variables)
    assert.equal(errors, undefined, JSON.stringify(errors))
    return Object.values(data)[0] as { id: string }
  }
  const createWebhook = async (given: object = {}): Promise<string> => {
    clock.advance(1_000)
    const document = `mutation($url: String!, $events: [EventType!], $organisationIds: [UUID!], $projectIds: [UUID!]) {
      createWebhook(url: $url, events: $events, organisationIds: $organisationIds, projectIds: $projectIds) { id } }`
    return (await ask(document, { url: receiver.url, ...given })).id
  }
  const setStatus = (id: string, status: string) =>
    ask(`mutation { upsertWebhook(id: "${id}", status: ${status}) { id } }`)
  let quarter = 0
  const nextQuarter = () => `${2000 + Math.floor(quarter / 4)}-${(quarter++ % 4) + 1}`
  /** Submits a report, and returns the event of it. */
  const submit = async ({ projectId, userId }: Project): Promise<string> => {
    clock.advance(1_000)
    await ask(
      `mutation { submitProjectReport(projectId: "${projectId}", quarter: "${nextQuarter()}", submitterId: ` +
        `"${userId}") { id } }`,
    )
    const [event] = await server.database.knex('events').orderBy('created_at', 'desc').orderBy('id', 'desc').limit(1)
    return event.id
  }
  const recover = async (webhookId: string, since: number, until?: number, at = server, dryRun = false) => {
    const { data, errors } = await at.graphql(
      `mutation($webhookId: UUID!, $since: DateTime!, $until: DateTime, $dryRun: Boolean) {
        recoverDeliveries(webhookId: $webhookId, since: $since, until: $until, dryRun: $dryRun) {
          webhookId queued resumeSince } }`,
      { webhookId, since: toIso(since), ...(until !== undefined && { until: toIso(until) }), dryRun },
      await tokenOf(at),
    )
    assert.equal(errors, undefined, JSON.stringify(errors))
    assert.equal(data.recoverDeliveries.webhookId, webhookId)
    assert.equal(data.recoverDeliveries.resumeSince, null)
    return data.recoverDeliveries.queued as number
  }
  const tokens = new Map<TestServer, Promise<Awaited<ReturnType<TestServer['token']>>>>()
  const tokenOf = (at: TestServer) => {
    // Both servers share the first one's database.
    const token = tokens.get(at) ?? server.token()
    tokens.set(at, token)
    return token
  }
  /** The events that are owed to a webhook, in the order of their deliveries, with how often each is. */
  const owed = async (webhookId: string): Promise<string[]> => {
    const rows: { event_id: string }[] = await server.database
      .knex('deliveries')
      .where({ webhook_id: webhookId, status: 'pending' })
      .orderBy('id')
    const queued = await server.database.knex('delivery_queue').where({ webhook_id: webhookId })
    assert.equal(queued.length, rows.length, 'what is pending is in the queue')
    return rows.map(row => row.event_id)
  }
  const end = (webhookId: string, eventId: string, status: string, handledBefore = false) =>
    server.database.transaction(async trx => {
      const where = { webhook_id: webhookId, event_id: eventId }
      const ids: string[] = await trx('deliveries').where(where).pluck('id')
      const ended = { status, handled_before: handledBefore ? 1 : 0, next_attempt_at: null, finished_at: clock.now() }
      await trx('deliveries').whereIn('id', ids).update(ended)
      await trx('delivery_queue').whereIn('delivery_id', ids).delete()
    })

  it('queues what was not acknowledged, however that came about, in its order, and nothing else', async () => {
    const since = clock.now()
    const webhookId = await createWebhook()
    const [delivered, rejected, dropped, pending] = [
      await submit(acme),
      await submit(acme),
      await submit(borealis),
      await submit(acme),
    ]
    await end(webhookId, delivered!, 'delivered')
    await end(webhookId, rejected!, 'rejected')
    await end(webhookId, dropped!, 'dropped')
    assert.deepEqual(await owed(webhookId), [pending])
    assert.equal(await recover(webhookId, since), 2)
    assert.deepEqual(await owed(webhookId), [pending, rejected, dropped])
    assert.equal(await recover(webhookId, since), 0, 'again it finds nothing')

    await setStatus(webhookId, 'disabled')
    const missed = [await submit(acme), await submit(borealis)]
    assert.deepEqual(await owed(webhookId), [])
    await setStatus(webhookId, 'active')
    assert.equal(await recover(webhookId, since), 5)
    assert.deepEqual(await owed(webhookId), [rejected, dropped, pending, ...missed])
  })

  it('queues nothing that the receiver had handled before it refused it as a replay', async () => {
    const since = clock.now()
    const webhookId = await createWebhook()
    const [handled, refused] = [await submit(acme), await submit(acme)]
    await end(webhookId, handled!, 'rejected', true)
    await end(webhookId, refused!, 'rejected')
    assert.equal(await recover(webhookId, since), 1)
    assert.deepEqual(await owed(webhookId), [refused])
  })

  it('queues no more than the webhook should have had: by type, organisation, project and age', async () => {
    const since = clock.now()
    const old = await submit(acme)
    clock.advance(1_000)
    const webhooks = {
      all: await createWebhook(),
      acme: await createWebhook({ organisationIds: [acme.organisationId] }),
      project: await createWebhook({ projectIds: [borealis.projectId] }),
      either: await createWebhook({ organisationIds: [acme.organisationId], projectIds: [borealis.projectId] }),
      expired: await createWebhook({ events: ['token_expired'] }),
    }
    for (const id of Object.values(webhooks)) await setStatus(id, 'disabled')
    const ofAcme = await submit(acme)
    const ofBorealis = await submit(borealis)
    await server.database.knex('events').insert([
      // Of two organisations, and of all.
      {
        id: '01936f2e-5d2f-7c3a-9b1e-000000000001',
        type: 'token_expired',
        all_organisations: 0,
        payload: '{}',
        created_at: clock.now(),
      },
      {
        id: '01936f2e-5d2f-7c3a-9b1e-000000000002',
        type: 'token_expired',
        all_organisations: 1,
        payload: '{}',
        created_at: clock.now(),
      },
    ])
    await server.database.knex('event_organisations').insert({
      event_id: '01936f2e-5d2f-7c3a-9b1e-000000000001',
      organisation_id: acme.organisationId,
    })
    const expected = {
      all: [ofAcme, ofBorealis, '…1', '…2'],
      acme: [ofAcme, '…1', '…2'],
      project: [ofBorealis],
      either: [ofAcme, ofBorealis, '…1', '…2'],
      expired: ['…1', '…2'],
    }
    for (const [name, id] of Object.entries(webhooks)) {
      await setStatus(id, 'active')
      const queued = await recover(id, since)
      const events = (await owed(id)).map(event => event.replace('01936f2e-5d2f-7c3a-9b1e-00000000000', '…'))
      assert.deepEqual(events.sort(), [...expected[name as keyof typeof expected]].sort(), name)
      assert.equal(queued, events.length)
      assert.ok(!events.includes(old), 'from before it was created')
    }
    await server.database.knex('events').where('type', 'token_expired').delete()
  })

  it('never queues a ping', async () => {
    const since = clock.now()
    const webhookId = await createWebhook()
    clock.advance(1_000)
    const { id } = await ask(`mutation { pingWebhook(id: "${webhookId}") { id } }`)
    await server.database.knex('deliveries').where({ id }).update({ status: 'dropped' })
    assert.equal(await recover(webhookId, since), 0)
  })

  it('never queues what the token that made the webhook does not see', async () => {
    const since = clock.now()
    const token = await server.token({ permissions: ['webhooks'], organisationIds: [acme.organisationId] })
    clock.advance(1_000)
    const { data } = await server.graphql(`mutation { createWebhook(url: "${receiver.url}") { id } }`, {}, token)
    const webhookId = data.createWebhook.id
    await setStatus(webhookId, 'disabled')
    await submit(borealis)
    const seen = await submit(acme)
    await setStatus(webhookId, 'active')
    assert.equal(await recover(webhookId, since), 1)
    assert.deepEqual(await owed(webhookId), [seen])
  })

  it('takes both ends of the time that is given', async () => {
    const webhookId = await createWebhook()
    await setStatus(webhookId, 'disabled')
    const events: string[] = []
    const times: number[] = []
    for (let n = 0; n < 4; n++) {
      events.push(await submit(acme))
      times.push(clock.now())
    }
    await setStatus(webhookId, 'active')
    assert.equal(await recover(webhookId, times[1]!, times[2]), 2)
    assert.deepEqual(await owed(webhookId), events.slice(1, 3))
    assert.equal(await recover(webhookId, times[3]! + 1), 0)
    assert.equal(await recover(webhookId, times[2]!, times[1]), 0, 'an end before the beginning')
    assert.equal(await recover(webhookId, times[0]! - 1), 2)
  })

  it('counts thousands in a dry run, and queues each of them once, also if two servers are asked at once', async () => {
    const webhookId = await createWebhook({ organisationIds: [acme.organisationId] })
    const since = clock.now()
    clock.advance(1_000)
    const { knex } = server.database
    const events = Array.from({ length: 2_345 }, (_, n) => ({
      id: uuid(),
      type: 'project_report_quarterly_overdue',
      organisation_id: acme.organisationId,
      project_id: acme.projectId,
      payload: '{}',
      // Many at the same time: where a page ends is not where a time ends.
      created_at: since + 1 + Math.floor(n / 700),
    }))
    await knex.batchInsert('events', events, 200)
    assert.equal(await recover(webhookId, since, undefined, server, true), events.length)
    assert.deepEqual(await owed(webhookId), [], 'a dry run has queued something')
    const counts = await Promise.all([recover(webhookId, since), recover(webhookId, since, undefined, second)])
    assert.equal(counts[0]! + counts[1]!, events.length)
    const queued = await owed(webhookId)
    assert.equal(queued.length, events.length)
    assert.deepEqual(new Set(queued), new Set(events.map(({ id }) => id)))
    await knex('events')
      .whereIn(
        'created_at',
        [1, 2, 3, 4].map(n => since + n),
      )
      .delete()
  })

  it('finds what was missed behind thousands that were not', async () => {
    const webhookId = await createWebhook({ organisationIds: [acme.organisationId] })
    const since = clock.now()
    clock.advance(1_000)
    const { knex } = server.database
    const all = Array.from({ length: 5_400 }, (_, n) => ({ id: uuid(), created_at: since + 1 + Math.floor(n / 100) }))
    const ofAcme = { organisation_id: acme.organisationId, project_id: acme.projectId }
    const type = 'project_report_quarterly_overdue'
    await knex.batchInsert(
      'events',
      all.map(event => ({ ...event, ...ofAcme, type, payload: '{}' })),
      200,
    )
    const missed = [all[3]!.id, all[5_100]!.id, all.at(-1)!.id]
    const had = all.filter(({ id }) => !missed.includes(id))
    await knex.batchInsert(
      'deliveries',
      had.map(({ id, created_at }) => ({
        id: uuid(),
        event_id: id,
        event_type: type,
        webhook_id: webhookId,
        status: 'delivered',
        created_at,
      })),
      200,
    )
    assert.equal(await recover(webhookId, since), missed.length)
    assert.deepEqual(await owed(webhookId), missed)
    await knex('events').where('created_at', '>', since).where({ type }).delete()
  })

  it('does nothing at all for a token that does not see the webhook', async () => {
    const webhookId = await createWebhook({ organisationIds: [acme.organisationId] })
    await submit(acme)
    const { knex } = server.database
    await knex('webhooks').where({ id: webhookId }).update({ epoch: 1, ended_epoch: 1, sweeping: 1 })
    const token = await server.token({ permissions: ['webhooks'], organisationIds: [borealis.organisationId] })
    const document = `mutation {
      recoverDeliveries(webhookId: "${webhookId}", since: "2026-01-01T00:00:00Z") { queued }
    }`
    const { errors } = await server.graphql(document, {}, token)
    assert.equal(errors![0]!.extensions.code, 'NOT_FOUND')
    assert.equal((await owed(webhookId)).length, 1)
  })

  it('is refused for a webhook that is not active, and for one that there is not', async () => {
    const webhookId = await createWebhook()
    await setStatus(webhookId, 'disabled')
    const document = (id: string) =>
      `mutation { recoverDeliveries(webhookId: "${id}", since: "2026-01-01T00:00:00Z") { queued } }`
    const refused = await server.graphql(document(webhookId))
    const { requestId: _, ...extensions } = refused.errors![0]!.extensions
    assert.deepEqual(extensions, { code: 'CONFLICT', webhookId, status: 'disabled' })
    assert.match(refused.errors![0]!.message, /disabled. Set its status to active/)
    assert.equal((await server.graphql(document(randomUUID()))).errors![0]!.extensions.code, 'NOT_FOUND')
  })

  it('of one delivery makes a new one of the same event, for as long as the webhook is active', async () => {
    const webhookId = await createWebhook()
    const event = await submit(acme)
    await end(webhookId, event, 'delivered')
    const [first] = await server.database.knex('deliveries').where({ webhook_id: webhookId, event_id: event })
    const document = `mutation { redeliver(deliveryId: "${first.id}") {
      id webhookId eventId eventType status attemptCount } }`
    const again = (await ask(document)) as Record<string, unknown>
    assert.notEqual(again.id, first.id)
    assert.deepEqual(
      { ...again, id: '' },
      {
        id: '',
        webhookId,
        eventId: event,
        eventType: 'project_report_quarterly_submitted',
        status: 'pending',
        attemptCount: 0,
      },
    )
    assert.deepEqual(await owed(webhookId), [event])
    await setStatus(webhookId, 'disabled')
    const { errors } = await server.graphql(document)
    assert.equal(errors![0]!.extensions.code, 'CONFLICT')
    assert.deepEqual(await owed(webhookId), [])
  })
})
