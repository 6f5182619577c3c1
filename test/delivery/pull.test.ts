import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, afterEach, before, it, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { newLease } from '../../server/delivery/leases.ts'
import { createNetworkGuard } from '../../server/delivery/network-guard.ts'
import { HandOver } from '../../server/delivery/pull/hand-over.ts'
import { lookAt } from '../../server/delivery/pull/looks.ts'
import { PullPings } from '../../server/delivery/pull/pings.ts'
import { type Puller, takeDeliveries } from '../../server/delivery/pull/pull.ts'
import { giveBackTaken, lapsedRows, take } from '../../server/delivery/pull/take.ts'
import type { Wait, Waiting } from '../../server/delivery/pull/waiting.ts'
import { Waits } from '../../server/delivery/pull/waits.ts'
import type { Job } from '../../server/delivery/queue.ts'
import { createSender } from '../../server/delivery/send.ts'
import type { Credentials } from '../../server/domain/access-tokens.ts'
import { enqueue } from '../../server/domain/deliveries.ts'
import { recordPing } from '../../server/domain/events.ts'
import type { AccessToken } from '../../server/domain/permissions.ts'
import { PULL_TIME, TAKEN_TIME } from '../../server/domain/pull-time.ts'
import { webhookNow } from '../../server/domain/webhooks.ts'
import { createLog } from '../../server/log.ts'
import { testClock } from '../support/clock.ts'
import { describeEachEngine } from '../support/databases.ts'
import { mostEachSecond } from '../support/effort.ts'
import { eventually } from '../support/eventually.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { addWebhook } from '../support/webhooks.ts'
import { type Fixture, startFixture } from './fixture.ts'

const CLIENTS = 1_000
/** Their signatures are marked. */
const mark = () => undefined

const tokenOf = (id: string): AccessToken => ({
  ...{ id, name: 'worker', apiKey: 'worker', permissions: ['webhooks'], seesAllOrganisations: true },
  ...{ expiresAt: null, revokedAt: null, lastUsedAt: null, createdAt: 0 },
})

describeEachEngine('what clients take', engine => {
  const clock = testClock()
  let fixture: Fixture
  let receiver: Receiver | undefined
  before(async () => {
    fixture = await startFixture(engine, clock)
  })
  afterEach(async () => {
    await receiver?.close()
    receiver = undefined
    fixture.database.knex.removeAllListeners('query')
    await fixture.reset()
  })
  after(() => fixture?.stop())

  const dueTimes = async (): Promise<number[]> =>
    (await fixture.database.knex('delivery_queue').pluck('due_at')).map(Number)

  /** Begins to wait as a client; the result says why that ended. */
  const waitIn = (waits: Waits, webhookId: string, token: AccessToken, given: Partial<Wait> = {}) => {
    const own = { webhookId, token, address: '::1', until: performance.now() + 60_000, limit: 10, mark }
    const client = { ...own, isActive: true, isSeen: true, isLate: false, gone: new AbortController().signal }
    return waits.wait({ ...client, ...given }).then(({ why }) => why)
  }
  /** As one whose token was just found valid, and that takes one. */
  const waitBelieved = (waits: Waits, webhookId: string, token: AccessToken, gone?: AbortController) => {
    waits.handOver.believe(token.id, performance.now())
    return waitIn(waits, webhookId, token, { isLate: true, limit: 1, ...(gone && { gone: gone.signal }) })
  }
  const someToken = async () => tokenOf((await fixture.token()).id)
  const pulled = () => fixture.webhook('https://tidings.example/pull/x', { transport: 'pull' })
  const startWaits = () => new Waits({ database: fixture.database, clock, log: createLog('silent') })
  const pullerOf = ({
    waits,
    ...given
  }: { waits: Waits } & Pick<Puller, 'loop' | 'token' | 'act'> & Partial<Puller>) => {
    const { database, keyring, sealer } = fixture
    const sender = createSender({ guard: createNetworkGuard({ allow: [] }), maxConnectionsPerOrigin: 1 })
    const look = (webhookId: string) => waits.look(webhookId)
    const puller: Puller = {
      ...{ database, address: '::1', gone: new AbortController().signal, mark, leavePlace: () => {} },
      pull: { waits, pings: new PullPings({ database, clock, look }) },
      tools: { clock, keyring, sealer, sender, issuerUrl: 'https://tidings.example', retryScheduleMs: [] },
      ...given,
    }
    return { puller, close: () => sender.close() }
  }
  /** Counts the looks of waiting clients from now on. */
  const countLooks = () => {
    let count = 0
    const { knex } = fixture.database
    knex.on('query', ({ sql }) => (count += sql.includes('AS owner') ? 1 : 0))
    return () => count
  }

  it('is sent by no loop, which leaves what a process of an earlier version has queued to clients', async () => {
    receiver = await startReceiver()
    const id = await fixture.webhook(receiver.url, { transport: 'pull' })
    const loop = await fixture.startLoop()
    await fixture.emit(2, { through: loop })
    assert.deepEqual(await dueTimes(), [PULL_TIME + clock.now(), PULL_TIME + clock.now()])
    // As it is queued by a process that knows nothing of clients.
    const { database } = fixture
    await database.transaction(async trx => {
      const event = { id: await recordPing(trx, clock.now()), type: 'ping' as const }
      await enqueue(trx, [{ event, webhook: { id, epoch: 0, transport: 'push' } }], clock.now())
    })
    loop.wake()
    await eventually('all to wait for clients', dueTimes, all => all.every(due => due >= PULL_TIME))
    const planned = await database.knex('deliveries').pluck('next_attempt_at')
    assert.ok(planned.every(at => Number(at) <= clock.now()))
    await loop.idle()
    assert.equal(receiver.requests.length, 0)
    assert.equal(await fixture.count('attempts'), 0)
  })

  it('is due to be sent if its webhook is pushed by the time that it is given back', async () => {
    const id = await fixture.webhook('https://tidings.example/pull/x', { transport: 'pull' })
    const loop = await fixture.startLoop()
    await fixture.emit(1, { through: loop })
    await loop.stop()
    const { database } = fixture
    const [deliveryId] = await database.knex('delivery_queue').pluck('delivery_id')
    const lease = randomUUID()
    const taken = { lease, taken: '{}', attempt: 1, due_at: TAKEN_TIME + clock.now() + 30_000 }
    await database.knex('delivery_queue').update(taken)
    await database.knex('webhooks').where({ id }).update({ transport: 'push', held_until: null })
    await database.transaction(trx => giveBackTaken(trx, id, [{ deliveryId, lease }], clock.now()))
    assert.deepEqual(await dueTimes(), [clock.now()])
  })

  it('is due to clients that wait as soon as the time is over for which one asked to wait', async () => {
    const id = await pulled()
    const loop = await fixture.startLoop()
    await fixture.emit(1, { through: loop })
    const { database } = fixture
    const end = clock.now() + 30_000
    await database
      .knex('webhooks')
      .where({ id })
      .update({ held_until: PULL_TIME + end })
    const isDue = async (now: number) => (await lookAt(database, { webhookIds: [id], tokenIds: [id], now }))[0]!.number
    assert.deepEqual([await isDue(end - 1), await isDue(end)].map(Number), [0, 1])
  })

  it('has lapsed as soon as its lease is over', async () => {
    await pulled()
    const loop = await fixture.startLoop()
    await fixture.emit(1, { through: loop })
    const { knex } = fixture.database
    const end = clock.now() + 30_000
    await knex('delivery_queue').update({ lease: randomUUID(), taken: '{}', attempt: 1, due_at: TAKEN_TIME + end })
    assert.equal((await lapsedRows(knex, end - 1, 10)).length, 0)
    assert.equal((await lapsedRows(knex, end, 10)).length, 1)
  })

  it('is nothing once its webhook is pushed, also for a client that was woken before', async () => {
    const id = await fixture.webhook('https://tidings.example/pull/x', { transport: 'pull' })
    const { database } = fixture
    const waits = new Waits({ database, clock, log: createLog('silent') })
    const loop = await fixture.startLoop({ waits })
    await fixture.emit(1, { through: loop })
    const token = tokenOf((await fixture.token()).id)
    const act: Puller['act'] = async work => {
      await database.knex('webhooks').where({ id }).update({ transport: 'push' })
      return database.transaction(trx => work({ trx, token, now: clock.now }))
    }
    const { puller, close } = pullerOf({ waits, loop, token, act })
    await assert.rejects(takeDeliveries(puller, { webhookId: id }), { code: 'CONFLICT' })
    const [due] = await dueTimes()
    assert.ok(due! < TAKEN_TIME, 'nobody has taken it')
    waits.stop()
    await close()
  })

  it('leaves the place of its request to others while a client waits for it', async () => {
    const id = await pulled()
    const waits = startWaits()
    const gone = new AbortController()
    const left = Promise.withResolvers<void>()
    const { puller, close } = pullerOf({
      ...{ waits, loop: await fixture.startLoop({ waits }), token: await someToken(), gone: gone.signal },
      leavePlace: left.resolve,
      act: () => assert.fail('nothing is due'),
    })
    const taking = takeDeliveries(puller, { webhookId: id, waitSeconds: 30 })
    await left.promise
    assert.equal(waits.count(), 1)
    gone.abort()
    assert.deepEqual(await taking, [])
    waits.stop()
    await close()
  })

  it('is nothing that was queued before its webhook was disabled and enabled again', async () => {
    const id = await pulled()
    const loop = await fixture.startLoop()
    await fixture.emit(2, { through: loop })
    const { database } = fixture
    const [present] = await database.knex('delivery_queue').pluck('delivery_id')
    // The other is cancelled in a moment.
    await database.knex('webhooks').where({ id }).update({ epoch: 1 })
    await database.knex('delivery_queue').where({ delivery_id: present }).update({ epoch: 1 })
    const now = clock.now()
    const given = { taker: '{}', lease: newLease(now), limit: 10, now, leaseEnd: now + 30_000 }
    const [webhook, token] = [await webhookNow(database.knex, id), await someToken()]
    const jobs = await database.transaction(trx => take(trx, { webhook, token, ...given }))
    assert.deepEqual(
      jobs.map(({ deliveryId }) => deliveryId),
      [present],
    )
  })

  it('tells a client that does not see a webhook nothing of its becoming active', async () => {
    const [owner, stranger] = [await fixture.token(), await fixture.token()]
    const { database } = fixture
    const id = await addWebhook(database.knex, { accessTokenId: owner.id, transport: 'pull', status: 'disabled' })
    const waits = new Waits({ database, clock, log: createLog('silent') })
    const wait = (token: Credentials, isSeen: boolean) =>
      waits.wait({
        ...{ webhookId: id, address: '::1', isActive: false, isSeen, isLate: true, limit: 10, mark },
        token: tokenOf(token.id),
        until: performance.now() + 60_000,
        gone: new AbortController().signal,
      })
    const [hidden, seen, own] = [wait(stranger, false), wait(stranger, true), wait(owner, false)]
    await database.knex('webhooks').where({ id }).update({ status: 'active' })
    waits.hurry()
    // One look tells all of them.
    assert.deepEqual(await Promise.all([seen, own]), [{ why: 'active' }, { why: 'active' }])
    assert.equal(waits.count(), 1)
    waits.stop()
    assert.deepEqual(await hidden, { why: 'stopping' })
  })

  it('asks the database one thing a second for a thousand clients that wait, and wakes one for one event', async () => {
    const ids = await Promise.all(Array.from({ length: 4 }, pulled))
    const token = await someToken()
    const waits = startWaits()
    const loop = await fixture.startLoop({ waits })
    const woken: string[] = []
    const waiting = Array.from({ length: CLIENTS }, async (_, n) => {
      woken.push(await waitIn(waits, ids[n % ids.length]!, token))
    })
    await sleep(200)
    const looks = countLooks()
    const beganAt = performance.now()
    await sleep(1_700)
    const count = looks()
    assert.ok(count >= 1 && count <= mostEachSecond(beganAt), `${count} looks`)
    assert.equal(waits.count(), CLIENTS)
    await fixture.emit(1, { through: loop })
    await eventually(
      'one client of each webhook to be woken',
      () => woken.length,
      count => count === ids.length,
    )
    assert.equal(woken.filter(why => why !== 'handed' && why !== 'due').length, 0)
    waits.stop()
    await Promise.all(waiting)
    assert.equal(woken.filter(why => why === 'stopping').length, CLIENTS - ids.length)
  })

  it('is taken together by one client if it is committed within a moment, and what comes next by another', async () => {
    const id = await pulled()
    const token = await someToken()
    const waits = startWaits()
    const woken: number[] = []
    const waiting = [0, 1, 2].map(async n => {
      if ((await waitIn(waits, id, token)) === 'due') woken.push(n)
    })
    for (let n = 0; n < 5; n++) waits.committed(id)
    await Promise.resolve()
    assert.equal(waits.count(), 2)
    await eventually(
      'the next client to be woken',
      () => woken.length,
      length => length === 2,
    )
    waits.stop()
    await Promise.all(waiting)
    assert.deepEqual(woken, [0, 1])
  })

  it('is a waiting client’s from its commit on, of which nothing is left if there is none', async () => {
    const id = await pulled()
    const token = await someToken()
    const waits = startWaits()
    const loop = await fixture.startLoop({ waits })
    const woken = waitBelieved(waits, id, token)
    const failing = fixture.emit(1, { through: loop, beforeCommit: () => Promise.reject(new Error('no')) })
    await assert.rejects(failing, /no/)
    assert.equal(waits.count(), 1)
    waits.handOver.believe(token.id, performance.now())
    await fixture.emit(1, { through: loop })
    assert.equal(await woken, 'handed')
    const row = await fixture.database.knex('delivery_queue').first()
    assert.ok(row.due_at >= TAKEN_TIME)
    assert.deepEqual([row.attempt, JSON.parse(row.taken).id], [1, token.id])
    waits.stop()
  })

  it('wakes a client that is owed another delivery, if no other client waits', async () => {
    const [waits, token, webhookId] = [startWaits(), await someToken(), randomUUID()]
    const waiting = waitBelieved(waits, webhookId, token)
    const job = { webhookId, deliveryId: randomUUID(), webhook: { held_until: null } } as unknown as Job
    assert.ok(waits.handOver.reserve(job, clock.now()))
    waits.wake(webhookId)
    waits.stop()
    assert.equal(await waiting, 'due')
  })

  it('is due again if its client leaves before it is committed', async () => {
    const id = await pulled()
    const token = await someToken()
    const waits = startWaits()
    const loop = await fixture.startLoop({ waits })
    const gone = new AbortController()
    void waitBelieved(waits, id, token, gone)
    await fixture.emit(1, { through: loop, beforeCommit: async () => gone.abort() })
    const isDue = (all: number[]) => all.every(due => due < TAKEN_TIME)
    await eventually('it to be due', dueTimes, isDue)
    assert.equal((await fixture.database.knex('delivery_queue').first()).attempt, 0)
    waits.stop()
  })

  it('is tried on few of thousands of clients that may not have it', async () => {
    const id = await pulled()
    const [limited, token] = [{ ...(await someToken()), seesAllOrganisations: false }, await someToken()]
    const waits = startWaits()
    const loop = await fixture.startLoop({ waits })
    for (let n = 0; n < 200; n++) void waitBelieved(waits, id, limited)
    const last = waitBelieved(waits, id, token)
    await fixture.emit(1, { through: loop })
    // It is queued as any other: the first in line takes it.
    await eventually('it to be queued', dueTimes, all => all.length === 1)
    assert.ok((await dueTimes()).every(due => due < TAKEN_TIME))
    waits.stop()
    assert.equal(await last, 'stopping')
  })

  it('is not missed if it is committed while the only client takes', async () => {
    const id = await pulled()
    const waits = startWaits()
    const under = waits.take(id)
    waits.committed(id)
    assert.equal(under.isOvertaken, true)
    under.end()
    waits.stop()
  })

  it('is not looked for right after a take that found all, unless more is committed meanwhile', async () => {
    const id = await pulled()
    const token = await someToken()
    const waits = startWaits()
    const takeAll = () => {
      const under = waits.take(id)
      under.isAll = true
      under.end()
    }
    const looks = countLooks()
    takeAll()
    const waiting = waitIn(waits, id, token)
    waits.committed(id)
    assert.equal(await waiting, 'due')
    assert.equal(looks(), 0)
    takeAll()
    waits.wake(id)
    const again = waitIn(waits, id, token)
    await eventually('a look', looks, count => count > 0)
    waits.stop()
    await again
  })
})

/** What is handed over to clients that wait, each in the line of a webhook, and what of it is given back. */
const handOverTo = (...clients: (Partial<Waiting> & { webhookId: string })[]) => {
  const usual = { token: tokenOf('a'), isActive: true, isMarked: true, limit: 10, owed: 0 }
  const waiting = clients.map(client => ({ ...usual, jobs: [], ...client }) as unknown as Waiting)
  const lines = new Map([...Map.groupBy(waiting, one => one.webhookId)].map(([id, own]) => [id, new Set(own)]))
  const givenBack: [webhookId: string, count: number][] = []
  const giveBack = ({ webhookId, jobs }: { webhookId: string; jobs: unknown[] }) =>
    givenBack.push([webhookId, jobs.length])
  const handOver = new HandOver({ lines, leave: () => {}, giveBack, onHanded: () => {} })
  for (const { token } of waiting) handOver.believe(token.id, performance.now())
  const reserve = (webhookId: string, deliveryId: string) =>
    handOver.reserve({ webhookId, deliveryId, webhook: { held_until: null } } as unknown as Job, 0)
  return { handOver, lines, waiting, givenBack, reserve }
}

test('deliveries of a transaction in doubt are given back together, those of each webhook', () => {
  const { handOver, givenBack, reserve } = handOverTo({ webhookId: 'x' }, { webhookId: 'y' })
  const handings = ['x', 'y', 'x'].map((webhookId, n) => reserve(webhookId, `${n}`)!)
  handOver.release(handings, true)
  assert.deepEqual(givenBack, [
    ['x', 2],
    ['y', 1],
  ])
})

test('a waiting client is promised no more deliveries than it takes at once', () => {
  const { reserve } = handOverTo({ webhookId: 'x', limit: 2 })
  assert.deepEqual(
    ['1', '2', '3'].map(id => reserve('x', id) !== undefined),
    [true, true, false],
  )
})

test('a delivery whose client has left goes to another of its token and address, and else to nobody', () => {
  const stranger = { webhookId: 'x', token: tokenOf('b'), address: '::1' }
  for (const [others, handedTo] of [
    [[stranger, { webhookId: 'x', address: '::2' }], undefined],
    [[stranger, { webhookId: 'x', address: '::1' }], 2],
  ] as const) {
    const { handOver, lines, waiting, givenBack, reserve } = handOverTo({ webhookId: 'x', address: '::1' }, ...others)
    const handing = reserve('x', '1')!
    lines.get('x')!.delete(waiting[0]!)
    handOver.hand([handing])
    assert.deepEqual(
      waiting.map(({ jobs }) => jobs.length),
      waiting.map((_, n) => (n === handedTo ? 1 : 0)),
    )
    assert.deepEqual(givenBack, handedTo === undefined ? [['x', 1]] : [])
  }
})
