import assert from 'node:assert/strict'
import { after, afterEach, before, it } from 'node:test'
import { cancel, enqueue } from '../../server/domain/deliveries.ts'
import { recordPing } from '../../server/domain/events.ts'
import { leaveActive } from '../../server/domain/webhooks.ts'
import { type Rig, startRig } from '../delivery/rig.ts'
import { testClock } from '../support/clock.ts'
import { describeEachEngine } from '../support/databases.ts'

describeEachEngine('what is owed', engine => {
  const clock = testClock()
  let rig: Rig
  before(async () => {
    rig = await startRig(engine, clock)
  })
  afterEach(() => rig.reset())
  after(() => rig?.stop())

  const owe = (webhookIds: string[], lease?: { id: string; end: number }): Promise<string[]> =>
    rig.database.transaction(async trx => {
      const event = { id: await recordPing(trx, clock.now()), type: 'ping' as const }
      return enqueue(
        trx,
        webhookIds.map(id => ({ event, webhook: { id, epoch: 0 } })),
        clock.now(),
        lease && { lease },
      )
    })
  const statusOf = async (id: string) => (await rig.deliveries()).find(delivery => delivery.id === id)!.status
  const queued = () => rig.database.knex('delivery_queue').orderBy('delivery_id').pluck('delivery_id')

  it('is pending and queued, each under the id that is answered in its place', async () => {
    const webhookIds = [await rig.webhook('http://127.0.0.1:9/a'), await rig.webhook('http://127.0.0.1:9/b')]
    const ids = await owe(webhookIds)
    const found = new Map((await rig.deliveries()).map(delivery => [delivery.id, delivery]))
    assert.deepEqual(
      ids.map(id => [found.get(id)!.webhook_id, found.get(id)!.status]),
      webhookIds.map(id => [id, 'pending']),
    )
    assert.deepEqual(await queued(), ids.toSorted())
  })

  it('is queued for more webhooks than one statement has room for', async () => {
    const webhookId = await rig.webhook('http://127.0.0.1:9/')
    await owe(Array.from({ length: 1001 }, () => webhookId))
    assert.equal(await rig.countWhere({ status: 'pending' }), 1001)
    assert.equal(await rig.count('delivery_queue'), 1001)
  })

  it('is cancelled for one webhook and no other', async () => {
    const [mine, other] = [await rig.webhook('http://127.0.0.1:9/a'), await rig.webhook('http://127.0.0.1:9/b')]
    const [cancelled, kept] = await owe([mine, other])
    await rig.database.transaction(trx => leaveActive(trx, mine, 'disabled', null, clock.now()))
    assert.deepEqual([await statusOf(cancelled!), await statusOf(kept!)], ['cancelled', 'pending'])
    assert.deepEqual(await queued(), [kept])
  })

  it('stays as it ended where it came to an end in the moment that it was to be cancelled', async () => {
    const [id] = await owe([await rig.webhook('http://127.0.0.1:9/')])
    await rig.database.knex('deliveries').update({ status: 'delivered', next_attempt_at: null })
    await rig.database.knex('delivery_queue').delete()
    await rig.database.transaction(trx => cancel(trx, [{ delivery_id: id!, lease: null, attempt: 0 }], clock.now()))
    assert.equal(await statusOf(id!), 'delivered')
  })
})
