import assert from 'node:assert/strict'
import { after, afterEach, before, it } from 'node:test'
import { cancel, enqueue } from '../../server/domain/deliveries.ts'
import { recordPing } from '../../server/domain/events.ts'
import { leaveActive } from '../../server/domain/webhooks.ts'
import { type Fixture, startFixture } from '../delivery/fixture.ts'
import { testClock } from '../support/clock.ts'
import { describeEachEngine } from '../support/databases.ts'
import { DISABLING } from '../support/webhooks.ts'

describeEachEngine('what is owed', engine => {
  const clock = testClock()
  let fixture: Fixture
  before(async () => {
    fixture = await startFixture(engine, clock)
  })
  afterEach(() => fixture.reset())
  after(() => fixture?.stop())

  const owe = (webhookIds: string[], lease?: { id: string; end: number }): Promise<string[]> =>
    fixture.database.transaction(async trx => {
      const event = { id: await recordPing(trx, clock.now()), type: 'ping' as const }
      return enqueue(
        trx,
        webhookIds.map(id => ({ event, webhook: { id, epoch: 0, transport: 'push' as const } })),
        clock.now(),
        lease,
      )
    })
  const statusOf = async (id: string) => (await fixture.deliveries()).find(delivery => delivery.id === id)!.status
  const queued = () => fixture.database.knex('delivery_queue').orderBy('delivery_id').pluck('delivery_id')

  it('is pending and queued, each under the id that is answered in its place', async () => {
    const webhookIds = [await fixture.webhook('http://127.0.0.1:9/a'), await fixture.webhook('http://127.0.0.1:9/b')]
    const ids = await owe(webhookIds)
    const found = new Map((await fixture.deliveries()).map(delivery => [delivery.id, delivery]))
    assert.deepEqual(
      ids.map(id => [found.get(id)!.webhook_id, found.get(id)!.status]),
      webhookIds.map(id => [id, 'pending']),
    )
    assert.deepEqual(await queued(), ids.toSorted())
  })

  it('is queued for more webhooks than one statement has room for', async () => {
    const webhookId = await fixture.webhook('http://127.0.0.1:9/')
    await owe(Array.from({ length: 1001 }, () => webhookId))
    assert.equal(await fixture.countWhere({ status: 'pending' }), 1001)
    assert.equal(await fixture.count('delivery_queue'), 1001)
  })

  it('is cancelled for one webhook and no other', async () => {
    const [mine, other] = [await fixture.webhook('http://127.0.0.1:9/a'), await fixture.webhook('http://127.0.0.1:9/b')]
    const [cancelled, kept] = await owe([mine, other])
    await fixture.database.transaction(trx => leaveActive(trx, mine, DISABLING, clock.now()))
    assert.deepEqual([await statusOf(cancelled!), await statusOf(kept!)], ['cancelled', 'pending'])
    assert.deepEqual(await queued(), [kept])
  })

  it('stays as it ended where it came to an end in the moment that it was to be cancelled', async () => {
    const [id] = await owe([await fixture.webhook('http://127.0.0.1:9/')])
    await fixture.database.knex('deliveries').update({ status: 'delivered', next_attempt_at: null })
    await fixture.database.knex('delivery_queue').delete()
    await fixture.database.transaction(trx =>
      cancel(trx, [{ delivery_id: id!, lease: null, attempt: 0, line: null, due_at: 0, taken: null }], clock.now()),
    )
    assert.equal(await statusOf(id!), 'delivered')
  })
})
