import assert from 'node:assert/strict'
import { after, afterEach, before, it } from 'node:test'
import { rows } from '../../server/database/connect.ts'
import { dialectOf } from '../../server/database/dialect.ts'
import type { Credentials } from '../../shared/hmac.ts'
import type { EventType } from '../../shared/vocabulary.ts'
import { describeEachEngine, NOT_ON_SQLITE } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { type Answer, type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'

type Token = Credentials & { id: string }
type Project = Awaited<ReturnType<typeof addProject>>

const RECOVER = `mutation($webhookId: UUID!) {
  recoverDeliveries(webhookId: $webhookId, since: "2026-01-01T00:00:00Z") { queued } }`

describeEachEngine('events about webhooks', engine => {
  let server: TestServer
  let acme: Project
  let borealis: Project
  let all: Token
  let acmeOnly: Token
  const receivers: Receiver[] = []
  before(async () => {
    // One retry, at once: then it is dropped.
    const env = { TIDINGS_RATE_LIMIT: '0', TIDINGS_RETRY_SCHEDULE: '0.01', TIDINGS_ROLES: 'api,delivery' }
    server = await startTestServer(engine, { env })
    acme = await addProject(server.database)
    borealis = await addProject(server.database)
    all = await server.token()
    acmeOnly = await server.token({ permissions: ['read', 'webhooks'], organisationIds: [acme.organisationId] })
  })
  afterEach(async () => {
    await server.database.knex('webhooks').update({ status: 'disabled' })
    await Promise.all(receivers.splice(0).map(receiver => receiver.close()))
  })
  after(() => server.stop())

  const ask = async (document: string, variables: object = {}, as: Token = all) => {
    const { data, errors } = await server.graphql(document, variables, as)
    assert.equal(errors, undefined, JSON.stringify(errors))
    return data
  }
  /** A webhook whose endpoint answers its ping with 200 and all else so. */
  const webhook = async (
    given: { events?: EventType[]; answer?: Answer; as?: Token; name?: string; organisationIds?: string[] } = {},
  ) => {
    const { answer = { status: 200 }, as = all, ...rest } = given
    const receiver = await startReceiver({
      answer: ({ body }) => (body.eventType === 'ping' ? { status: 200 } : answer),
    })
    receivers.push(receiver)
    const { made } = await ask(
      `mutation($url: String!, $name: String, $events: [EventType!], $organisationIds: [UUID!]) {
        made: createWebhook(url: $url, name: $name, events: $events, organisationIds: $organisationIds) { id } }`,
      { url: receiver.url, ...rest },
      as,
    )
    const heard = (type: EventType) =>
      receiver.requests.filter(({ body }) => body.eventType === type).map(({ body }) => body.payload)
    const hears = (type: EventType) =>
      eventually(
        `a webhook to be told of ${type}`,
        () => heard(type),
        payloads => payloads.length > 0,
      )
    return { id: made.id as string, url: receiver.url, heard, hears }
  }
  const failing = (given: object = {}) =>
    webhook({ events: ['project_report_quarterly_submitted'], answer: { status: 500 }, ...given })
  let quarter = 0
  const submit = ({ projectId, userId }: Project) =>
    ask(
      `mutation { submitProjectReport(projectId: "${projectId}", quarter: "${3000 + quarter++}-1", ` +
        `submitterId: "${userId}") { id } }`,
    )
  const rowsOf = (type: EventType, about: string) =>
    server.database.knex('events').where({ type, about_webhook_id: about })
  const noted = (type: EventType, about: string) =>
    eventually(
      `${type} to be written`,
      () => rowsOf(type, about),
      found => found.length > 0,
    )

  it('tell who names it of a delivery that was dropped, with its payload, and nobody else', async () => {
    const watcher = await webhook({ events: ['delivery_dropped'] })
    const everything = await webhook()
    const { id, url, heard } = await failing({ name: 'Ledger' })
    await submit(acme)
    const [payload] = await watcher.hears('delivery_dropped')
    const delivery = await server.database.knex('deliveries').where({ webhook_id: id, status: 'dropped' }).first()
    assert.deepEqual(payload, {
      delivery: {
        id: delivery.id,
        eventId: delivery.event_id,
        eventType: 'project_report_quarterly_submitted',
        webhookId: id,
        webhookUrl: url,
        webhookName: 'Ledger',
        attemptCount: 2,
        reason: 'retries_exhausted',
        nextPingAt: null,
      },
    })
    const [event] = await rowsOf('delivery_dropped', id)
    assert.deepEqual([event.organisation_id, event.project_id], [acme.organisationId, acme.projectId])
    await everything.hears('project_report_quarterly_submitted')
    assert.deepEqual([everything.heard('delivery_dropped'), heard('delivery_dropped')], [[], []])
  })

  it('tell of a delivery that was dropped when its webhook is pinged next, if that heals itself', async () => {
    const watcher = await webhook({ events: ['delivery_dropped'] })
    const { id } = await failing()
    await ask('mutation($id: UUID) { upsertWebhook(id: $id, recovery: automatic) { id } }', { id })
    await submit(acme)
    const [{ delivery }] = await watcher.hears('delivery_dropped')
    const { due_at } = await server.database.knex('webhook_recoveries').where({ webhook_id: id }).first()
    assert.equal(Date.parse(delivery.nextPingAt), Number(due_at))
  })

  it('never tell the webhook concerned, nor of what they could not tell', async () => {
    const both: EventType[] = ['project_report_quarterly_submitted', 'delivery_dropped']
    const first = await failing({ events: both })
    const second = await failing({ events: both })
    await submit(acme)
    await first.hears('delivery_dropped')
    await second.hears('delivery_dropped')
    const isEnded = (found: { status: string }[]) =>
      found.length > 0 && found.every(({ status }) => status === 'dropped')
    for (const { id } of [first, second]) {
      await eventually(
        'the notices to be dropped too',
        () => server.database.knex('deliveries').where({ webhook_id: id, event_type: 'delivery_dropped' }),
        isEnded,
      )
      // Of its own event, and of none of the notices.
      assert.equal((await rowsOf('delivery_dropped', id)).length, 1)
    }
    assert.deepEqual(
      first.heard('delivery_dropped').map(payload => payload.delivery.webhookId),
      Array(2).fill(second.id),
    )
  })

  it('do not tell of examples', async () => {
    const { id } = await failing()
    await ask(`mutation { sendExample(webhookId: "${id}", eventType: token_expired) { id } }`)
    await eventually(
      'the example to be dropped',
      () => server.database.knex('deliveries').where({ webhook_id: id, status: 'dropped' }),
      found => found.length === 1,
    )
    assert.deepEqual(await rowsOf('delivery_dropped', id), [])
  })

  it('tell of a webhook that has become inactive', async () => {
    const watcher = await webhook({ events: ['webhook_inactive'] })
    const { id, url } = await webhook({ answer: { status: 429 }, name: 'Ledger' })
    await submit(acme)
    const [{ webhook: told }] = (await watcher.hears('webhook_inactive')) as [{ webhook: Record<string, string> }]
    assert.deepEqual({ ...told, statusReason: '' }, { id, url, name: 'Ledger', statusReason: '' })
    assert.match(told.statusReason!, /429 without a readable Retry-After/)
    assert.equal((await rowsOf('webhook_inactive', id)).length, 1)
  })

  it('are told of, and seen by, those alone who see the webhook', async () => {
    const names: EventType[] = ['delivery_dropped', 'webhook_inactive']
    const limited = await webhook({ events: names, as: acmeOnly })
    const watcher = await webhook({ events: names })
    // Of all organisations: its failures are no business of who sees one.
    const { id: ofAll } = await failing()
    const ofAcme = await failing({ organisationIds: [acme.organisationId] })
    const full = await webhook({ as: acmeOnly, answer: { status: 429 } })
    await submit(acme)
    await limited.hears('webhook_inactive')
    const [dropped] = await limited.hears('delivery_dropped')
    assert.equal(dropped.delivery.webhookId, ofAcme.id)
    await noted('delivery_dropped', ofAll)
    await eventually(
      'the other to be told of both',
      () => watcher.heard('delivery_dropped').length,
      number => number === 2,
    )
    assert.equal(limited.heard('delivery_dropped').length, 1)
    const seenBy = async (as: Token) => {
      const selector = { type: { $in: names }, time: { $gte: new Date(Date.now() - 60_000).toISOString() } }
      const { events } = await ask(
        'query($q: MangoQuery) { events(query: $q) { id payload } }',
        { q: { selector } },
        as,
      )
      return events.map(({ payload }: { payload: { delivery?: { webhookId: string }; webhook?: { id: string } } }) =>
        payload.delivery ? payload.delivery.webhookId : payload.webhook!.id,
      )
    }
    assert.deepEqual((await seenBy(acmeOnly)).toSorted(), [ofAcme.id, full.id].toSorted())
    assert.ok((await seenBy(all)).includes(ofAll))
  })

  it('go out of sight with the webhook, and so do their deliveries', async () => {
    const watcher = await webhook({ events: ['delivery_dropped'], as: acmeOnly })
    const { id } = await failing({ organisationIds: [acme.organisationId] })
    await submit(acme)
    await watcher.hears('delivery_dropped')
    const seen = async () => {
      const { events, deliveries, counts } = await ask(
        `query($e: MangoQuery, $d: MangoQuery, $s: MangoSelector) {
          events(query: $e) { id } deliveries(query: $d) { id } counts(resource: events, selector: $s) { count } }`,
        {
          e: { selector: { 'payload.delivery.webhookId': id } },
          d: { selector: { webhookId: watcher.id, eventType: 'delivery_dropped' } },
          s: { 'payload.delivery.webhookId': id },
        },
        acmeOnly,
      )
      return [events.length, deliveries.length, counts[0].count]
    }
    assert.deepEqual(await seen(), [1, 1, 1])
    const both = `["${acme.organisationId}", "${borealis.organisationId}"]`
    await ask(`mutation { upsertWebhook(id: "${id}", organisationIds: ${both}) { id } }`)
    assert.deepEqual(await seen(), [0, 0, 0])
  })

  it('are kept to their organisations, as other events are', async () => {
    const elsewhere = await webhook({ events: ['delivery_dropped'], organisationIds: [borealis.organisationId] })
    const here = await webhook({ events: ['delivery_dropped'], organisationIds: [acme.organisationId] })
    await failing()
    await submit(acme)
    await here.hears('delivery_dropped')
    assert.deepEqual(elsewhere.heard('delivery_dropped'), [])
  })

  it('are made up for by a recovery', async () => {
    const watcher = await webhook({ events: ['delivery_dropped'] })
    await ask(`mutation { upsertWebhook(id: "${watcher.id}", status: disabled) { id } }`)
    const everything = await webhook()
    const { id } = await failing()
    await submit(acme)
    await noted('delivery_dropped', id)
    await ask(`mutation { upsertWebhook(id: "${watcher.id}", status: active) { id } }`)
    const recovered = async (webhookId: string) => (await ask(RECOVER, { webhookId })).recoverDeliveries.queued
    assert.equal(await recovered(everything.id), 0, 'what it did not name is not its')
    assert.ok((await recovered(watcher.id)) >= 1)
    const [payload] = await watcher.hears('delivery_dropped')
    assert.equal(payload.delivery.webhookId, id)
    await ask(`mutation { upsertWebhook(id: "${id}", events: []) { id } }`)
    const own = await server.database.knex('deliveries').where({ webhook_id: id, event_type: 'delivery_dropped' })
    assert.deepEqual(own, [])
  })

  it('wait for a webhook that is held by another, and nothing else waits for them', async t => {
    const { database } = server
    if (dialectOf(database.knex).forShareSkipLocked === '') return t.skip(NOT_ON_SQLITE)
    const watcher = await webhook({ events: ['delivery_dropped'] })
    const good = await webhook({ events: ['project_report_quarterly_submitted'] })
    const { id } = await failing()
    const { promise: held, resolve: release } = Promise.withResolvers<void>()
    await submit(acme)
    const holding = database.transaction(async trx => {
      await rows(trx, 'SELECT id FROM webhooks WHERE id = ? FOR UPDATE', [watcher.id])
      await held
    })
    await good.hears('project_report_quarterly_submitted')
    await eventually(
      'the delivery to the others to be settled',
      () =>
        database.knex('deliveries').where({ webhook_id: good.id, event_type: 'project_report_quarterly_submitted' }),
      ([delivery]) => delivery?.status === 'delivered',
    )
    assert.deepEqual(await rowsOf('delivery_dropped', id), [])
    const [pending] = await database
      .knex('deliveries')
      .where({ webhook_id: id, event_type: 'project_report_quarterly_submitted' })
    assert.equal(pending.status, 'pending', 'it is not dropped without its notice')
    release()
    await holding
    await watcher.hears('delivery_dropped')
  })
})
