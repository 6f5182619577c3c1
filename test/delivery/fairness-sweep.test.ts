import assert from 'node:assert/strict'
import { after, afterEach, before, it } from 'node:test'
import { Claims } from '../../server/delivery/claims.ts'
import type { DeliveryLoop } from '../../server/delivery/loop.ts'
import { pingStored } from '../../server/delivery/ping.ts'
import { Places } from '../../server/delivery/places.ts'
import { putBack } from '../../server/delivery/queue.ts'
import type { Change } from '../../server/domain/change.ts'
import type { AccessToken } from '../../server/domain/permissions.ts'
import { recoverDeliveries } from '../../server/domain/recovery.ts'
import { leaveActive, updateWebhook, type WebhookInput } from '../../server/domain/webhooks.ts'
import { realClock } from '../support/clock.ts'
import { describeEachEngine } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { atFullSize } from '../support/size.ts'
import { DISABLING } from '../support/webhooks.ts'
import { type Fixture, startFixture } from './fixture.ts'

const MANY = atFullSize(2_000, 800)

describeEachEngine('a change of a webhook with thousands of deliveries pending', engine => {
  const clock = realClock
  let fixture: Fixture
  const receivers: Receiver[] = []
  before(async () => {
    fixture = await startFixture(engine, clock)
  })
  afterEach(async () => {
    await fixture.reset()
    for (const each of receivers.splice(0)) await each.close()
  })
  after(() => fixture?.stop())

  const receiver = async (answer?: Parameters<typeof startReceiver>[0]): Promise<Receiver> => {
    const started = await startReceiver(answer)
    receivers.push(started)
    return started
  }
  const admin = async (webhookId: string): Promise<AccessToken> => {
    const { access_token_id: id } = await fixture.webhookRow(webhookId)
    return { id, permissions: new Set(['admin']), seesAllOrganisations: true } as unknown as AccessToken
  }
  const changeBy =
    (token: AccessToken) =>
    <T>(work: (change: Change) => Promise<T>): Promise<T> =>
      fixture.database.transaction(trx => work({ trx, token, now: clock.now }))
  const owe = async (webhookId: string): Promise<void> => {
    await fixture.emit(20)
    await fixture.multiplyQueue(webhookId, MANY / 20)
  }
  const update = async (webhookId: string, input: WebhookInput): Promise<void> => {
    const seen = await fixture.webhookRow(webhookId)
    const pinged = input.url ?? seen.url
    await changeBy(await admin(webhookId))(held =>
      updateWebhook(held, { seen, pinged, sealer: fixture.sealer, candidate: '' }, input),
    )
  }
  const disable = (id: string) => fixture.database.transaction(trx => leaveActive(trx, id, DISABLING, clock.now()))
  const cancelled = () => fixture.countWhere({ status: 'cancelled' })
  const sweeping = async (id: string) => (await fixture.database.knex('webhooks').where({ id }).first()).sweeping

  it('cancels a few of them at once and none is sent any more; the loop cancels the others soon', async () => {
    const { url, requests } = await receiver()
    const id = await fixture.webhook(url)
    await owe(id)
    await disable(id)
    const atOnce = await cancelled()
    assert.ok(atOnce > 0 && atOnce <= 500, `${atOnce} in the transaction of the change`)
    await fixture.startLoop()
    await eventually('all to be cancelled', cancelled, count => count === MANY)
    await eventually(
      'the sweep to end',
      () => sweeping(id),
      left => left === 0,
    )
    assert.equal(await fixture.count('delivery_queue'), 0)
    assert.equal(requests.length, 0)
  })

  it('keeps nobody waiting behind what another process sweeps', async () => {
    const swept = await fixture.webhook('http://127.0.0.1:9/')
    await fixture.emit(20)
    await fixture.multiplyQueue(swept, 20)
    await fixture.database.knex('webhooks').where({ id: swept }).update({ status: 'disabled', epoch: 1, sweeping: 1 })
    const other = await fixture.webhook('http://127.0.0.1:10/')
    await fixture.emit()
    const places = new Places({ clock, concurrency: 512 })
    const claims = new Claims({ database: fixture.database, places, onPast: () => {} })
    for (let looks = 0; looks < 3 && places.count === 0; looks++) await claims.claimDue(clock.now())
    assert.ok(places.next()?.job.webhookId === other, `${places.count} have a place`)
  })

  it('takes all of them to another url', async () => {
    const [old, next] = [await receiver(), await receiver()]
    const id = await fixture.webhook(old.url)
    await owe(id)
    await update(id, { url: next.url })
    const loop = await fixture.startLoop()
    loop.wake()
    const delivered = () => fixture.countWhere({ status: 'delivered' })
    await eventually('all to be delivered', delivered, count => count === MANY)
    assert.equal(old.requests.length, 0)
    assert.equal(next.requests.length, MANY)
  })

  it('takes what the old url was to be spared of to another at once', async () => {
    const id = await fixture.webhook('http://127.0.0.1:9/')
    await fixture.emit(3)
    const { knex } = fixture.database
    const later = clock.now() + 3_600_000
    await knex('delivery_queue').where({ webhook_id: id }).update({ due_at: later })
    await knex('deliveries').where({ webhook_id: id }).update({ next_attempt_at: later })
    await update(id, { url: 'http://127.0.0.1:10/' })
    const now = clock.now()
    const due: { due_at: number; next_attempt_at: number; epoch: number }[] = await knex('delivery_queue')
      .join('deliveries', 'id', 'delivery_id')
      .where('delivery_queue.webhook_id', id)
    assert.equal(due.length, 3)
    assert.ok(due.every(row => row.epoch === 1 && row.due_at <= now && row.next_attempt_at === row.due_at))
  })

  it('does not keep what is new once it is active again waiting', async () => {
    const { url, requests, waitFor } = await receiver()
    const id = await fixture.webhook(url)
    await owe(id)
    await disable(id)
    await update(id, { status: 'active' })
    const [fresh] = await fixture.emit()
    await fixture.startLoop()
    await waitFor(all => all.length >= 1)
    await eventually('all else to be cancelled', cancelled, count => count === MANY)
    assert.deepEqual(
      requests.map(({ body }) => body.payload.projectReport.id),
      [fresh],
    )
  })

  it('leaves nothing out of a recovery that begins before all are cancelled', async () => {
    const id = await fixture.webhook('http://127.0.0.1:9/')
    const since = clock.now() - 60_000
    await fixture.emit(700)
    await disable(id)
    await update(id, { status: 'active' })
    const token = await admin(id)
    const span = { since, until: undefined }
    const tools = { database: fixture.database, clock, change: changeBy(token), look: changeBy(token) }
    const { queued, isComplete } = await recoverDeliveries(tools, id, span)
    assert.deepEqual([queued, isComplete], [700, true])
    assert.equal(await fixture.countWhere({ status: 'pending' }), 700)
  })

  it('pings a webhook only while it is active, as is decided where the ping is queued', async () => {
    const { url, requests } = await receiver()
    const id = await fixture.webhook(url)
    const loop = await fixture.startLoop()
    await disable(id)
    const tools = { change: changeBy(await admin(id)), loop, database: fixture.database }
    await assert.rejects(pingStored(tools, id), { code: 'CONFLICT' })
    assert.equal(await fixture.count('delivery_queue'), 0)
    assert.equal(requests.length, 0)
  })

  it('waits for its ping where that could not begin in time, and is sent by whoever claims it', async () => {
    const { url, requests } = await receiver()
    const id = await fixture.webhook(url)
    const late: DeliveryLoop = Object.create(await fixture.startLoop())
    late.deliverNow = async claimed => {
      await putBack(fixture.database, [claimed], { dueAt: clock.now(), now: clock.now() })
      return undefined
    }
    await pingStored({ change: changeBy(await admin(id)), loop: late, database: fixture.database }, id)
    const { status, attempt_count } = await fixture.delivery(id)
    assert.deepEqual([status, attempt_count, requests.length], ['delivered', 1, 1])
  })

  for (const [headers, what] of [
    [{}, 'makes the new one inactive'],
    [{ 'retry-after': '3600' }, 'holds the new one'],
  ] as const) {
    it(`is not undone by a late 429 of the old url: it neither ${what} nor ends the delivery`, async () => {
      const answer = Promise.withResolvers<void>()
      const old = await receiver({
        answer: async () => {
          await answer.promise
          return { status: 429, headers }
        },
      })
      const next = await receiver()
      const id = await fixture.webhook(old.url)
      const loop = await fixture.startLoop()
      await fixture.emit()
      loop.wake()
      await old.waitFor(all => all.length === 1)
      await update(id, { url: next.url })
      answer.resolve()
      await next.waitFor(all => all.length === 1)
      const statusOf = async () => (await fixture.delivery(id)).status
      await eventually('the delivery to be recorded', statusOf, status => status === 'delivered')
      const { status, held_until } = await fixture.webhookRow(id)
      assert.deepEqual([status, held_until], ['active', null])
    })
  }
})
