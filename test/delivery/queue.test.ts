import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, afterEach, before, describe, it } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import { connect, type Database, insertMany, rows } from '../../server/database/connect.ts'
import { extendLeases, LEASE_MS, newLease } from '../../server/delivery/leases.ts'
import type { AttemptResult, Outcome } from '../../server/delivery/outcome.ts'
import {
  claim,
  forgetClaim,
  headOfEach,
  type Job,
  putBack,
  type Settlement,
  type Triage,
} from '../../server/delivery/queue.ts'
import { settle } from '../../server/delivery/settle.ts'
import { leaveActive } from '../../server/domain/webhooks.ts'
import { testClock } from '../support/clock.ts'
import { describeEachEngine, engines } from '../support/databases.ts'
import { mostEachSecond } from '../support/effort.ts'
import { eventually } from '../support/eventually.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { DISABLING } from '../support/webhooks.ts'
import { type Fixture, startFixture } from './fixture.ts'

const takeAll = (due: Job[]): Triage => ({ take: due, later: [] })

describeEachEngine('the queue', engine => {
  const clock = testClock()
  let fixture: Fixture
  before(async () => {
    fixture = await startFixture(engine, clock)
  })
  afterEach(() => fixture.reset())
  after(() => fixture?.stop())

  /** The latest lease of each process. */
  const leases: Record<string, string> = {}
  const claimAs = async (name: string, { limit = 10, triage = takeAll } = {}): Promise<Job[]> => {
    const lease = newLease(clock.now())
    leases[name] = lease
    return (await claim(fixture.database, { lease, now: clock.now(), limit, leaseMs: LEASE_MS, triage })).taken
  }

  const settlement = (job: Job, statusCode: number, outcome: Outcome, body = ''): Settlement => {
    const result: AttemptResult = { kind: 'response', statusCode, body }
    return { job, startedAt: clock.now(), durationMs: 7, result, outcome }
  }
  const delivered = (job: Job) => settlement(job, 200, { status: 'delivered' })
  const failed = (job: Job) =>
    settlement(job, 500, { status: 'pending', retryInMs: 5000, failureCount: 1, throttledSinceMs: null })

  const queued = async () => {
    const [row] = await rows<{ lease: string | null; due_at: number; attempt: number; failure_count: number }>(
      fixture.database.knex,
      'SELECT lease, due_at, attempt, failure_count FROM delivery_queue',
    )
    return row
  }

  it('has an event, its deliveries and their places in the queue together, or none of them', async () => {
    await fixture.webhook('http://127.0.0.1:9/')
    const { transaction } = fixture.database
    fixture.database.transaction = work =>
      transaction(async trx => {
        await work(trx)
        throw new Error('the power went off')
      })
    await assert.rejects(fixture.emit(), /power/)
    fixture.database.transaction = transaction
    for (const table of ['events', 'deliveries', 'delivery_queue']) assert.equal(await fixture.count(table), 0, table)
    await fixture.emit()
    for (const table of ['events', 'deliveries', 'delivery_queue']) assert.equal(await fixture.count(table), 1, table)
  })

  it('gives what is due in the order of its due time, each to one claim only', async () => {
    await fixture.webhook('http://127.0.0.1:9/')
    for (let n = 0; n < 6; n++) {
      await fixture.emit()
      clock.advance(1)
    }
    const inOrder = (await fixture.deliveries()).map(({ id }) => id)
    const first = await claimAs('first', { limit: 4 })
    const second = await claimAs('second', { limit: 4 })
    assert.deepEqual(
      [...first, ...second].map(job => job.deliveryId),
      inOrder,
    )
    assert.deepEqual(await claimAs('third'), [])
  })

  it('gives first attempts and retries to one claim', async () => {
    await fixture.webhook('http://127.0.0.1:9/')
    for (let n = 0; n < 3; n++) await fixture.emit()
    const [tried] = await fixture.database.knex('delivery_queue').pluck('delivery_id')
    await fixture.database.knex('delivery_queue').where({ delivery_id: tried }).update({ attempt: 4 })
    const attempts = (await claimAs('first')).map(({ attempt }) => attempt)
    assert.deepEqual(attempts.sort(), [1, 1, 5])
  })

  it('leaves a webhook as it is that was changed since its endpoint asked to stop', async () => {
    const id = await fixture.webhook('http://127.0.0.1:9/')
    await fixture.emit()
    await fixture.database.knex('webhooks').where({ id }).update({ epoch: 1 })
    const leaving = { from: { status: 'active', epoch: 0 }, to: { status: 'inactive', reason: '429' } } as const
    assert.equal(await fixture.database.transaction(trx => leaveActive(trx, id, leaving, clock.now())), false)
    assert.equal(await fixture.count('webhook_versions'), 0)
    assert.equal((await fixture.delivery(id)).status, 'pending')
  })

  it('gives back what a claim has no place for, due later and without an attempt', async () => {
    const webhookId = await fixture.webhook('http://127.0.0.1:9/')
    await fixture.emit()
    const dueAt = clock.now() + 300
    const none = await claimAs('first', { triage: due => ({ take: [], later: due.map(job => ({ job, dueAt })) }) })
    assert.deepEqual(none, [])
    assert.deepEqual({ ...(await queued()) }, { lease: null, due_at: dueAt, attempt: 0, failure_count: 0 })
    assert.equal((await fixture.delivery(webhookId)).next_attempt_at, dueAt, 'and says so')
    clock.set(dueAt)
    assert.equal((await claimAs('second'))[0]!.attempt, 1)
  })

  it('knows what is due first of each webhook in each of its epochs, new and recovered, of hundreds', async () => {
    const lines = Array.from({ length: 700 }, (_, n) => ({
      webhook_id: randomUUID(),
      epoch: n % 3,
      recovered: n % 2,
      due_at: 1_000_000 - n,
    }))
    const more = lines.flatMap(line => [
      { ...line, recovered: 1 - line.recovered, due_at: line.due_at + 2_000_000 },
      { ...line, epoch: line.epoch + 1, due_at: line.due_at + 4_000_000 },
    ])
    const later = lines.map(line => ({ ...line, due_at: line.due_at + 6_000_000 }))
    const queuedRows = [...lines, ...more, ...later].map(line => ({
      ...line,
      delivery_id: randomUUID(),
      event_id: randomUUID(),
    }))
    await insertMany(fixture.database.knex, 'delivery_queue', queuedRows)
    const heads = await headOfEach(fixture.database)
    const wanted = [...lines, ...more].toSorted((x, y) => x.due_at - y.due_at)
    assert.deepEqual(
      heads.map(({ webhookId, epoch, recovered, dueAt }) => [webhookId, epoch, recovered, dueAt]),
      wanted.map(line => [line.webhook_id, line.epoch, line.recovered === 1, line.due_at]),
    )
  })

  it('takes over a lease that has run out, and logs the attempt that was lost', async () => {
    const webhookId = await fixture.webhook('http://127.0.0.1:9/')
    await fixture.emit()
    const [lost] = await claimAs('dead')
    clock.advance(LEASE_MS - 1)
    assert.deepEqual(await claimAs('heir'), [])
    clock.advance(1)
    const [job] = await claimAs('heir')
    assert.equal(job!.deliveryId, lost!.deliveryId)
    assert.equal(job!.attempt, 2)
    const [attempt] = await fixture.attempts(job!.deliveryId)
    assert.equal(attempt!.failure, 'lost')
    assert.equal(attempt!.started_at, clock.now() - LEASE_MS)
    // What was lost is no failure of the endpoint.
    assert.equal(job!.failureCount, 0)
    await settle(fixture.database, [delivered(job!)], clock.now)
    assert.equal((await fixture.delivery(webhookId)).attempt_count, 2)
  })

  it('logs a lost attempt from its claim on, also where its lease was extended', async () => {
    await fixture.webhook('http://127.0.0.1:9/')
    await fixture.emit()
    const [lost] = await claimAs('dead')
    const claimedAt = clock.now()
    clock.advance(10_000)
    await extendLeases(fixture.database, [lost!], clock.now() + LEASE_MS)
    clock.advance(LEASE_MS)
    const [job] = await claimAs('heir')
    assert.equal((await fixture.attempts(job!.deliveryId))[0]!.started_at, claimedAt)
  })

  it('does not count a failure under a lease that was lost, and logs it as it was', async () => {
    const webhookId = await fixture.webhook('http://127.0.0.1:9/')
    await fixture.emit()
    const [frozen] = await claimAs('frozen')
    clock.advance(LEASE_MS)
    const [heir] = await claimAs('heir')
    await settle(fixture.database, [failed(frozen!)], clock.now)
    const row = await queued()
    assert.deepEqual([row!.lease, row!.failure_count], [leases.heir, 0])
    assert.equal((await fixture.delivery(webhookId)).status, 'pending')
    const [told] = await fixture.attempts(frozen!.deliveryId)
    assert.deepEqual([told!.failure, told!.status_code], [null, 500])
    await settle(fixture.database, [failed(heir!)], clock.now)
    assert.deepEqual([(await queued())!.lease, (await queued())!.failure_count], [null, 1])
  })

  for (const outcome of [
    { status: 'rejected' },
    { status: 'dropped', reason: 'retries_exhausted' },
    { status: 'cancelled', deactivateWebhook: 'throttled_without_retry_after' },
  ] as Outcome[]) {
    it(`lets an outcome of ${outcome.status} under a lost lease end nothing`, async () => {
      const webhookId = await fixture.webhook('http://127.0.0.1:9/')
      await fixture.emit()
      const [frozen] = await claimAs('frozen')
      clock.advance(LEASE_MS)
      await claimAs('heir')
      await settle(fixture.database, [settlement(frozen!, 429, outcome)], clock.now)
      assert.equal((await fixture.delivery(webhookId)).status, 'pending')
      assert.equal((await fixture.webhookRow(webhookId)).status, 'active')
      assert.equal((await queued())!.lease, leases.heir)
    })
  }

  it('counts a 2XX under a lost lease: the receiver has acknowledged the event', async () => {
    const webhookId = await fixture.webhook('http://127.0.0.1:9/')
    await fixture.emit()
    const [frozen] = await claimAs('frozen')
    clock.advance(LEASE_MS)
    const [heir] = await claimAs('heir')
    await settle(fixture.database, [delivered(frozen!)], clock.now)
    assert.equal((await fixture.delivery(webhookId)).status, 'delivered')
    assert.equal(await fixture.count('delivery_queue'), 0)
    // And what the other one's attempt comes to changes nothing any more.
    await settle(fixture.database, [failed(heir!)], clock.now)
    const { status, next_attempt_at, attempt_count } = await fixture.delivery(webhookId)
    assert.deepEqual([status, next_attempt_at, attempt_count], ['delivered', null, 2])
    assert.equal(await fixture.count('delivery_queue'), 0)
  })

  it('logs nothing of a delivery that was purged before its last attempt was recorded', async () => {
    await fixture.webhook('http://127.0.0.1:9/')
    await fixture.emit()
    const [frozen] = await claimAs('frozen')
    clock.advance(LEASE_MS)
    const [heir] = await claimAs('heir')
    await settle(fixture.database, [delivered(heir!)], clock.now)
    for (const table of ['deliveries', 'attempts', 'events']) await fixture.database.knex(table).delete()
    await settle(fixture.database, [delivered(frozen!)], clock.now)
    for (const table of ['deliveries', 'attempts']) assert.equal(await fixture.count(table), 0, table)
  })

  it('keeps a delivery until its webhook is inactive, and sends it again where nobody makes it so', async () => {
    const webhookId = await fixture.webhook('http://127.0.0.1:9/')
    await fixture.emit()
    const [job] = await claimAs('first')
    const end: Outcome = { status: 'cancelled', deactivateWebhook: 'throttled_without_retry_after' }
    await settle(fixture.database, [settlement(job!, 429, end)], clock.now)
    assert.equal((await fixture.delivery(webhookId)).status, 'pending')
    assert.deepEqual(await claimAs('at once'), [])
    clock.advance(31_000)
    assert.equal((await claimAs('heir'))[0]!.attempt, 2)
  })

  it('finishes nothing before it was created, where the clock of another process is ahead', async () => {
    const webhookId = await fixture.webhook('http://127.0.0.1:9/')
    await fixture.emit()
    const [job] = await claimAs('first')
    const createdAt = clock.now() + 5_000
    await fixture.database.knex('deliveries').update({ created_at: createdAt })
    await settle(fixture.database, [delivered(job!)], clock.now)
    assert.equal((await fixture.delivery(webhookId)).finished_at, createdAt)
  })

  it('is not confused by both attempts of one delivery in one batch', async () => {
    const webhookId = await fixture.webhook('http://127.0.0.1:9/')
    await fixture.emit()
    const [frozen] = await claimAs('frozen')
    clock.advance(LEASE_MS)
    const [heir] = await claimAs('heir')
    await settle(fixture.database, [failed(heir!), delivered(frozen!)], clock.now)
    const { status, next_attempt_at, attempt_count } = await fixture.delivery(webhookId)
    assert.deepEqual([status, next_attempt_at, attempt_count], ['delivered', null, 2])
    assert.equal(await fixture.count('delivery_queue'), 0)
    assert.equal((await fixture.attempts(frozen!.deliveryId)).length, 2)
  })

  it('counts a settlement once, also when it is made twice because nobody knew that it had been written', async () => {
    const webhookId = await fixture.webhook('http://127.0.0.1:9/')
    await fixture.emit()
    const [job] = await claimAs('once')
    const settlements = [failed(job!)]
    await settle(fixture.database, settlements, clock.now)
    const before = await queued()
    await settle(fixture.database, settlements, clock.now)
    assert.deepEqual(await queued(), before)
    assert.equal((await fixture.delivery(webhookId)).attempt_count, 1)
    assert.equal((await fixture.attempts(job!.deliveryId)).length, 1)
  })

  for (const [earlier, isBelieved] of [
    [500, 0],
    [503, 1],
    [504, 1],
    ['timeout', 1],
  ] as const) {
    it(`believes a retry that is refused as a replay after ${earlier}: ${isBelieved === 1}`, async () => {
      const webhookId = await fixture.webhook('http://127.0.0.1:9/')
      await fixture.emit()
      const [first] = await claimAs('one')
      const again: Outcome = { status: 'pending', retryInMs: 1, failureCount: 1, throttledSinceMs: null }
      const timeout = { ...settlement(first!, 0, again), result: { kind: 'failure', reason: 'timeout', detail: '' } }
      const before = earlier === 'timeout' ? (timeout as Settlement) : settlement(first!, earlier, again)
      await settle(fixture.database, [before], clock.now)
      clock.advance(LEASE_MS)
      const [second] = await claimAs('one')
      await settle(fixture.database, [settlement(second!, 401, { status: 'rejected', handledBefore: true })], clock.now)
      const [row] = await rows<{ status: string; handled_before: number }>(
        fixture.database.knex,
        'SELECT status, handled_before FROM deliveries WHERE webhook_id = ?',
        [webhookId],
      )
      assert.deepEqual([row!.status, row!.handled_before], ['rejected', isBelieved])
    })
  }

  it('delivers what was acknowledged while its webhook was being disabled', async () => {
    const webhookId = await fixture.webhook('http://127.0.0.1:9/')
    await fixture.emit()
    const [job] = await claimAs('lease')
    await fixture.database.transaction(trx => leaveActive(trx, webhookId, DISABLING, clock.now()))
    assert.equal((await fixture.delivery(webhookId)).status, 'cancelled')
    await settle(fixture.database, [delivered(job!)], clock.now)
    assert.equal((await fixture.delivery(webhookId)).status, 'delivered')
  })

  it('cancels at its claim what was queued for a webhook that has left active', async () => {
    const webhookId = await fixture.webhook('http://127.0.0.1:9/')
    await fixture.emit()
    await fixture.database.knex('webhooks').update({ status: 'disabled', epoch: 1, ended_epoch: 1 })
    assert.deepEqual(await claimAs('lease'), [])
    assert.equal((await fixture.delivery(webhookId)).status, 'cancelled')
    assert.equal(await fixture.count('delivery_queue'), 0)
  })

  it('cancels at its claim what the token of its webhook sees no more', async () => {
    const { knex } = fixture.database
    await fixture.webhook('http://127.0.0.1:9/')
    await fixture.emit()
    await knex('access_tokens').update({ sees_all_organisations: 0 })
    try {
      assert.deepEqual(await claimAs('lease'), [])
      assert.deepEqual(await knex('deliveries').pluck('status'), ['cancelled'])
      assert.equal(await fixture.count('delivery_queue'), 0)
    } finally {
      await knex('access_tokens').update({ sees_all_organisations: 1 })
    }
  })

  it('forgets at its claim what has lost its event', async () => {
    await fixture.webhook('http://127.0.0.1:9/')
    await fixture.emit()
    await fixture.database.knex('events').delete()
    assert.deepEqual(await claimAs('lease'), [])
    assert.equal(await fixture.count('delivery_queue'), 0)
  })

  it('extends leases that are still held, and no other', async () => {
    await fixture.webhook('http://127.0.0.1:9/')
    await fixture.emit()
    const [frozen] = await claimAs('frozen')
    clock.advance(LEASE_MS)
    const [heir] = await claimAs('heir')
    const { due_at } = (await queued())!
    await extendLeases(fixture.database, [frozen!], clock.now() + 5 * LEASE_MS)
    assert.equal((await queued())!.due_at, due_at)
    await extendLeases(fixture.database, [heir!], clock.now() + 5 * LEASE_MS)
    assert.equal((await queued())!.due_at, clock.now() + 5 * LEASE_MS)
  })

  it('gives back what was claimed when nobody was told', async () => {
    await fixture.webhook('http://127.0.0.1:9/')
    await fixture.emit()
    await claimAs('frozen')
    const end = clock.now() + LEASE_MS
    await forgetClaim(fixture.database, { lease: leases.heir!, end, now: clock.now() })
    assert.equal((await queued())!.lease, leases.frozen)
    await forgetClaim(fixture.database, { lease: leases.frozen!, end, now: clock.now() })
    assert.deepEqual({ ...(await queued()) }, { lease: null, due_at: clock.now(), attempt: 0, failure_count: 0 })
  })

  it('gives a claim back as if it had never been made, unless it is another’s by now', async () => {
    const webhookId = await fixture.webhook('http://127.0.0.1:9/')
    const nextAttemptAt = async () => (await fixture.delivery(webhookId)).next_attempt_at
    await fixture.emit()
    const [frozen] = await claimAs('frozen')
    clock.advance(LEASE_MS)
    const [heir] = await claimAs('heir')
    const before = await nextAttemptAt()
    await putBack(fixture.database, [frozen!], { dueAt: clock.now() + 7, now: clock.now() })
    assert.equal((await queued())!.lease, leases.heir)
    assert.equal(await nextAttemptAt(), before)
    await putBack(fixture.database, [heir!], { dueAt: clock.now() + 7, now: clock.now() })
    assert.equal(await nextAttemptAt(), clock.now() + 7)
    assert.deepEqual([(await queued())!.lease, (await queued())!.attempt], [null, 1])
  })
})

for (const engine of engines.filter(name => name !== 'sqlite')) {
  describe(`the queue where nothing is locked by reading it (${engine})`, () => {
    const clock = testClock()
    let fixture: Fixture
    let lockless: Database
    before(async () => {
      fixture = await startFixture(engine, clock)
      lockless = await connect(fixture.given.url)
      const dialect = { ...lockless.dialect, forUpdate: '', forUpdateSkipLocked: '', skipsLocked: true }
      lockless.knex.userParams = { dialect }
    })
    afterEach(() => fixture.reset())
    after(async () => {
      await lockless?.close()
      await fixture?.stop()
    })

    const queued = async () => (await fixture.database.knex('delivery_queue').first('lease', 'attempt'))!
    const claimWith = (triage: (due: Job[]) => Triage, limit = 10) => {
      const lease = newLease(clock.now())
      return claim(lockless, { lease, now: clock.now(), limit, leaseMs: LEASE_MS, triage })
    }
    /** Does `work` while all rows are held, and lets go of them when it has come to its first change of one. */
    const meeting = async <T>(work: () => Promise<T>, change: RegExp, takeOver?: object): Promise<T> => {
      const changing = new Promise<void>(resolve => {
        lockless.knex.on('query', ({ sql }) => change.test(sql) && resolve())
      })
      const { promise, resolve } = Promise.withResolvers<void>()
      const { knex } = fixture.database
      const holding = knex.transaction(async trx => {
        await trx('delivery_queue').forUpdate().select()
        resolve()
        await changing
        if (takeOver) await trx('delivery_queue').update(takeOver)
      })
      await promise
      try {
        const [result] = await Promise.all([work(), holding])
        return result
      } finally {
        lockless.knex.removeAllListeners('query')
      }
    }
    const heir = newLease(clock.now())
    const TAKEN_OVER = { lease: heir, attempt: 2, due_at: clock.now() + 10 * LEASE_MS }

    it('gives a delivery to one of two claims that have both read it', async () => {
      await fixture.webhook('http://127.0.0.1:9/')
      await fixture.emit(20)
      const { promise, resolve } = Promise.withResolvers<void>()
      let reading = 0
      const triage = (due: Job[]): Triage => {
        reading += 1
        if (reading === 2) resolve()
        return takeAll(due)
      }
      const locked = Promise.withResolvers<void>()
      const holding = fixture.database.knex.transaction(async trx => {
        await trx('delivery_queue').forUpdate().select()
        locked.resolve()
        await promise
      })
      await locked.promise
      const claims = Promise.all([claimWith(triage, 20), claimWith(triage, 20)])
      await holding
      const taken = (await claims).flatMap(claimed => claimed.taken.map(job => job.deliveryId))
      assert.equal(taken.length, 20)
      assert.equal(new Set(taken).size, 20)
      assert.equal((await fixture.database.knex('delivery_queue').where({ attempt: 1 })).length, 20)
    })

    it('lets a claim have nothing of a lease that its owner has extended since it was read', async () => {
      await fixture.webhook('http://127.0.0.1:9/')
      await fixture.emit()
      const [slow] = (await claimWith(takeAll)).taken
      clock.advance(LEASE_MS)
      const { taken } = await meeting(() => claimWith(takeAll), /^UPDATE delivery_queue/, { due_at: clock.now() + 1 })
      assert.deepEqual(taken, [])
      assert.deepEqual({ ...(await queued()) }, { lease: slow!.lease, attempt: 1 })
      assert.equal(await fixture.count('attempts'), 0)
    })

    for (const outcome of [
      { status: 'rejected' },
      { status: 'pending', retryInMs: 0, failureCount: 1, throttledSinceMs: null },
    ] as Outcome[]) {
      it(`counts ${outcome.status} as nothing where the lease is another's by then`, async () => {
        const webhookId = await fixture.webhook('http://127.0.0.1:9/')
        await fixture.emit()
        const [job] = (await claimWith(takeAll)).taken
        const result: AttemptResult = { kind: 'response', statusCode: 404, body: '' }
        const late = { job: job!, startedAt: clock.now(), durationMs: 7, result, outcome }
        await meeting(() => settle(lockless, [late], clock.now), /^(UPDATE|DELETE FROM) delivery_queue/, TAKEN_OVER)
        assert.deepEqual({ ...(await queued()) }, { lease: heir, attempt: 2 })
        assert.equal((await fixture.delivery(webhookId)).status, 'pending')
        assert.equal((await fixture.attempts(job!.deliveryId))[0]!.status_code, 404)
      })
    }

    it('gives nothing back that is another’s by then', async () => {
      await fixture.webhook('http://127.0.0.1:9/')
      await fixture.emit()
      const { taken } = await claimWith(takeAll)
      await meeting(
        () => putBack(lockless, taken, { dueAt: clock.now(), now: clock.now() }),
        /^UPDATE delivery_queue/,
        TAKEN_OVER,
      )
      assert.deepEqual({ ...(await queued()) }, { lease: heir, attempt: 2 })
    })
  })
}

describeEachEngine('the delivery loop', engine => {
  const clock = testClock()
  let fixture: Fixture
  let receiver: Receiver | undefined
  before(async () => {
    fixture = await startFixture(engine, clock)
  })
  afterEach(async () => {
    await receiver?.close()
    await fixture.reset()
  })
  after(() => fixture?.stop())
  const leased = () => fixture.database.knex('delivery_queue').whereNotNull('lease')

  it('never attempts a delivery twice at once, however many loops share the database', async () => {
    const attempting = new Set<string>()
    const overlapping: string[] = []
    receiver = await startReceiver({
      answer: async ({ body }) => {
        if (attempting.has(body.eventId)) overlapping.push(body.eventId)
        attempting.add(body.eventId)
        await wait(Math.random() * 20)
        attempting.delete(body.eventId)
        return { status: 200 }
      },
    })
    const others = engine === 'sqlite' ? [] : [await connect(fixture.given.url), await connect(fixture.given.url)]
    try {
      const loops = [await fixture.startLoop({ concurrency: 16 })]
      for (const database of others) loops.push(await fixture.startLoop({ concurrency: 16, database }))
      if (engine === 'sqlite') loops.push(await fixture.startLoop({ concurrency: 16 }))
      await Promise.all(loops.map(loop => loop.idle()))
      const webhookId = await fixture.webhook(receiver.url)
      const emitted = fixture.emit(150)
      const pushing = setInterval(() => {
        clock.advance(50)
        for (const loop of loops) loop.wake()
      }, 5)
      await emitted
      await receiver.waitFor(all => all.length >= 150)
      clearInterval(pushing)
      for (const loop of loops) await loop.stop()
      assert.deepEqual(overlapping, [])
      assert.equal(receiver.requests.length, 150)
      assert.ok((await fixture.deliveries(webhookId)).every(each => each.status === 'delivered'))
    } finally {
      for (const database of others) await database.close()
    }
  })

  it('holds a delivery for as long as its attempt takes', async t => {
    t.mock.timers.enable({ apis: ['setInterval'] })
    let answer = (_: { status: number }) => {}
    receiver = await startReceiver({ answer: () => new Promise(resolve => (answer = resolve)) })
    const loop = await fixture.startLoop()
    const webhookId = await fixture.webhook(receiver.url)
    await fixture.emit()
    loop.wake()
    await receiver.waitFor(all => all.length === 1)
    const due = async () => Number((await fixture.database.knex('delivery_queue').first('due_at'))!.due_at)
    for (let n = 0; n < 6; n++) {
      clock.advance(10_000)
      t.mock.timers.tick(10_000)
      await eventually('the lease to be extended', due, dueAt => dueAt === clock.now() + LEASE_MS)
    }
    answer({ status: 200 })
    await loop.idle()
    assert.equal(receiver.requests.length, 1)
    assert.equal((await fixture.delivery(webhookId)).status, 'delivered')
  })

  it('on stop finishes what is in flight, and gives back what is not', async () => {
    let answer = (_: { status: number }) => {}
    receiver = await startReceiver({ answer: () => new Promise(resolve => (answer = resolve)) })
    const loop = await fixture.startLoop({ concurrency: 4 })
    await fixture.webhook(receiver.url)
    await fixture.emit(3)
    loop.wake()
    await receiver.waitFor(all => all.length === 1)
    await eventually('two to be claimed', leased, leases => leases.length === 2)
    const stopped = loop.stop()
    await wait(50)
    answer({ status: 200 })
    await stopped
    assert.equal(receiver.requests.length, 1)
    assert.deepEqual((await fixture.deliveries()).map(each => each.status).toSorted(), [
      'delivered',
      'pending',
      'pending',
    ])
    const left = await fixture.database.knex('delivery_queue').select('lease', 'attempt')
    assert.deepEqual(
      left.map(row => ({ ...row })),
      [
        { lease: null, attempt: 0 },
        { lease: null, attempt: 0 },
      ],
    )
  })

  it('does not send what has waited past its lease, as in a process that was frozen', async () => {
    let answer = (_: { status: number }) => {}
    receiver = await startReceiver({
      answer: (_request, n) => (n === 1 ? new Promise(resolve => (answer = resolve)) : { status: 200 }),
    })
    const loop = await fixture.startLoop({ concurrency: 4 })
    await fixture.webhook(receiver.url)
    await fixture.emit(2)
    loop.wake()
    await receiver.waitFor(all => all.length === 1)
    await eventually('two to be claimed', leased, leases => leases.length === 2)
    // Another process claims what has run out, and is sending it. This one has the time later: it must not claim first.
    const later = clock.now() + LEASE_MS
    const lease = newLease(later)
    await claim(fixture.database, { lease, now: later, limit: 10, leaseMs: LEASE_MS, triage: takeAll })
    clock.advance(LEASE_MS)
    answer({ status: 200 })
    await eventually('one to be delivered', () => fixture.countWhere({ status: 'delivered' }), Boolean)
    await loop.idle()
    assert.equal(receiver.requests.length, 1)
    assert.deepEqual(await fixture.database.knex('delivery_queue').pluck('lease'), [lease])
  })

  it('gives back what waits for a webhook that asks for a pause meanwhile', async () => {
    let answer = (_: { status: number; headers: Record<string, string> }) => {}
    receiver = await startReceiver({
      answer: (_request, n) => (n === 1 ? new Promise(resolve => (answer = resolve)) : { status: 200 }),
    })
    const loop = await fixture.startLoop({ concurrency: 4 })
    const webhookId = await fixture.webhook(receiver.url)
    await fixture.emit(2)
    loop.wake()
    await receiver.waitFor(all => all.length === 1)
    await eventually('two to be claimed', leased, leases => leases.length === 2)
    answer({ status: 429, headers: { 'retry-after': '60' } })
    await eventually(
      'its pause to be recorded',
      () => fixture.webhookRow(webhookId),
      webhook => webhook.held_until !== null,
    )
    await loop.idle()
    assert.equal(receiver.requests.length, 1)
    clock.advance(61_000)
    await loop.idle()
    assert.equal(receiver.requests.length, 3)
    assert.deepEqual((await fixture.deliveries()).map(each => each.attempt_count).toSorted(), [1, 2])
  })

  it('knows no hold but the one in the database, so that whoever lifts it is heard', async () => {
    receiver = await startReceiver({
      answer: (_request, n) => (n === 1 ? { status: 429, headers: { 'retry-after': '3600' } } : { status: 200 }),
    })
    const loop = await fixture.startLoop()
    await fixture.webhook(receiver.url)
    await fixture.emit()
    await loop.idle()
    await fixture.database.knex('webhooks').update({ held_until: null })
    await fixture.emit()
    await loop.idle()
    assert.equal(receiver.requests.length, 2)
  })

  it('records all others when one attempt cannot be written', async () => {
    // All are answered at once, so that they are recorded together.
    const all = Promise.withResolvers<void>()
    receiver = await startReceiver({
      answer: async (_request, n) => {
        if (n === 8) all.resolve()
        await all.promise
        return { status: 200, body: n === 2 ? 'unwritable' : 'fine' }
      },
    })
    const lift = await refuse(fixture, "response = 'unwritable'")
    try {
      const loop = await fixture.startLoop()
      const webhookId = await fixture.webhook(receiver.url)
      await fixture.emit(8)
      await loop.idle()
      assert.deepEqual(
        (await fixture.deliveries(webhookId)).map(each => each.status),
        Array(8).fill('delivered'),
      )
      const responses = await fixture.database.knex('attempts').pluck('response')
      assert.deepEqual(responses.toSorted(), ['', ...Array(7).fill('fine')])
    } finally {
      await lift()
    }
  })

  it('lets go of an attempt that cannot be recorded at all, and makes it again when its lease is over', async () => {
    receiver = await startReceiver()
    const lift = await refuse(fixture, 'number = 1')
    try {
      const loop = await fixture.startLoop()
      const webhookId = await fixture.webhook(receiver.url)
      await fixture.emit(2)
      await loop.idle()
      assert.equal(receiver.requests.length, 2)
      await lift()
      clock.advance(LEASE_MS)
      await loop.idle()
      assert.equal(receiver.requests.length, 4)
      assert.ok((await fixture.deliveries(webhookId)).every(each => each.status === 'delivered'))
    } finally {
      await lift()
    }
  })

  it('asks an idle database for no more than one thing a second', async () => {
    await fixture.webhook('http://127.0.0.1:9/')
    await fixture.emit()
    await fixture.database.knex('delivery_queue').update({ due_at: clock.now() + 3_600_000 })
    const loop = await fixture.startLoop()
    await loop.idle()
    const statements: string[] = []
    fixture.database.knex.on('query', ({ sql }) => statements.push(sql))
    const beganAt = performance.now()
    await wait(3_000)
    fixture.database.knex.removeAllListeners('query')
    const most = mostEachSecond(beganAt)
    assert.ok(statements.length >= 2 && statements.length <= most, `${statements.length}: ${statements}`)
  })
})

describe('the delivery loop on SQLite, which has one process', () => {
  it('makes again at once what the process before it held', async () => {
    const clock = testClock()
    const fixture = await startFixture('sqlite', clock)
    const receiver = await startReceiver()
    try {
      const webhookId = await fixture.webhook(receiver.url)
      await fixture.emit()
      const lease = newLease(clock.now())
      await claim(fixture.database, { lease, now: clock.now(), limit: 1, leaseMs: LEASE_MS, triage: takeAll })
      const loop = await fixture.startLoop()
      await loop.idle()
      assert.equal(receiver.requests.length, 1)
      const delivery = await fixture.delivery(webhookId)
      assert.deepEqual([delivery.status, delivery.attempt_count], ['delivered', 2])
      assert.equal((await fixture.attempts(delivery.id))[0]!.failure, 'lost')
    } finally {
      await receiver.close()
      await fixture.stop()
    }
  })
})

/** Makes the database refuse attempts that meet a condition. Returns what makes it take them again. */
const refuse = async ({ database: { dialect, knex } }: Fixture, condition: string): Promise<() => Promise<void>> => {
  const isEmbedded = dialect.engine === 'sqlite'
  if (dialect.name === 'TiDB') await knex.raw('SET GLOBAL tidb_enable_check_constraint = ON')
  await knex.raw(
    isEmbedded
      ? `CREATE TRIGGER refuse_attempt BEFORE INSERT ON attempts WHEN NEW.${condition}
         BEGIN SELECT RAISE(ABORT, 'refused'); END`
      : `ALTER TABLE attempts ADD CONSTRAINT refuse_attempt CHECK (NOT (${condition}))`,
  )
  let isLifted = false
  return async () => {
    if (isLifted) return
    isLifted = true
    await knex.raw(isEmbedded ? 'DROP TRIGGER refuse_attempt' : 'ALTER TABLE attempts DROP CONSTRAINT refuse_attempt')
  }
}
