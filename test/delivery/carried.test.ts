import assert from 'node:assert/strict'
import { after, afterEach, before, it } from 'node:test'
import { ASIDE_TIME, holdOf, takeBack } from '../../server/domain/pull-time.ts'
import { sealCarried } from '../../server/domain/webhook-requests.ts'
import { newStandardSecret } from '../../shared/standard-webhooks.ts'
import { testClock } from '../support/clock.ts'
import { describeEachEngine } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { type Fixture, startFixture } from './fixture.ts'

describeEachEngine('a webhook whose requests carry a signature', engine => {
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

  const signedWebhook = async (url: string): Promise<string> => {
    const id = await fixture.webhook(url)
    const carried = { secrets: [{ secret: newStandardSecret(), until: null }], headers: {} }
    const request_sealed = sealCarried(fixture.sealer, id, carried)
    const held_until = holdOf({ transport: 'push', request_sealed })
    await fixture.database.knex('webhooks').where({ id }).update({ signing: 'standard', request_sealed, held_until })
    return id
  }
  const isSigned = (): boolean[] => receiver!.requests.map(({ headers }) => headers['webhook-signature'] !== undefined)

  it('gets what a process of an earlier version has put aside, which takes it for held', async () => {
    receiver = await startReceiver()
    const id = await signedWebhook(receiver.url)
    await fixture.emit(2)
    const { knex } = fixture.database
    const held = await knex('webhooks').where({ id }).first('held_until')
    assert.ok(Number(held.held_until) >= ASIDE_TIME)
    // As version 0.2 does with the deliveries of a webhook that is held.
    await knex('delivery_queue').update({ due_at: held.held_until })
    await knex('deliveries').update({ next_attempt_at: held.held_until })
    assert.equal(await takeBack(knex, clock.now(), 1), 1)
    assert.equal(await takeBack(knex, clock.now(), 500), 1)
    assert.equal(await takeBack(knex, clock.now(), 500), 0)
    assert.deepEqual((await knex('deliveries').pluck('next_attempt_at')).map(Number), [clock.now(), clock.now()])
    const loop = await fixture.startLoop()
    await receiver.waitFor(requests => requests.length === 2)
    await loop.idle()
    assert.deepEqual(isSigned(), [true, true])
  })

  it('is left alone until the time that its endpoint asked for, and then gets everything', async () => {
    receiver = await startReceiver({
      answer: (_request, n) => (n === 1 ? { status: 429, headers: { 'retry-after': '60' } } : { status: 200 }),
    })
    const id = await signedWebhook(receiver.url)
    const loop = await fixture.startLoop()
    await fixture.emit(1)
    loop.wake()
    const heldUntil = async () => Number((await fixture.webhookRow(id)).held_until)
    await eventually('the hold', heldUntil, held => held > ASIDE_TIME)
    await fixture.emit(3)
    loop.wake()
    await loop.idle()
    assert.equal(receiver.requests.length, 1)
    clock.set((await heldUntil()) - ASIDE_TIME)
    loop.wake()
    await receiver.waitFor(requests => requests.length === 5)
    assert.deepEqual(isSigned(), Array(5).fill(true))
  })
})
