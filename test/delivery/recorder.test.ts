import assert from 'node:assert/strict'
import { after, afterEach, before, it } from 'node:test'
import { connect } from '../../server/database/connect.ts'
import { testClock } from '../support/clock.ts'
import { describeEachEngine, NOT_ON_SQLITE } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { startReceiver } from '../support/receiver.ts'
import { type Fixture, startFixture } from './fixture.ts'

describeEachEngine('an answer', engine => {
  const clock = testClock()
  let fixture: Fixture
  before(async () => {
    fixture = await startFixture(engine, clock)
  })
  afterEach(() => fixture.reset())
  after(() => fixture?.stop())

  // Read-only as by a failover, full, without a majority, shutting down, and what nobody has heard of.
  for (const errno of [1290, 1836, 1021, 1114, 3101, 3100, 1047, 1053, 1792, 59_999]) {
    it(`that came while the database says ${errno} is recorded when that is over, and sent once`, async () => {
      const receiver = await startReceiver({ answer: () => ({ status: 200, body: 'as it came' }) })
      const failing = Object.create(fixture.database)
      let fails = 0
      failing.transaction = async (...given: Parameters<typeof fixture.database.transaction>) => {
        if (receiver.requests.length > 0 && fails++ < 2) throw Object.assign(new Error('not now'), { errno })
        return fixture.database.transaction(...given)
      }
      try {
        const loop = await fixture.startLoop({ database: failing })
        const webhookId = await fixture.webhook(receiver.url)
        await fixture.emit()
        await loop.idle()
        const delivery = await fixture.delivery(webhookId)
        assert.deepEqual([delivery.status, delivery.attempt_count], ['delivered', 1])
        assert.equal((await fixture.attempts(delivery.id))[0]!.response, 'as it came')
        assert.equal(receiver.requests.length, 1)
        assert.ok(fails >= 2)
      } finally {
        await receiver.close()
      }
    })
  }

  it('is recorded with others that come soon after it', async () => {
    const count = 20
    let answered = 0
    const receiver = await startReceiver({ answer: () => ({ status: 200, delayMs: 2 * answered++ }) })
    const counting = Object.create(fixture.database)
    let transactions = 0
    counting.transaction = (...given: Parameters<typeof fixture.database.transaction>) => {
      if (receiver.requests.length > 0) transactions += 1
      return fixture.database.transaction(...given)
    }
    try {
      const loop = await fixture.startLoop({ database: counting })
      await fixture.webhook(receiver.url)
      await fixture.emit(count)
      await loop.idle()
      assert.equal(receiver.requests.length, count)
      assert.ok(transactions < count / 2, `${transactions} transactions`)
    } finally {
      await receiver.close()
    }
  })

  it('waits for its own row alone, where another transaction holds that', async t => {
    if (engine === 'sqlite') return t.skip(NOT_ON_SQLITE)
    const all = Promise.withResolvers<void>()
    const receiver = await startReceiver({
      answer: async () => {
        await all.promise
        return { status: 200 }
      },
    })
    const other = await connect(fixture.given.url)
    // As a server's: of a table this small, MariaDB goes through all rows, the one that is held too.
    const own = await connect(fixture.given.url, { lockWaitS: 1 })
    const holding = Promise.withResolvers<void>()
    const held = Promise.withResolvers<string>()
    try {
      const loop = await fixture.startLoop({ database: own })
      await fixture.webhook(receiver.url)
      await fixture.emit(5)
      loop.wake()
      await receiver.waitFor(requests => requests.length === 5)
      const holder = other.transaction(async trx => {
        const { delivery_id } = await trx('delivery_queue').first('delivery_id')
        await trx('delivery_queue').where({ delivery_id }).forUpdate()
        held.resolve(delivery_id)
        await holding.promise
      })
      const id = await held.promise
      all.resolve()
      const pending = () => fixture.database.knex('deliveries').where({ status: 'pending' }).pluck('id')
      await eventually('the four others to be recorded', pending, ids => ids.length === 1)
      assert.deepEqual(await pending(), [id])
      holding.resolve()
      await holder
      await loop.idle()
      assert.deepEqual(await pending(), [])
      assert.equal(receiver.requests.length, 5)
    } finally {
      holding.resolve()
      await fixture.reset()
      await receiver.close()
      await other.close()
      await own.close()
    }
  })
})
