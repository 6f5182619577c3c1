import assert from 'node:assert/strict'
import { after, afterEach, before, it } from 'node:test'
import { insertMany } from '../../server/database/connect.ts'
import { createNetworkGuard } from '../../server/delivery/network-guard.ts'
import { pingOnce, pingStored } from '../../server/delivery/ping.ts'
import { createSender } from '../../server/delivery/send.ts'
import type { Change } from '../../server/domain/change.ts'
import {
  HEALING_LEASE_MS,
  type Healing,
  pingAnswered,
  pingFailed,
  queuePage,
  takeDue,
} from '../../server/domain/healing.ts'
import { type HealingRow, healingTimeOf, pingSoon } from '../../server/domain/missed.ts'
import type { AccessToken } from '../../server/domain/permissions.ts'
import { PULL_TIME } from '../../server/domain/pull-time.ts'
import type { DeliveryRow } from '../../server/domain/resources.ts'
import { leaveActive } from '../../server/domain/webhooks.ts'
import { createLog } from '../../server/log.ts'
import { type HealerTools, healSome } from '../../server/scheduler/healer.ts'
import { type Fixture, startFixture } from '../delivery/fixture.ts'
import { testClock } from '../support/clock.ts'
import { describeEachEngine } from '../support/databases.ts'
import { type Answer, type Receiver, startReceiver } from '../support/receiver.ts'
import { atFullSize } from '../support/size.ts'
import { addWebhooks, DISABLING } from '../support/webhooks.ts'

const MINUTE = 60_000
const DAY = 24 * 60 * MINUTE

describeEachEngine('a webhook that heals itself', engine => {
  const clock = testClock()
  const sender = createSender({
    guard: createNetworkGuard({ allow: ['127.0.0.0/8'] }),
    maxConnectionsPerOrigin: 64,
    attemptTimeoutMs: 500,
  })
  let fixture: Fixture
  let receiver: Receiver | undefined
  /** What the endpoint does: by default it is away, even for pings. */
  let answer: (isPing: boolean, report?: string) => Answer = () => ({ status: 503 })
  before(async () => {
    fixture = await startFixture(engine, clock)
  })
  afterEach(async () => {
    await receiver?.close()
    receiver = undefined
    answer = () => ({ status: 503 })
    await fixture.reset()
    await fixture.database.knex('webhook_recoveries').delete()
  })
  after(async () => {
    await sender.close()
    await fixture?.stop()
  })

  const webhook = async (given: Parameters<Fixture['webhook']>[1] = { recovery: 'automatic' }): Promise<string> => {
    receiver = await startReceiver({
      answer: ({ body }) => answer(body.eventType === 'ping', body.payload.projectReport?.id),
    })
    return fixture.webhook(receiver.url, given)
  }
  /** A client waits, and answers pings with 200. */
  const pulledPings = {
    ping: async ({ webhookId }: { webhookId: string }) => {
      answeredByClients.push(webhookId)
      return { startedAt: clock.now(), durationMs: 5, result: { kind: 'response', statusCode: 200, body: '' } as const }
    },
  }
  const answeredByClients: string[] = []
  const tools = (more: Partial<HealerTools> = {}): HealerTools => {
    const issuerUrl = 'https://tidings.example'
    const attemptTools = {
      clock,
      keyring: fixture.keyring,
      sealer: fixture.sealer,
      sender,
      issuerUrl,
      retryScheduleMs: [],
    }
    return {
      ...{ database: fixture.database, clock, log: createLog('silent') },
      ping: given => pingOnce(attemptTools, pulledPings, given),
      onQueued: () => {},
      restMs: 0,
      ...more,
    }
  }
  /** Lets everything that is due be sent, without retries. */
  const send = async () => {
    const loop = await fixture.startLoop({ retryScheduleMs: [] })
    await loop.idle()
    await loop.stop()
  }
  const miss = async (count: number) => {
    clock.advance(10)
    await fixture.emit(count)
    await send()
  }
  const heal = async (afterMs = 0) => {
    clock.advance(afterMs)
    while ((await healSome(tools())) > 0);
  }
  /** Lets a time pass in steps, in each of which what is due is healed and sent. */
  const pass = async (ms: number, stepMs: number) => {
    for (let passed = 0; passed < ms; passed += stepMs) {
      await heal(stepMs)
      await send()
    }
  }
  /** Distinct events with a delivery that was acknowledged, and those that have several. */
  const acknowledged = async () => {
    const events = (await fixture.deliveries())
      .filter(({ status, event_type }) => status === 'delivered' && event_type !== 'ping')
      .map(({ event_id }) => event_id)
    return { events: new Set(events).size, twice: events.length - new Set(events).size }
  }
  const row = async (id: string): Promise<HealingRow> =>
    fixture.database.knex('webhook_recoveries').where({ webhook_id: id }).first()
  const pings = () => receiver!.requests.filter(({ body }) => body.eventType === 'ping')
  const statuses = async () => {
    const found: DeliveryRow[] = await fixture.deliveries()
    const events = found.filter(({ event_type }) => event_type !== 'ping')
    return Object.fromEntries([...Map.groupBy(events, ({ status }) => status)].map(([is, some]) => [is, some.length]))
  }

  it('is pinged 10 minutes after a delivery was dropped, then after twice as long, up to an hour', async () => {
    const id = await webhook()
    await miss(1)
    const droppedAt = (await row(id)).began_at
    const at: number[] = []
    for (let minute = 0; minute < 260; minute++) {
      const before = pings().length
      await heal(MINUTE)
      if (pings().length > before) at.push(Math.round((clock.now() - droppedAt) / MINUTE))
    }
    assert.deepEqual(at, [10, 30, 70, 130, 190, 250])
  })

  it('gets what it missed at the first 200, each event once, and the wait begins anew with the next miss', async () => {
    const id = await webhook()
    await miss(3)
    await heal(10 * MINUTE)
    assert.deepEqual(await statuses(), { dropped: 3 })
    answer = () => ({ status: 200 })
    await heal(20 * MINUTE)
    assert.deepEqual(await statuses(), { dropped: 3, pending: 3 })
    await heal(60 * MINUTE)
    await send()
    assert.deepEqual(await statuses(), { dropped: 3, delivered: 3 })
    const healed = await row(id)
    assert.deepEqual([healed.queued, healed.recovered_at === null], [3, false])
    answer = () => ({ status: 503 })
    await miss(1)
    const again = await row(id)
    assert.deepEqual([again.pings, again.recovered_at, again.began_at > healed.began_at], [0, null, true])
  })

  it('is left alone if it is recovered on demand', async () => {
    const id = await webhook({})
    await miss(1)
    await heal(DAY)
    assert.equal(await row(id), undefined)
    assert.equal(pings().length, 0)
  })

  it('is given up after seven days, and begins anew only once it has acknowledged an event', async () => {
    const id = await webhook()
    await miss(1)
    for (let quarter = 0; quarter < 7 * 4 + 1; quarter++) await heal(DAY / 4)
    const count = pings().length
    assert.ok((await row(id)).given_up_at !== null)
    await miss(1)
    await heal(DAY)
    assert.equal(pings().length, count)
    answer = () => ({ status: 200 })
    await miss(1)
    answer = () => ({ status: 503 })
    await miss(1)
    await heal(11 * MINUTE)
    assert.equal(pings().length, count + 1)
  })

  it('that answers pings and refuses the rest is sent a few events each time, for seven days', async () => {
    const id = await webhook()
    answer = isPing => ({ status: isPing ? 200 : 503 })
    await miss(200)
    await pass(8 * DAY, DAY / 8)
    assert.ok((await row(id)).given_up_at !== null)
    const made = await fixture.countWhere({ status: 'dropped' })
    // As they came, once after the first ping, and a trial after each other ping.
    assert.ok(made > 2 * 200 && made <= 2 * 200 + 64 * 10, `${made} deliveries were dropped`)
    await heal(DAY)
    assert.equal(await fixture.countWhere({ status: 'dropped' }), made)
  })

  it('that was well again only after it had answered pings for two days gets everything', async () => {
    const id = await webhook()
    answer = isPing => ({ status: isPing ? 200 : 503 })
    await miss(200)
    await pass(2 * DAY, DAY / 8)
    answer = () => ({ status: 200 })
    await pass(DAY, MINUTE * 30)
    assert.deepEqual(await acknowledged(), { events: 200, twice: 0 })
    const healed = await row(id)
    assert.deepEqual([healed.on_trial, healed.recovered_at === null], [0, false])
  })

  it('sends an event that it always refuses again for seven days, and acknowledges the others once', async () => {
    const id = await webhook()
    let poison: string | undefined
    answer = (_isPing, report) => ({ status: report !== undefined && report === poison ? 503 : 200 })
    ;[poison] = await fixture.emit(1)
    await send()
    const times = () => receiver!.requests.filter(({ body }) => body.payload.projectReport?.id === poison).length
    for (let n = 0; n < 9 * 4; n++) {
      await miss(1)
      await heal(DAY / 4)
      await send()
    }
    const tried = times()
    assert.ok(tried > 20 && tried <= 30, `tried ${tried} times`)
    await pass(2 * DAY, DAY / 4)
    assert.equal(times(), tried)
    assert.deepEqual(await acknowledged(), { events: 36, twice: 0 })
    assert.equal((await row(id)).given_up_at, null)
  })

  const THREE_HOURS = atFullSize(6_000, 120)
  it(`that was away for three hours gets the ${THREE_HOURS} events that it missed, each once`, async () => {
    const id = await webhook()
    for (let n = 0; n < 18; n++) {
      await miss(Math.ceil(THREE_HOURS / 18))
      await heal(10 * MINUTE)
    }
    const missed = await fixture.countWhere({ status: 'dropped' })
    assert.ok(missed >= THREE_HOURS)
    answer = () => ({ status: 200 })
    await pass(60 * MINUTE, MINUTE)
    assert.deepEqual(await acknowledged(), { events: missed, twice: 0 })
    const { queued, recovered_at } = await row(id)
    assert.deepEqual([queued, recovered_at === null], [missed, false])
  })

  it('that comes and goes gets every event, and none after it was acknowledged', async () => {
    const id = await webhook()
    let emitted = 0
    for (let n = 0; n < 24; n++) {
      const isAway = n % 3 !== 2
      answer = () => ({ status: isAway ? 503 : 200 })
      await miss(5)
      emitted += 5
      await heal(25 * MINUTE)
      await send()
    }
    answer = () => ({ status: 200 })
    await pass(DAY, 30 * MINUTE)
    assert.deepEqual(await acknowledged(), { events: emitted, twice: 0 })
    assert.ok((await row(id)).recovered_at !== null)
  })

  it('is not pinged before the time until which its endpoint has asked to be left alone', async () => {
    const id = await webhook()
    await miss(1)
    answer = isPing => (isPing ? { status: 200 } : { status: 429, headers: { 'retry-after': '7200' } })
    await miss(1)
    const { held_until } = await fixture.webhookRow(id)
    await pass(119 * MINUTE, 7 * MINUTE)
    assert.equal(pings().length, 0)
    assert.equal((await row(id)).due_at, held_until)
    answer = () => ({ status: 200 })
    await pass(10 * MINUTE, 5 * MINUTE)
    assert.equal(pings().length, 1)
    assert.deepEqual(await acknowledged(), { events: 2, twice: 0 })
    answer = isPing => (isPing ? { status: 429, headers: { 'retry-after': '14400' } } : { status: 503 })
    await miss(1)
    await heal(10 * MINUTE)
    await heal(239 * MINUTE)
    assert.equal(pings().length, 2)
    await heal(2 * MINUTE)
    assert.equal(pings().length, 3)
  })

  for (const [end, how] of [
    [pingFailed, 'refused'],
    [pingAnswered, 'answered'],
  ] as const)
    it(`that has moved is pinged at its new URL at once, although a ping to the old one is ${how}`, async () => {
      const id = await webhook()
      await miss(3)
      const moved = await startReceiver()
      try {
        const { database } = fixture
        clock.advance(10 * MINUTE)
        const [underWay] = await database.transaction(trx => takeDue(trx, clock.now(), 1))
        await database.knex('webhooks').where({ id }).update({ url: moved.url })
        await pingSoon(database.knex, id, clock.now())
        await database.transaction(async trx => void (await end(trx, underWay!, clock.now())))
        await heal(1)
        await send()
        assert.equal(moved.requests.length, 4)
        assert.deepEqual(await statuses(), { dropped: 3, delivered: 3 })
      } finally {
        await moved.close()
      }
    })

  it('is healed soon after somebody has pinged it and it has answered', async () => {
    const id = await webhook()
    await miss(3)
    const loop = await fixture.startLoop()
    const token = { seesAllOrganisations: true } as AccessToken
    const change = <T>(work: (change: Change) => Promise<T>): Promise<T> =>
      fixture.database.transaction(trx => work({ trx, token, now: clock.now }))
    await pingStored({ change, loop, database: fixture.database }, id)
    await heal()
    assert.deepEqual(await statuses(), { dropped: 3 })
    answer = () => ({ status: 200 })
    await pingStored({ change, loop, database: fixture.database }, id)
    await heal()
    await loop.idle()
    await send()
    assert.deepEqual(await statuses(), { dropped: 3, delivered: 3 })
  })

  it('is pinged by its clients if it is pulled, and nothing is sent to its URL', async () => {
    const id = await webhook()
    await miss(2)
    await fixture.database.knex('webhooks').where({ id }).update({ transport: 'pull', held_until: PULL_TIME })
    await heal(10 * MINUTE)
    assert.deepEqual(answeredByClients, [id])
    assert.equal(pings().length, 0)
    assert.deepEqual(await statuses(), { dropped: 2, pending: 2 })
    const due: number[] = await fixture.database.knex('delivery_queue').pluck('due_at')
    assert.ok(due.every(at => Number(at) >= PULL_TIME))
  })

  it('is left alone once it is deleted, or recovered on demand', async () => {
    for (const change of [{ deleted_at: 1 }, { recovery: 'on_demand' }]) {
      const id = await webhook()
      await miss(1)
      await fixture.database.knex('webhooks').where({ id }).update(change)
      await heal(10 * MINUTE)
      assert.equal(await row(id), undefined)
      assert.equal(pings().length, 0)
      await receiver!.close()
      await fixture.reset()
    }
  })

  it('tells of no next ping while it is not active, and of none before its endpoint wants one', async () => {
    const id = await webhook()
    await miss(1)
    const { knex } = fixture.database
    const told = async () => {
      const source = { connection: knex } as Parameters<ReturnType<typeof healingTimeOf>['load']>[0]
      const time = (await healingTimeOf('nextPingAt').load(source, [id])).get(id)
      return time === undefined ? undefined : (Date.parse(time as string) - clock.now()) / MINUTE
    }
    assert.equal(await told(), 10)
    await knex('webhooks')
      .where({ id })
      .update({ held_until: clock.now() + 30 * MINUTE })
    assert.equal(await told(), 30)
    await knex('webhooks').where({ id }).update({ status: 'disabled', held_until: null })
    assert.equal(await told(), undefined)
  })

  it('is neither pinged nor sent to while it is disabled, and is healed once it is active again', async () => {
    const id = await webhook()
    await miss(2)
    await fixture.database.transaction(trx => leaveActive(trx, id, DISABLING, clock.now()))
    answer = () => ({ status: 200 })
    await heal(60 * MINUTE)
    assert.equal(pings().length, 0)
    await fixture.database.knex('webhooks').where({ id }).update({ status: 'active' })
    await heal(60 * MINUTE)
    await send()
    assert.deepEqual(await statuses(), { dropped: 2, delivered: 2 })
  })

  it('is healed page after page, and keeps the order of its project', async () => {
    await webhook({ recovery: 'automatic', ordering: 'project' })
    const reports: string[] = []
    for (let n = 0; n < 60; n++) {
      clock.advance(10)
      reports.push(...(await fixture.emit(1)))
    }
    await send()
    answer = () => ({ status: 200 })
    receiver!.requests.length = 0
    await heal(10 * MINUTE)
    assert.deepEqual(await statuses(), { dropped: 60, pending: 60 })
    await send()
    const arrived = receiver!.requests.flatMap(({ body }) => body.payload.projectReport?.id ?? [])
    assert.deepEqual(arrived, reports)
  })

  it('keeps the order of each project while new events come between two pages of what it missed', async () => {
    await webhook({ recovery: 'automatic', ordering: 'project' })
    const projects = [await fixture.project(), await fixture.project()]
    const happened = projects.map((): string[] => [])
    const emit = async () => {
      for (const [n, projectId] of projects.entries()) {
        clock.advance(10)
        happened[n]!.push(...(await fixture.emit(1, { projectId })))
      }
    }
    // More than a page.
    const each = 60
    for (let n = 0; n < each; n++) await emit()
    await send()
    assert.deepEqual(await statuses(), { dropped: 2 * each })
    const { database } = fixture
    clock.advance(10 * MINUTE)
    const [healing] = await database.transaction(trx => takeDue(trx, clock.now(), 1))
    await database.transaction(trx => pingAnswered(trx, healing!, clock.now()))
    assert.equal(await database.transaction(trx => queuePage(trx, healing!, clock.now)), 'more')
    for (let n = 0; n < 10; n++) await emit()
    clock.advance(HEALING_LEASE_MS)
    await heal()
    answer = () => ({ status: 200 })
    receiver!.requests.length = 0
    await send()
    const arrived = receiver!.requests.flatMap(({ body }) => body.payload.projectReport?.id ?? [])
    for (const reports of happened) {
      const own = new Set(reports)
      assert.deepEqual(
        arrived.filter(report => own.has(report)),
        reports,
      )
    }
    assert.equal(arrived.length, 2 * each + 20)
  })

  it('sends what it missed in a quarter of its places, and what is new in the rest', async () => {
    await webhook()
    await miss(60)
    const missed = new Set((await fixture.deliveries()).map(({ event_id }) => event_id))
    answer = () => ({ status: 200 })
    await heal(10 * MINUTE)
    const arrivals: { at: number; isNew: boolean }[] = []
    const reports = new Map<string, string>()
    for (const { id, payload } of await fixture.database.knex('events').whereIn('id', [...missed])) {
      reports.set(JSON.parse(payload).projectReport.id, id)
    }
    answer = (_isPing, report) => {
      arrivals.push({ at: performance.now(), isNew: !reports.has(report!) })
      return { status: 200, delayMs: 150 }
    }
    await fixture.emit(40)
    // Of 64 places a webhook has 16.
    const loop = await fixture.startLoop({ concurrency: 64 })
    await loop.idle()
    await loop.stop()
    const mostAtOnce = (isNew: boolean): number => {
      const times = arrivals.filter(arrival => arrival.isNew === isNew).map(({ at }) => at)
      return Math.max(...times.map(begun => times.filter(at => at >= begun && at < begun + 140).length))
    }
    assert.equal(arrivals.length, 100)
    const [ofNew, ofMissed] = [mostAtOnce(true), mostAtOnce(false)]
    assert.ok(ofMissed <= 4 && ofNew > 8 && ofNew <= 16, `${ofMissed} missed and ${ofNew} new at once`)
    const lastNew = arrivals.findLastIndex(({ isNew }) => isNew)
    const before = arrivals.slice(0, lastNew).filter(({ isNew }) => !isNew).length
    assert.ok(before <= 20, `${before} of 60 missed came before the last of 40 new ones`)
  })

  it('is in the hands of one process: of three that look at once, one pings and queues', async () => {
    await webhook()
    await miss(20)
    answer = () => ({ status: 200 })
    clock.advance(10 * MINUTE)
    await Promise.all([1, 2, 3].map(() => healSome(tools())))
    assert.equal(pings().length, 1)
    assert.deepEqual(await statuses(), { dropped: 20, pending: 20 })
  })

  it('goes on where a process was killed between ping, first page and last, and queues nothing twice', async () => {
    const id = await webhook()
    await miss(120)
    answer = () => ({ status: 200 })
    const { database } = fixture
    const take = async (): Promise<Healing> => {
      const [healing] = await database.transaction(trx => takeDue(trx, clock.now(), 1))
      return healing!
    }
    clock.advance(10 * MINUTE)
    const first = await take()
    await database.transaction(trx => pingAnswered(trx, first, clock.now()))
    assert.equal(await healSome(tools()), 0)
    clock.advance(HEALING_LEASE_MS)
    const second = await take()
    assert.equal(await database.transaction(trx => queuePage(trx, second, clock.now)), 'more')
    clock.advance(HEALING_LEASE_MS)
    await heal()
    assert.equal(await database.transaction(trx => queuePage(trx, second, clock.now)), 'stopped')
    assert.deepEqual(await statuses(), { dropped: 120, pending: 120 })
    assert.equal((await row(id)).queued, 120)
  })

  it('is healed of what is dropped while its missed events are queued', async () => {
    const id = await webhook()
    await miss(1)
    answer = isPing => ({ status: isPing ? 200 : 503 })
    clock.advance(10 * MINUTE)
    const [healing] = await fixture.database.transaction(trx => takeDue(trx, clock.now(), 1))
    await fixture.database.transaction(trx => pingAnswered(trx, healing!, clock.now()))
    await miss(1)
    clock.advance(HEALING_LEASE_MS)
    await heal()
    const { missed_since, answered_at, again_since } = await row(id)
    assert.deepEqual([answered_at, again_since, missed_since > healing!.row.missed_since], [null, null, true])
  })

  it('waits for no other tenant: not for a thousand dead endpoints, nor for a thousand disabled ones', async () => {
    const { knex } = fixture.database
    const dead = { accessTokenId: (await fixture.token()).id, recovery: 'automatic' } as const
    const active = await addWebhooks(
      knex,
      Array.from({ length: 1_000 }, () => dead),
    )
    const disabled = await addWebhooks(
      knex,
      Array.from({ length: 1_000 }, () => ({ ...dead, status: 'disabled' as const })),
    )
    const now = clock.now()
    await insertMany(
      knex,
      'webhook_recoveries',
      [...active, ...disabled].map(webhook_id => ({ webhook_id, missed_since: now, began_at: now, due_at: now })),
    )
    const own = await webhook()
    await miss(1)
    clock.advance(11 * MINUTE)
    let asked = 0
    const ping = async () => {
      asked += 1
      return 0
    }
    await healSome(tools({ ping }))
    // Its own tenant's place, and no more than their share of the others.
    assert.ok(asked > 1 && asked <= 5, `${asked} pings`)
    assert.equal((await row(own)).pings, 1)
  })
})
