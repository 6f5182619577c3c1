import assert from 'node:assert/strict'
import { after, afterEach, before, it } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import type { Transaction } from '../../server/database/transaction.ts'
import { LEASE_MS, newLease } from '../../server/delivery/leases.ts'
import { enqueueFresh } from '../../server/domain/deliveries.ts'
import type { WebhookRow } from '../../server/domain/resources.ts'
import { testClock } from '../support/clock.ts'
import { describeEachEngine } from '../support/databases.ts'
import { mostEachSecond } from '../support/effort.ts'
import { eventually } from '../support/eventually.ts'
import { startAlone } from '../support/pace.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { type Fixture, startFixture } from './fixture.ts'

describeEachEngine('what is committed by a process that delivers', engine => {
  const clock = testClock()
  let fixture: Fixture
  let receiver: Receiver
  before(async () => {
    fixture = await startFixture(engine, clock)
  })
  afterEach(async () => {
    await receiver?.close()
    await fixture.reset()
  })
  after(() => fixture?.stop())

  const queued = () => fixture.database.knex('delivery_queue').select('lease', 'attempt', 'due_at')
  const statements = async (work: () => Promise<unknown>): Promise<string[]> => {
    const made: string[] = []
    fixture.database.knex.on('query', ({ sql }) => made.push(sql))
    await work()
    fixture.database.knex.removeAllListeners('query')
    return made
  }

  it('is sent at once, and nothing is claimed for it', async () => {
    receiver = await startReceiver()
    const loop = await fixture.startLoop()
    await loop.idle()
    const webhookId = await fixture.webhook(receiver.url)
    const startedAt = performance.now()
    const made = await statements(async () => {
      await fixture.emit(1, { through: loop })
      await receiver.waitFor(all => all.length === 1)
      await eventually('the queue to be empty', queued, rows => rows.length === 0)
    })
    const ofQueue = made.filter(sql => /UPDATE delivery_queue|due_at <= /.test(sql))
    // Every few seconds a loop asks for what is next.
    assert.deepEqual(
      ofQueue.filter(sql => !/AS lapsed/.test(sql)),
      [],
      'not claimed',
    )
    const looks = made.filter(sql => /^SELECT id, status, epoch, held_until, \(/.test(sql)).length
    // Each half second that it waits, what waits is looked at again.
    assert.ok(looks <= (performance.now() - startedAt) / 500, `looked at again ${looks} times`)
    const { status, attempt_count } = await fixture.delivery(webhookId)
    assert.deepEqual([status, attempt_count], ['delivered', 1])
    assert.equal((await fixture.attempts((await fixture.delivery(webhookId)).id)).length, 1)
  })

  it('is leased to it from the start, and its places are given back when it is not committed after all', async () => {
    receiver = await startReceiver()
    const loop = await fixture.startLoop({ concurrency: 4 })
    await loop.idle()
    await fixture.webhook(receiver.url)
    for (let n = 0; n < 30; n++) {
      const beforeCommit = () => Promise.reject(new Error('the power went off'))
      await assert.rejects(fixture.emit(1, { through: loop, beforeCommit }), /power/)
    }
    assert.equal(receiver.requests.length, 0)
    const made = await statements(async () => {
      await fixture.emit(1, { through: loop })
      await receiver.waitFor(all => all.length === 1)
    })
    assert.ok(!made.some(sql => /UPDATE delivery_queue/.test(sql)))
    await loop.idle()
    assert.equal(receiver.requests.length, 1)
  })

  it('is left to be claimed where its webhook has its share of places', async () => {
    receiver = await startReceiver({ answer: () => 'hang' })
    const loop = await fixture.startLoop({ concurrency: 16, attemptTimeoutMs: 60_000 })
    await loop.idle()
    await fixture.webhook(receiver.url)
    await fixture.emit(40, { through: loop })
    const rows = await queued()
    const leased = rows.filter(({ lease }) => lease !== null)
    assert.ok(leased.length >= 1 && leased.length <= 8, `${leased.length} of 32 places in memory`)
    for (const { lease, attempt, due_at } of rows) {
      assert.deepEqual([attempt, Number(due_at) > clock.now()], lease === null ? [0, false] : [1, true])
    }
  })

  it('costs no claim while there is no place for it, and is sent when there is', async () => {
    const end = Promise.withResolvers<void>()
    receiver = await startReceiver({
      answer: async () => {
        await end.promise
        return { status: 200 }
      },
    })
    const loop = await fixture.startLoop({ concurrency: 16, attemptTimeoutMs: 60_000 })
    await loop.idle()
    const webhookId = await fixture.webhook(receiver.url)
    await fixture.emit(40, { through: loop })
    // Those that hang have been set aside, and the rest has been looked at.
    await wait(1_500)
    const beganAt = performance.now()
    const made = await statements(async () => {
      for (let n = 0; n < 10; n++) {
        await fixture.emit(1, { through: loop })
        await wait(20)
      }
    })
    const claims = made.filter(sql => /each_key|MIN\(due_at\)|due_at <= /.test(sql))
    assert.ok(claims.length <= 2 + mostEachSecond(beganAt), `${claims.length} looks for 10 events`)
    end.resolve()
    const delivered = () => fixture.countWhere({ webhook_id: webhookId, status: 'delivered' })
    await eventually('all to be delivered', delivered, count => count === 50)
  })

  it('waits behind what is older and due of its webhook, and is not held up by that of others', async () => {
    receiver = await startReceiver({ answer: ({ path }) => (path.endsWith('/slow') ? 'hang' : { status: 200 }) })
    const loop = await fixture.startLoop({ concurrency: 16, attemptTimeoutMs: 60_000 })
    await loop.idle()
    const slowId = await fixture.webhook(`${receiver.url}/slow`)
    await fixture.emit(40)
    loop.wake()
    await receiver.waitFor(all => all.length > 0)
    await wait(1_200)
    const otherId = await fixture.webhook(`${receiver.url}/other`)
    const aloneMs = startAlone()
    await fixture.emit(1, { through: loop })
    await receiver.waitFor(all => all.some(({ path }) => path.endsWith('/other')))
    const afterMs = aloneMs()
    assert.ok(afterMs < 500, `after ${afterMs} ms`)
    await eventually(
      'the other to be delivered',
      () => fixture.delivery(otherId),
      ({ status }) => status === 'delivered',
    )
    const [last] = (await fixture.deliveries(slowId)).slice(-1)
    const row = await fixture.database.knex('delivery_queue').where({ delivery_id: last!.id }).first()
    assert.equal(row.lease, null)
  })

  it('is sent by another when the process died between the commit and the request', async () => {
    receiver = await startReceiver()
    const webhookId = await fixture.webhook(receiver.url)
    const webhook: WebhookRow = await fixture.webhookRow(webhookId)
    await fixture.emit()
    await fixture.database.knex('delivery_queue').delete()
    await fixture.database.knex('deliveries').delete()
    const [event] = await fixture.database.knex('events').select()
    const lease = { id: newLease(clock.now()), end: clock.now() + LEASE_MS }
    const dying = {
      take: (fresh: { id: string }[]) => new Map(fresh.map(({ id }) => [id, lease])),
      seesToAll: true,
    }
    const { id, type, payload } = event
    const given = { id, type, createdAt: clock.now(), payload, projectId: null, traceparent: null }
    const loop = engine === 'sqlite' ? undefined : await fixture.startLoop()
    await loop?.idle()
    await fixture.database.transaction(trx =>
      enqueueFresh(trx, [{ event: given, webhooks: [webhook] }], { lines: new Map(), afterCommit: dying }),
    )
    await loop?.idle()
    assert.equal(receiver.requests.length, 0)
    clock.advance(LEASE_MS)
    const heir = loop ?? (await fixture.startLoop())
    await heir.idle()
    const delivery = await fixture.delivery(webhookId)
    assert.deepEqual([delivery.status, delivery.attempt_count], ['delivered', 2])
    assert.equal((await fixture.attempts(delivery.id))[0]!.failure, 'lost')
  })

  it('is looked at again before it is sent where the commit took longer than a look is believed', async () => {
    receiver = await startReceiver()
    const loop = await fixture.startLoop()
    await loop.idle()
    await fixture.webhook(receiver.url)
    const made = await statements(async () => {
      await fixture.emit(1, { through: loop, beforeCommit: () => wait(900) })
      await receiver.waitFor(all => all.length === 1)
    })
    const look = made.findIndex(sql => /SELECT id, status, epoch, held_until.* FROM webhooks WHERE/s.test(sql))
    const commit = made.findIndex(sql => /^COMMIT/i.test(sql))
    assert.ok(commit >= 0 && look > commit, `${made.map(sql => sql.slice(0, 60)).join('\n')}`)
  })

  it('does not wait for its lease where the connection broke before the answer to the commit', async () => {
    receiver = await startReceiver()
    const loop = await fixture.startLoop()
    await loop.idle()
    const webhookId = await fixture.webhook(receiver.url)
    const { promise, reject } = Promise.withResolvers<never>()
    const afterCommit = () => loop.afterCommit({ executionPromise: promise } as unknown as Transaction)
    await fixture.emit(1, { through: { afterCommit } })
    assert.notEqual((await queued())[0]!.lease, null)
    reject(Object.assign(new Error('Connection lost'), { code: 'ECONNRESET' }))
    await receiver.waitFor(all => all.length === 1, 20_000)
    const isDelivered = () => fixture.delivery(webhookId)
    const { attempt_count } = await eventually('its record', isDelivered, ({ status }) => status === 'delivered')
    assert.equal(attempt_count, 1)
  })

  it('is given back unsent by a process that has been told to stop meanwhile', async () => {
    receiver = await startReceiver()
    const loop = await fixture.startLoop()
    await loop.idle()
    await fixture.webhook(receiver.url)
    let stopped: Promise<void> | undefined
    const beforeCommit = async (): Promise<void> => {
      stopped = loop.stop()
    }
    await fixture.emit(1, { through: loop, beforeCommit })
    await stopped
    assert.equal(receiver.requests.length, 0)
    const [row] = await queued()
    assert.deepEqual({ lease: row!.lease, attempt: row!.attempt }, { lease: null, attempt: 0 })
  })
})
