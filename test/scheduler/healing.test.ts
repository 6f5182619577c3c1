import assert from 'node:assert/strict'
import { after, afterEach, before, it } from 'node:test'
import { createNetworkGuard } from '../../server/delivery/network-guard.ts'
import { pingOnce } from '../../server/delivery/ping.ts'
import { createSender } from '../../server/delivery/send.ts'
import { HEALING_LEASE_MS, type Healing, pingAnswered, queuePage, takeDue } from '../../server/domain/healing.ts'
import type { HealingRow } from '../../server/domain/missed.ts'
import type { DeliveryRow } from '../../server/domain/resources.ts'
import { leaveActive } from '../../server/domain/webhooks.ts'
import { createLog } from '../../server/log.ts'
import { type HealerTools, healSome } from '../../server/scheduler/healer.ts'
import { type Fixture, startFixture } from '../delivery/fixture.ts'
import { testClock } from '../support/clock.ts'
import { describeEachEngine } from '../support/databases.ts'
import { type Answer, type Receiver, startReceiver } from '../support/receiver.ts'
import { DISABLING } from '../support/webhooks.ts'

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
  let answer: (isPing: boolean) => Answer = () => ({ status: 503 })
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
    receiver = await startReceiver({ answer: ({ body }) => answer(body.eventType === 'ping') })
    return fixture.webhook(receiver.url, given)
  }
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
      ping: given => pingOnce(attemptTools, given),
      onQueued: () => {},
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

  it('that answers pings and refuses the rest is tried less and less, for seven days', async () => {
    const id = await webhook()
    answer = isPing => ({ status: isPing ? 200 : 503 })
    await miss(2)
    for (let quarter = 0; quarter < 8 * 4; quarter++) {
      await heal(DAY / 4)
      await send()
    }
    assert.ok((await row(id)).given_up_at !== null)
    const made = await fixture.countWhere({ status: 'dropped' })
    await heal(DAY)
    assert.equal(await fixture.countWhere({ status: 'dropped' }), made)
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
    assert.equal(
      await database.transaction(trx => queuePage(trx, second, clock.now)),
      engine === 'sqlite' ? 'more' : 'complete',
    )
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

  it('takes pings of its own tenant alone: a thousand dead endpoints leave the others their turn', async () => {
    const dead = 'http://127.0.0.1:9/'
    for (let n = 0; n < 50; n++) await fixture.webhook(dead, { recovery: 'automatic' })
    await miss(1)
    const { id: access_token_id } = await fixture.token()
    const id = await webhook()
    await fixture.database.knex('webhooks').where({ id }).update({ access_token_id })
    await miss(1)
    clock.advance(11 * MINUTE)
    await healSome(tools())
    assert.equal(pings().length, 1)
  })
})
