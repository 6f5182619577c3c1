import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { createServer, type Socket } from 'node:net'
import { after, afterEach, before, it } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import { connect, type Database, run } from '../../server/database/connect.ts'
import { LEASE_MS, newLease } from '../../server/delivery/leases.ts'
import type { Place } from '../../server/delivery/places.ts'
import { claim, type Job } from '../../server/delivery/queue.ts'
import { Recheck, type Stopped } from '../../server/delivery/recheck.ts'
import { leaveActive } from '../../server/domain/webhooks.ts'
import { createLog } from '../../server/log.ts'
import { realClock } from '../support/clock.ts'
import { describeEachEngine, NOT_ON_SQLITE } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { DISABLING } from '../support/webhooks.ts'
import { type Fixture, startFixture } from './fixture.ts'
import { listening } from './listening.ts'

/** Longer than a stop may take to be heard of. */
const HEARD_MS = 1_000

type Look = 'webhooks' | 'leases'

/** What is looked at again during `work`, which is given it as it grows. */
const lookedAt = async ({ database }: Fixture, work: (looks: Look[]) => Promise<unknown>): Promise<Look[]> => {
  const looks: Look[] = []
  database.knex.on('query', ({ sql }) => {
    if (/^SELECT id, status, epoch, held_until/.test(sql)) looks.push('webhooks')
    else if (/^SELECT delivery_id, lease FROM delivery_queue/.test(sql)) looks.push('leases')
  })
  try {
    await work(looks)
  } finally {
    database.knex.removeAllListeners('query')
  }
  return looks
}

describeEachEngine('what waits in memory', engine => {
  let fixture: Fixture
  let receiver: Receiver | undefined
  let answer = (_: { status: number; headers?: Record<string, string> }) => {}
  before(async () => {
    fixture = await startFixture(engine, realClock)
  })
  const endAll = async () => {
    answer({ status: 200 })
    await receiver?.close()
    await fixture.reset()
  }
  afterEach(endAll)
  after(() => fixture?.stop())

  /** One of four is being answered, and at least one waits behind it. */
  const startWaiting = async () => {
    receiver = await startReceiver({
      answer: (_request, n) => (n === 1 ? new Promise(resolve => (answer = resolve)) : { status: 200 }),
    })
    const loop = await fixture.startLoop({ concurrency: 4 })
    const webhookId = await fixture.webhook(receiver.url)
    await fixture.emit(4)
    loop.wake()
    await receiver.waitFor(all => all.length === 1)
    const leased = () => fixture.database.knex('delivery_queue').whereNotNull('lease')
    await eventually('one to wait', leased, rows => rows.length > 1)
    return { loop, webhookId }
  }

  it('is not sent to a webhook that has been disabled, and no attempt is logged of it', async () => {
    const { loop, webhookId } = await startWaiting()
    await fixture.database.transaction(trx => leaveActive(trx, webhookId, DISABLING, realClock.now()))
    await wait(HEARD_MS)
    answer({ status: 200 })
    await loop.idle()
    assert.equal(receiver!.requests.length, 1)
    const attempts = await fixture.database.knex('attempts')
    assert.deepEqual(
      attempts.map(({ status_code, failure }) => [status_code, failure]),
      [[200, null]],
    )
    const counts = (await fixture.deliveries()).map(each => `${each.status} ${each.attempt_count}`)
    assert.deepEqual(counts.toSorted(), ['cancelled 0', 'cancelled 0', 'cancelled 0', 'delivered 1'])
  })

  it('is given back without an attempt where another process was asked to wait', async () => {
    const { loop, webhookId } = await startWaiting()
    const until = realClock.now() + 3_600_000
    await fixture.database.knex('webhooks').where({ id: webhookId }).update({ held_until: until })
    const leased = () => fixture.database.knex('delivery_queue').whereNotNull('lease')
    await eventually('all but one to be given back', leased, rows => rows.length === 1, { timeoutMs: 20_000 })
    const attempts = await fixture.database.knex('delivery_queue').orderBy('attempt').pluck('attempt')
    assert.deepEqual(attempts, [0, 0, 0, 1])
    answer({ status: 200 })
    await eventually(
      'the first to be recorded',
      () => fixture.count('attempts'),
      count => count === 1,
    )
    assert.equal(receiver!.requests.length, 1)
    await loop.stop()
  })

  it('is looked at again with one statement for webhooks and one for leases, at most twice a second', async () => {
    const startedAt = performance.now()
    const looks = await lookedAt(fixture, async looks => {
      for (let round = 0; round < 10 && looks.length === 0; round++) {
        await endAll()
        await startWaiting()
        // On a busy machine what hangs may be set aside, and the others sent in its place, before the first look.
        await wait(2_000)
      }
    })
    const halfSeconds = (performance.now() - startedAt) / 500
    const [webhooks, leases] = ['webhooks', 'leases'].map(of => looks.filter(look => look === of).length)
    assert.ok(webhooks! >= 1 && webhooks! <= halfSeconds + 1, `${webhooks} looks in ${halfSeconds / 2} s`)
    assert.ok(leases! <= webhooks! + 1, `${leases} statements for leases in ${webhooks} looks`)
  })

  it('is not looked at again when it could not connect, while that is recorded', async t => {
    const callers: Socket[] = []
    const port = await listening(
      t,
      createServer(socket => callers.push(socket)),
    )
    const recording = Promise.withResolvers<void>()
    const recorded = Promise.withResolvers<void>()
    const slow: Database = Object.create(fixture.database)
    slow.transaction = async (work, options) => {
      if (callers[0]?.destroyed) {
        recording.resolve()
        await recorded.promise
      }
      return fixture.database.transaction(work, options)
    }
    const loop = await fixture.startLoop({ database: slow })
    await fixture.webhook(`https://127.0.0.1:${port}/`)
    await fixture.emit()
    loop.wake()
    const looks = await lookedAt(fixture, async looks => {
      await eventually(
        'a look, while it connects',
        () => looks.length,
        count => count > 0,
      )
      callers[0]!.destroy()
      await recording.promise
      looks.length = 0
      await wait(HEARD_MS)
    })
    recorded.resolve()
    assert.deepEqual(looks, [])
    await eventually(
      'it to be recorded',
      () => fixture.count('attempts'),
      count => count === 1,
    )
  })
})

describeEachEngine('a look at what waits', engine => {
  let fixture: Fixture
  before(async () => {
    fixture = await startFixture(engine, realClock)
  })
  afterEach(() => fixture.reset())
  after(() => fixture?.stop())

  /** What a look ends, of what a process has claimed for a webhook before `meanwhile`. */
  const endedAfter = async (meanwhile: (claimed: Job[]) => Promise<unknown>): Promise<string[]> => {
    const { database } = fixture
    await fixture.webhook('http://127.0.0.1:9/')
    await fixture.emit(2)
    const now = realClock.now()
    const triage = (due: Job[]) => ({ take: due, later: [] })
    const { taken } = await claim(database, { lease: newLease(now), now, limit: 10, leaseMs: LEASE_MS, triage })
    await meanwhile(taken)
    const places = taken.map(job => ({ job }) as Place)
    const stopped = await new Promise<Stopped[]>(resolve => {
      const onLooked = (stopped: Stopped[]) => {
        recheck.stop()
        resolve(stopped)
      }
      const log = createLog('silent')
      const recheck = new Recheck({ database, log, unsent: () => places, hasUnsent: () => true, onLooked })
      recheck.added(0)
    })
    assert.ok(stopped.every(({ until }) => until === 0))
    return stopped.map(({ place }) => place.job.deliveryId)
  }

  it('ends nothing of what stayed as it was', async () => {
    assert.deepEqual(await endedAfter(() => Promise.resolve()), [])
  })

  it('ends what another process has taken over or finished', async () => {
    let taken = ''
    const ended = await endedAfter(async ([first]) => {
      taken = first!.deliveryId
      await fixture.database.knex('delivery_queue').where({ delivery_id: taken }).update({ lease: randomUUID() })
    })
    assert.deepEqual(ended, [taken])
  })

  it('ends what is of an organisation that the token of its webhook sees no more', async () => {
    const { knex } = fixture.database
    const ended = await endedAfter(() => knex('access_tokens').update({ sees_all_organisations: 0 }))
    await knex('access_tokens').update({ sees_all_organisations: 1 })
    assert.equal(ended.length, 2)
  })

  it('ends what is of a project that has moved out of the sight of the token of its webhook', async () => {
    const { knex } = fixture.database
    const [organisation] = await knex('organisations').select('*')
    const [token] = await knex('access_tokens').select('id')
    const other = { ...organisation, id: randomUUID(), name: 'Other' }
    await knex('organisations').insert(other)
    await knex('access_token_organisations').insert({ access_token_id: token.id, organisation_id: organisation.id })
    await knex('access_tokens').update({ sees_all_organisations: 0 })
    const [kept, lost] = [
      await endedAfter(() => Promise.resolve()),
      await endedAfter(() => knex('projects').update({ organisation_id: other.id })),
    ]
    assert.deepEqual([kept.length, lost.length > 0], [0, true])
  })
})

describeEachEngine('a webhook whose row somebody else holds', engine => {
  let fixture: Fixture
  before(async () => {
    fixture = await startFixture(engine, realClock)
  })
  after(() => fixture?.stop())

  it('keeps nothing of others from being recorded, and is held when it is free', async t => {
    if (engine === 'sqlite') return t.skip(NOT_ON_SQLITE)
    const throttled = await startReceiver({ answer: () => ({ status: 429, headers: { 'retry-after': '60' } }) })
    const healthy = await startReceiver()
    const other = await connect(fixture.given.url)
    const holding = Promise.withResolvers<void>()
    const held = Promise.withResolvers<void>()
    try {
      const throttledId = await fixture.webhook(throttled.url)
      const healthyId = await fixture.webhook(healthy.url)
      await fixture.emit(2)
      const holder = other.transaction(async trx => {
        await run(trx, 'UPDATE webhooks SET updated_at = updated_at + 1 WHERE id = ?', [throttledId])
        held.resolve()
        await holding.promise
      })
      await held.promise
      const loop = await fixture.startLoop()
      loop.wake()
      const delivered = () => fixture.countWhere({ webhook_id: healthyId, status: 'delivered' })
      await eventually('what is for the other webhook to be recorded', delivered, n => n === 2)
      const logged = () => fixture.database.knex('attempts').where({ status_code: 429 })
      await eventually('the 429 to be logged', logged, rows => rows.length > 0)
      assert.equal((await fixture.webhookRow(throttledId)).held_until, null)
      holding.resolve()
      await holder
      const heldUntil = async () => (await fixture.webhookRow(throttledId)).held_until
      await eventually('the webhook to be held', heldUntil, until => until !== null)
    } finally {
      holding.resolve()
      await fixture.reset()
      await throttled.close()
      await healthy.close()
      await other.close()
    }
  })
})
