import assert from 'node:assert/strict'
import { after, afterEach, before, it } from 'node:test'
import { createNetworkGuard } from '../../server/delivery/network-guard.ts'
import { pingOnce } from '../../server/delivery/ping.ts'
import { createSender } from '../../server/delivery/send.ts'
import { type Healing, pingAnswered, queuePage, takeDue } from '../../server/domain/healing.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { type Keyring, openKeyring } from '../../server/keys/signing-keys.ts'
import { createLog } from '../../server/log.ts'
import { type HealerTools, healSome } from '../../server/scheduler/healer.ts'
import { testClock } from '../support/clock.ts'
import { describeEachEngine } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { type Answer, type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'
import { atFullSize } from '../support/size.ts'

const MINUTE = 60_000
const HOUR = 60 * MINUTE
const CREATE = 'mutation ($url: String!) { createWebhook(url: $url, recovery: automatic) { id } }'
const UPSERT = 'mutation ($id: UUID, $recovery: WebhookRecovery) { upsertWebhook(id: $id, recovery: $recovery) { id } }'
const STATUS = 'mutation ($id: UUID, $status: WebhookStatus) { upsertWebhook(id: $id, status: $status) { status } }'
const SUBMIT = `mutation ($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
  submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) { id } }`
const TOLD = `query ($webhook: MangoQuery, $webhookId: UUID!, $eventId: UUID!) {
  webhooks(query: $webhook) { missedSince nextPingAt recoveredAt }
  explainDelivery(webhookId: $webhookId, eventId: $eventId) { verdict reasons { code at } next } }`

describeEachEngine('a webhook that heals itself, as the API tells of it', engine => {
  const clock = testClock()
  const guard = createNetworkGuard({ allow: ['127.0.0.0/8'] })
  const sender = createSender({ guard, maxConnectionsPerOrigin: 64, attemptTimeoutMs: 2_000 })
  let server: TestServer
  let keyring: Keyring
  let tools: HealerTools
  let receiver: Receiver
  let answer: (isPing: boolean) => Answer
  let webhookId: string
  let of: { projectId: string; userId: string }
  before(async () => {
    const env = { TIDINGS_ROLES: 'api,delivery', TIDINGS_RETRY_SCHEDULE: '1', TIDINGS_RATE_LIMIT: '0' }
    server = await startTestServer(engine, { clock, env })
    const { database, config } = server
    const sealer = createSealer(config.masterKeys)
    keyring = await openKeyring(database, sealer, clock)
    const attempt = { clock, keyring, sealer, sender, issuerUrl: config.issuerUrl, retryScheduleMs: [] }
    const ping = async () => assert.fail('nothing is pulled')
    tools = {
      ...{ database, clock, log: createLog('silent'), onQueued: () => {}, restMs: 0 },
      ping: webhook => pingOnce(attempt, { ping }, webhook),
    }
  })
  afterEach(() => receiver?.close())
  after(async () => {
    keyring?.stop()
    await sender.close()
    await server?.stop()
  })

  const done = async (document: string, variables: object) => {
    const { data, errors } = await server.graphql(document, variables)
    assert.equal(errors, undefined, JSON.stringify(errors))
    return data
  }
  const register = async () => {
    answer = () => ({ status: 200 })
    receiver = await startReceiver({ answer: ({ body }) => answer(body.eventType === 'ping') })
    of = await addProject(server.database)
    webhookId = (await done(CREATE, { url: receiver.url })).createWebhook.id
  }
  let quarters = 0
  /** Makes an event, and returns its id. */
  const happen = async (): Promise<string> => {
    clock.advance(10)
    const quarter = `${2100 + Math.floor(quarters / 4)}-${1 + (quarters++ % 4)}`
    await done(SUBMIT, { projectId: of.projectId, quarter, submitterId: of.userId })
    const { knex } = server.database
    const ofIt = { project_id: of.projectId, type: 'project_report_quarterly_submitted' }
    const { id } = await knex('events').where(ofIt).orderBy('created_at', 'desc').first()
    return id
  }
  /** Lets everything that is pending be sent, and retried. */
  const settled = () =>
    eventually(
      'everything to be sent',
      async () => {
        const [found] = await server.database.knex('delivery_queue').count({ n: '*' })
        if (Number(found!.n) > 0) clock.advance(1_000)
        return Number(found!.n)
      },
      left => left === 0,
      { everyMs: 200 },
    )
  const heal = async () => {
    while ((await healSome(tools)) > 0);
  }
  const told = async (eventId: string) => {
    const found = await done(TOLD, { webhook: { selector: { id: webhookId } }, webhookId, eventId })
    const { verdict, reasons, next } = found.explainDelivery
    const codes = reasons.map(({ code }: { code: string }) => code)
    return { ...found.webhooks[0], verdict, codes, next: next?.split(' ', 3).join(' ') ?? null, reasons }
  }
  const minutesUntil = (iso: string) => Math.round((Date.parse(iso) - clock.now()) / MINUTE)

  it('says what becomes of an event at each moment, from its drop to its acknowledgement', async () => {
    await register()
    answer = () => ({ status: 503 })
    const eventId = await happen()
    await settled()
    const dropped = await told(eventId)
    assert.deepEqual([dropped.verdict, dropped.codes], ['waiting', ['retries_exhausted', 'heals']])
    assert.equal(minutesUntil(dropped.nextPingAt), 10)
    assert.equal(dropped.reasons.at(-1).at, dropped.nextPingAt)
    assert.equal(dropped.next, 'tidings webhooks ping')

    clock.advance(11 * MINUTE)
    await heal()
    const pinged = await told(eventId)
    assert.deepEqual([pinged.verdict, minutesUntil(pinged.nextPingAt)], ['waiting', 20])

    await done(STATUS, { id: webhookId, status: 'disabled' })
    const disabled = await told(eventId)
    assert.deepEqual(
      [disabled.verdict, disabled.codes, disabled.nextPingAt, disabled.next],
      ['failed', ['retries_exhausted', 'webhook_disabled', 'heals'], null, 'tidings webhooks enable'],
    )
    const meanwhile = await happen()
    assert.deepEqual((await told(meanwhile)).codes, ['webhook_disabled', 'heals'])
    clock.advance(MINUTE)
    answer = isPing => ({ status: isPing ? 200 : 503 })
    await done(STATUS, { id: webhookId, status: 'active' })
    assert.deepEqual((await told(meanwhile)).codes, ['disabled_then', 'heals'])

    const [healing] = await server.database.transaction(trx => takeDue(trx, clock.now(), 1))
    await server.database.transaction(trx => pingAnswered(trx, healing as Healing, clock.now()))
    const answered = await told(eventId)
    assert.deepEqual([answered.verdict, answered.nextPingAt, answered.next], ['waiting', null, null])
    while ((await server.database.transaction(trx => queuePage(trx, healing as Healing, clock.now))) === 'more');
    const queued = await told(eventId)
    assert.deepEqual([queued.verdict, queued.codes.includes('healed')], ['waiting', true])
    assert.deepEqual([queued.missedSince, queued.recoveredAt !== null], [null, true])

    answer = () => ({ status: 200 })
    await settled()
    for (const id of [eventId, meanwhile]) {
      const arrived = await told(id)
      assert.deepEqual([arrived.verdict, arrived.codes.includes('healed')], ['delivered', true])
    }
  })

  it('says that it was given up after seven days, and what to do then', async () => {
    await register()
    answer = () => ({ status: 503 })
    const eventId = await happen()
    await settled()
    for (let hour = 0; hour < 7 * 24 + 2; hour += 6) {
      clock.advance(6 * HOUR)
      await heal()
    }
    const { verdict, codes, next, nextPingAt } = await told(eventId)
    assert.deepEqual([verdict, codes.at(-1), nextPingAt], ['failed', 'healing_given_up', null])
    assert.equal(next, 'tidings webhooks recover')
  })

  it('waits for no further ping once its new URL has answered one, but does after another change', async () => {
    await register()
    const { knex } = server.database
    const due_at = clock.now() + HOUR
    const missed = { webhook_id: webhookId, missed_since: clock.now(), began_at: clock.now(), due_at }
    await knex('webhook_recoveries').insert(missed)
    const dueAt = async () => Number((await knex('webhook_recoveries').where({ webhook_id: webhookId }).first()).due_at)
    await done('mutation ($id: UUID) { upsertWebhook(id: $id, name: "other") { id } }', { id: webhookId })
    assert.equal(await dueAt(), due_at)
    const url = new URL('/other', receiver.url).href
    await done('mutation ($id: UUID, $url: String) { upsertWebhook(id: $id, url: $url) { id } }', {
      id: webhookId,
      url,
    })
    assert.ok((await dueAt()) < due_at)
  })

  it('is not turned on while a process of an earlier version runs, which would note nothing of it', async () => {
    receiver = await startReceiver()
    const onDemand = 'mutation ($url: String!) { createWebhook(url: $url) { id } }'
    const { id } = (await done(onDemand, { url: receiver.url })).createWebhook
    const { knex } = server.database
    await knex('knex_migrations').where({ name: '0018_recovery' }).update({ needs: null })
    const [{ master_keys }] = await knex('processes').select('master_keys')
    const old = { id: '01936f2e-5d2f-7c3a-9b1e-2f4d6c8a0e13', host: 'h', pid: 7, version: '0.2.0', roles: 'delivery' }
    await knex('processes').insert({ ...old, master_keys, started_at: Date.now(), seen_at: Date.now() + 60_000 })
    try {
      for (const [document, given] of [
        [CREATE, { url: receiver.url }],
        [UPSERT, { id, recovery: 'automatic' }],
      ] as const) {
        const { errors } = await server.graphql(document, given)
        assert.equal(errors?.[0]?.extensions.code, 'UNAVAILABLE')
        assert.match(errors![0]!.message, /process 7 on h \(version 0\.2\.0/)
      }
    } finally {
      await knex('processes').where({ id: old.id }).delete()
    }
    await done(UPSERT, { id, recovery: 'automatic' })
  })

  const EVENTS = atFullSize(120, 24)
  for (const away of atFullSize([3, 72], [3])) {
    it(`says the truth of each event of ${away} hours in which its endpoint was away`, async () => {
      await register()
      answer = () => ({ status: 503 })
      const missed: string[] = []
      for (let part = 0; part < 6; part++) {
        for (let n = 0; n < EVENTS / 6; n++) missed.push(await happen())
        await settled()
        for (let step = 0; step < 10; step++) {
          clock.advance((away * HOUR) / 60)
          await heal()
        }
        for (const id of missed) {
          const { verdict, codes } = await told(id)
          assert.deepEqual([verdict, codes], ['waiting', ['retries_exhausted', 'heals']])
        }
      }
      answer = () => ({ status: 200 })
      clock.advance(HOUR + MINUTE)
      await heal()
      await settled()
      const sent = receiver.requests.filter(({ body }) => body.eventType !== 'ping')
      const events = await server.database.knex('deliveries').where({ webhook_id: webhookId, status: 'delivered' })
      const acknowledged = events.filter(({ event_type }) => event_type !== 'ping').map(({ event_id }) => event_id)
      assert.deepEqual(acknowledged.toSorted(), missed.toSorted())
      // Two attempts of each while it was away, and one.
      assert.equal(sent.length, 3 * missed.length)
      for (const id of missed) {
        const { verdict, codes } = await told(id)
        assert.deepEqual([verdict, codes.includes('healed')], ['delivered', true])
      }
    })
  }
})
