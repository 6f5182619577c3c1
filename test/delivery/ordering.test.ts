import assert from 'node:assert/strict'
import { after, afterEach, before, it } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { connect, rows } from '../../server/database/connect.ts'
import { LEASE_MS, newLease } from '../../server/delivery/leases.ts'
import type { Outcome } from '../../server/delivery/outcome.ts'
import { claim, type Job, type Settlement } from '../../server/delivery/queue.ts'
import { settle } from '../../server/delivery/settle.ts'
import { enqueue, enqueueRecovered } from '../../server/domain/deliveries.ts'
import { deleteIdleLines } from '../../server/domain/lines.ts'
import type { DeliveryRow, EventRow } from '../../server/domain/resources.ts'
import { leaveActive } from '../../server/domain/webhooks.ts'
import { testClock } from '../support/clock.ts'
import { describeEachEngine, NOT_ON_SQLITE } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { type Answer, type Receiver, startReceiver } from '../support/receiver.ts'
import { DISABLING } from '../support/webhooks.ts'
import { type Fixture, startFixture } from './fixture.ts'

describeEachEngine('the order of a project', engine => {
  const clock = testClock()
  let fixture: Fixture
  let receiver: Receiver | undefined
  before(async () => {
    fixture = await startFixture(engine, clock)
  })
  afterEach(async () => {
    await receiver?.close()
    receiver = undefined
    await fixture.reset()
  })
  after(() => fixture?.stop())

  const ordered = (url = 'http://127.0.0.1:9/') => fixture.webhook(url, { ordering: 'project' })
  const emitOne = async (options?: Parameters<Fixture['emit']>[1]): Promise<string> => {
    clock.advance(10)
    const [id] = await fixture.emit(1, options)
    return id!
  }
  const emitInTurn = async (count: number): Promise<string[]> => {
    const ids: string[] = []
    for (let n = 0; n < count; n++) ids.push(await emitOne())
    return ids
  }
  const eventOf = async (reportId: string): Promise<EventRow> => {
    const events: EventRow[] = await fixture.database.knex('events')
    return events.find(({ payload }) => payload.includes(reportId))!
  }
  const deliveryOf = async (webhookId: string, reportId: string): Promise<DeliveryRow> => {
    const event = await eventOf(reportId)
    return fixture.database.knex('deliveries').where({ webhook_id: webhookId, event_id: event.id }).first()
  }
  const arrived = () => receiver!.requests.map(({ body }) => body.payload.projectReport.id)
  const answering = async (answer: (n: number) => Answer | Promise<Answer>) => {
    receiver = await startReceiver({ answer: (_request, n) => answer(n) })
    return receiver.url
  }

  const claimDue = async (): Promise<Job[]> => {
    const lease = newLease(clock.now())
    const given = { lease, now: clock.now(), limit: 100, leaseMs: LEASE_MS }
    return (await claim(fixture.database, { ...given, triage: due => ({ take: due, later: [] }) })).taken
  }
  const comeTo = (job: Job, outcome: Outcome): Settlement => ({
    job,
    startedAt: clock.now(),
    durationMs: 1,
    result: { kind: 'response', statusCode: 200, body: '' },
    outcome,
  })
  const record = (...settlements: Settlement[]) => settle(fixture.database, settlements, clock.now)
  const again = (retryInMs: number): Outcome => ({
    status: 'pending',
    retryInMs,
    failureCount: 1,
    throttledSinceMs: null,
  })
  const nothingIsLeft = async () => {
    assert.equal(await fixture.count('ordered_deliveries'), 0)
    assert.equal(await fixture.count('delivery_queue'), 0)
  }

  it('is kept: the next is not sent before the one before has come to an end', async () => {
    const statuses = [500, 500, 200, 400, 200]
    const url = await answering(n => ({ status: statuses[n - 1]! }))
    await ordered(url)
    const loop = await fixture.startLoop({ retryScheduleMs: [5_000, 5_000, 5_000] })
    const [first, second, third] = await emitInTurn(3)
    await loop.idle()
    assert.deepEqual(arrived(), [first])
    clock.advance(6_000)
    await loop.idle()
    assert.deepEqual(arrived(), [first, first])
    clock.advance(6_000)
    loop.wake()
    await receiver!.waitFor(all => all.length === 5)
    await loop.idle()
    assert.deepEqual(arrived(), [first, first, first, second, third])
    await nothingIsLeft()
  })

  it('goes on after one that is dropped', async () => {
    const url = await answering(n => ({ status: n < 3 ? 500 : 200 }))
    await ordered(url)
    const loop = await fixture.startLoop({ retryScheduleMs: [5_000] })
    const [first, second] = await emitInTurn(2)
    await loop.idle()
    clock.advance(6_000)
    loop.wake()
    await receiver!.waitFor(all => all.length === 3)
    await loop.idle()
    assert.deepEqual(arrived(), [first, first, second])
    await nothingIsLeft()
  })

  it('holds up no other project, and no webhook that keeps none', async () => {
    const otherProject = await fixture.project()
    const [kept, loose] = [await ordered(), await fixture.webhook('http://127.0.0.1:9/')]
    const [first, second] = await emitInTurn(2)
    const other = await emitOne({ projectId: otherProject })
    const due = new Set((await claimDue()).map(job => job.deliveryId))
    const isDue = async (webhookId: string, reportId: string) => due.has((await deliveryOf(webhookId, reportId)).id)
    assert.deepEqual(await Promise.all([first!, second!, other].map(id => isDue(kept, id))), [true, false, true])
    assert.deepEqual(await Promise.all([first!, second!, other].map(id => isDue(loose, id))), [true, true, true])
  })

  it('has no next attempt planned for what waits, until its turn has come', async () => {
    const webhookId = await ordered()
    const [, second] = await emitInTurn(2)
    assert.equal((await deliveryOf(webhookId, second!)).next_attempt_at, null)
    const [job] = await claimDue()
    clock.advance(1_000)
    await record(comeTo(job!, { status: 'delivered' }))
    assert.equal((await deliveryOf(webhookId, second!)).next_attempt_at, clock.now())
  })

  it('is that of the commits, which is that of the events', async () => {
    const webhookId = await ordered()
    await emitOne()
    let commit = () => {}
    const holding = new Promise<void>(resolve => {
      commit = resolve
    })
    const slow = emitOne({ beforeCommit: () => holding })
    // The other one's transaction begins while the slow one has its line, on engines where two may.
    const quick = emitOne()
    setTimeout(commit, 200)
    const ids = [await slow, await quick]
    const events = await Promise.all(ids.map(eventOf))
    assert.ok(events[0]!.created_at !== events[1]!.created_at, 'each has a time of its own')
    const inOrder = (await fixture.deliveries(webhookId)).map(({ event_id }) => event_id)
    const byTime: EventRow[] = await fixture.database.knex('events').orderBy('created_at')
    assert.deepEqual(
      inOrder,
      byTime.map(({ id }) => id),
    )
    const told: string[] = []
    for (let [job] = await claimDue(); job; [job] = await claimDue()) {
      told.push(job.eventId)
      await record(comeTo(job, { status: 'delivered' }))
    }
    assert.deepEqual(told, inOrder)
  })

  it('is kept by many transactions at once', async () => {
    const webhookId = await ordered()
    await fixture.emit(24)
    const byTime: EventRow[] = await fixture.database.knex('events').orderBy('created_at')
    assert.equal(new Set(byTime.map(event => event.created_at)).size, 24)
    clock.advance(1_000)
    const told: string[] = []
    for (let jobs = await claimDue(); jobs.length > 0; jobs = await claimDue()) {
      assert.equal(jobs.length, 1)
      told.push(jobs[0]!.eventId)
      await record(comeTo(jobs[0]!, { status: 'delivered' }))
    }
    assert.deepEqual(
      told,
      byTime.map(({ id }) => id),
    )
    assert.equal((await fixture.deliveries(webhookId)).length, 24)
  })

  it('is kept where the process that had the turn has died', async () => {
    const webhookId = await ordered()
    const [first, second] = await emitInTurn(2)
    await claimDue()
    clock.advance(LEASE_MS)
    const [taken] = await claimDue()
    assert.equal(taken!.deliveryId, (await deliveryOf(webhookId, first!)).id)
    assert.equal(taken!.attempt, 2)
    await record(comeTo(taken!, again(1_000)))
    assert.deepEqual(await claimDue(), [])
    clock.advance(1_001)
    const [last] = await claimDue()
    await record(comeTo(last!, { status: 'delivered' }))
    const [next] = await claimDue()
    assert.equal(next!.deliveryId, (await deliveryOf(webhookId, second!)).id)
  })

  it('goes on with a late acknowledgement of one that another process has by now', async () => {
    await ordered()
    await emitInTurn(2)
    const [late] = await claimDue()
    clock.advance(LEASE_MS)
    const [taken] = await claimDue()
    await record(comeTo(late!, { status: 'delivered' }))
    const [next] = await claimDue()
    assert.notEqual(next!.deliveryId, taken!.deliveryId)
    // What the other comes to is of no delivery that is pending.
    await record(comeTo(taken!, { status: 'delivered' }))
    await record(comeTo(next!, { status: 'delivered' }))
    await nothingIsLeft()
  })

  it('is that of what is pending when a webhook is told to keep one', async () => {
    const webhookId = await fixture.webhook('http://127.0.0.1:9/')
    await emitInTurn(2)
    const [one, other] = await claimDue()
    clock.advance(10)
    const now = clock.now()
    await fixture.database.knex('webhooks').update({ ordering: 'project', ordered_since: now, updated_at: now })
    const third = await emitOne()
    await record(comeTo(one!, { status: 'delivered' }))
    assert.deepEqual(await claimDue(), [], 'one from before is pending still')
    await record(comeTo(other!, again(1_000)))
    assert.deepEqual(await claimDue(), [])
    clock.advance(1_001)
    const [last] = await claimDue()
    assert.equal(last!.deliveryId, other!.deliveryId)
    await record(comeTo(last!, { status: 'rejected' }))
    const [next] = await claimDue()
    assert.equal(next!.deliveryId, (await deliveryOf(webhookId, third)).id)
    await record(comeTo(next!, { status: 'delivered' }))
    await nothingIsLeft()
  })

  it('is kept of what is pending, or an event is not stored', async () => {
    const { knex } = fixture.database
    const webhookId = await fixture.webhook('http://127.0.0.1:9/')
    await emitOne()
    await knex('webhooks').where({ id: webhookId }).update({ ordering: 'project', ordered_since: clock.now() })
    const [columns, fault] =
      engine === 'sqlite'
        ? ['OF line ', "SELECT RAISE(ABORT, 'no line');"]
        : ['', "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no line';"]
    await knex.raw(`CREATE TRIGGER no_line BEFORE UPDATE ${columns}ON delivery_queue FOR EACH ROW BEGIN ${fault} END`)
    try {
      await assert.rejects(emitOne(), /no line/)
    } finally {
      await knex.raw('DROP TRIGGER no_line')
    }
    assert.equal(await fixture.count('events'), 1)
  })

  it('is kept of what is pending when a webhook is told to keep none', async () => {
    const webhookId = await ordered()
    const [first, second] = await emitInTurn(2)
    await fixture.database.knex('webhooks').update({ ordering: 'none' })
    const third = await emitOne()
    const due = (await claimDue()).map(job => job.deliveryId)
    const wanted = await Promise.all([first!, third].map(id => deliveryOf(webhookId, id)))
    assert.deepEqual(due.toSorted(), wanted.map(({ id }) => id).toSorted())
    assert.equal((await deliveryOf(webhookId, second!)).next_attempt_at, null)
  })

  it('ends with its webhook, and begins anew when that is active again', async () => {
    const webhookId = await ordered()
    await emitInTurn(3)
    await claimDue()
    await fixture.database.transaction(trx => leaveActive(trx, webhookId, DISABLING, clock.now()))
    await nothingIsLeft()
    await fixture.database.knex('webhooks').update({ status: 'active', epoch: 2, ended_epoch: 2 })
    await emitInTurn(2)
    assert.equal((await claimDue()).length, 1)
  })

  it('goes on at another url', async () => {
    const webhookId = await ordered()
    const [first] = await emitInTurn(3)
    await fixture.database.knex('webhooks').update({ epoch: 1, sweeping: 1 })
    const { sweepUntil } = await import('../../server/domain/sweep.ts')
    await sweepUntil(fixture.database, clock, webhookId, performance.now() + 5_000)
    const due = await claimDue()
    assert.deepEqual(
      due.map(job => job.deliveryId),
      [(await deliveryOf(webhookId, first!)).id],
    )
    assert.equal(due[0]!.epoch, 1)
  })

  it('is that of the events where some of them are recovered', async () => {
    const webhookId = await ordered()
    const [first, second, third] = await emitInTurn(3)
    // The second one is missed, and recovered while the first is being sent.
    const missed = await deliveryOf(webhookId, second!)
    await fixture.database.knex('delivery_queue').where({ delivery_id: missed.id }).delete()
    await fixture.database.knex('ordered_deliveries').where({ delivery_id: missed.id }).delete()
    await fixture.database.knex('deliveries').where({ id: missed.id }).delete()
    const { id, type, created_at: createdAt, project_id: projectId } = await eventOf(second!)
    const webhook = await fixture.webhookRow(webhookId)
    await fixture.database.transaction(trx =>
      enqueueRecovered(trx, [{ id, type, createdAt, projectId }], webhook, clock.now),
    )
    const told: string[] = []
    for (let [job] = await claimDue(); job; [job] = await claimDue()) {
      told.push(JSON.parse(job.payload).projectReport.id)
      await record(comeTo(job, { status: 'delivered' }))
    }
    assert.deepEqual(told, [first, second, third])
  })

  it('is not waited for by what somebody has asked for', async () => {
    const webhookId = await ordered()
    const [first] = await emitInTurn(2)
    const event = await eventOf(first!)
    const webhook = await fixture.webhookRow(webhookId)
    await fixture.database.transaction(trx => enqueue(trx, [{ event, webhook }], clock.now()))
    assert.equal((await claimDue()).length, 2)
  })

  it('is sent at once where nobody is before, by the process that has committed it', async () => {
    const url = await answering(() => ({ status: 200 }))
    await ordered(url)
    const loop = await fixture.startLoop()
    await loop.idle()
    const claims: string[] = []
    fixture.database.knex.on('query', ({ sql }: { sql: string }) => {
      if (/SET lease = \?, due_at/.test(sql)) claims.push(sql)
    })
    const first = await emitOne({ through: loop })
    await receiver!.waitFor(all => all.length === 1)
    assert.deepEqual(arrived(), [first])
    assert.deepEqual(claims, [])
    await loop.idle()
  })

  it('has an answer recorded although one change of the project after the other holds the line', async t => {
    if (engine === 'sqlite') return t.skip(NOT_ON_SQLITE)
    const url = await answering(() => ({ status: 200 }))
    const webhookId = await ordered(url)
    const loop = await fixture.startLoop()
    const [only] = await emitInTurn(1)
    const changes = await connect(fixture.given.url)
    let isOver = false
    const change = async (): Promise<void> => {
      while (!isOver) {
        await changes.transaction(async trx => {
          await trx('delivery_lines').increment('changes', 1)
          await sleep(50)
        })
      }
    }
    // While one holds the line, the others queue up for it.
    const changing = Array.from({ length: 4 }, change)
    try {
      await sleep(200)
      loop.wake()
      const recorded = async () => (await deliveryOf(webhookId, only!)).status
      await eventually('the answer to be recorded', recorded, status => status === 'delivered')
    } finally {
      isOver = true
      await Promise.all(changing)
      await changes.close()
    }
    await loop.idle()
    await nothingIsLeft()
  })

  it('has the next sent as soon as the one before has ended, not at the next look', async () => {
    const url = await answering(() => ({ status: 200 }))
    await ordered(url)
    const loop = await fixture.startLoop()
    await emitInTurn(8)
    loop.wake()
    const sent = await receiver!.waitFor(all => all.length === 8)
    const waits = sent.slice(1).map(({ receivedAt }, n) => receivedAt - sent[n]!.receivedAt)
    assert.ok(Math.min(...waits) < 500, `one a second would be ${waits} ms`)
    await loop.idle()
  })

  if (engine !== 'sqlite') {
    it('held by another transaction, holds up the record of nothing else', async () => {
      const [kept] = [await ordered(), await fixture.webhook('http://127.0.0.1:9/')]
      const [first] = await emitInTurn(2)
      const jobs = await claimDue()
      const mine = await deliveryOf(kept, first!)
      const settlements = jobs.map(job => comeTo(job, { status: 'delivered' }))
      let release = () => {}
      const held = new Promise<void>(resolve => {
        release = resolve
      })
      let isHeld = () => {}
      const holding = new Promise<void>(resolve => {
        isHeld = resolve
      })
      const other = fixture.database.transaction(async trx => {
        await rows(trx, 'SELECT id FROM delivery_lines FOR UPDATE')
        isHeld()
        await held
      })
      await holding
      const left = await record(...settlements)
      release()
      await other
      assert.deepEqual(
        left.map(({ job }) => job.deliveryId),
        [mine.id],
      )
      assert.equal(await fixture.countWhere({ status: 'delivered' }), jobs.length - 1)
      assert.equal(await fixture.count('attempts'), jobs.length - 1)
      assert.deepEqual(await record(...settlements.filter(({ job }) => job.deliveryId === mine.id)), [])
      assert.equal((await claimDue()).length, 1)
    })
  }

  it('leaves nothing behind where nobody has stood for long, and is kept where somebody does', async () => {
    const otherProject = await fixture.project()
    await ordered()
    await emitOne()
    const [job] = await claimDue()
    await record(comeTo(job!, { status: 'delivered' }))
    await emitOne({ projectId: otherProject })
    assert.equal(await fixture.count('delivery_lines'), 2)
    assert.equal(await deleteIdleLines(fixture.database.knex, clock.now() - 10_000, 100), 0)
    assert.equal(await deleteIdleLines(fixture.database.knex, clock.now() + 10_000, 100), 1)
    const [left] = await rows<{ project_id: string }>(fixture.database.knex, 'SELECT project_id FROM delivery_lines')
    assert.equal(left!.project_id, otherProject)
  })

  it('is found by a loop that comes later, whoever handed the turn on', async () => {
    const url = await answering(() => ({ status: 200 }))
    await ordered(url)
    const [, second] = await emitInTurn(2)
    const [job] = await claimDue()
    await record(comeTo(job!, { status: 'delivered' }))
    const loop = await fixture.startLoop()
    await eventually(
      'the second to be sent',
      async () => arrived(),
      ids => ids.length === 1,
    )
    assert.deepEqual(arrived(), [second])
    await loop.idle()
  })
})
