import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, afterEach, before, describe, it } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import type { Database } from '../../server/database/connect.ts'
import { Pings } from '../../server/delivery/pings.ts'
import { Places } from '../../server/delivery/places.ts'
import type { Job, Settlement } from '../../server/delivery/queue.ts'
import { Recheck } from '../../server/delivery/recheck.ts'
import type { Change } from '../../server/domain/change.ts'
import type { AccessToken } from '../../server/domain/permissions.ts'
import { recoverDeliveries } from '../../server/domain/recovery.ts'
import { createLog } from '../../server/log.ts'
import { realClock, testClock } from '../support/clock.ts'
import { describeEachEngine } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { type Fixture, startFixture } from './fixture.ts'

describeEachEngine('endpoints that do not share fate', engine => {
  let fixture: Fixture
  const receivers: Receiver[] = []
  before(async () => {
    fixture = await startFixture(engine, realClock)
  })
  afterEach(async () => {
    for (const each of receivers.splice(0)) await each.close()
    await fixture.reset()
  })
  after(() => fixture?.stop())

  const receiver = async (...given: Parameters<typeof startReceiver>): Promise<Receiver> => {
    const started = await startReceiver(...given)
    receivers.push(started)
    return started
  }

  it('reach the one that is well in seconds, while thrice as many of its tenant hang as there are places', async () => {
    const hanging = await receiver({ answer: () => 'hang' })
    const well = await receiver()
    for (let n = 0; n < 100; n++) await fixture.webhook(`${hanging.url}/${n}`)
    await fixture.webhook(well.url)
    const loop = await fixture.startLoop({ concurrency: 32, attemptTimeoutMs: 30_000 })
    await fixture.emit()
    loop.wake()
    await well.waitFor(all => all.length === 1, 25_000)
    assert.ok(hanging.requests.length <= 32 + 4 * 32, `${hanging.requests.length} at once`)
  })

  it('reach another tenant at once, whose events come behind thousands of one that is well', async () => {
    const crowd = await receiver({ answer: () => ({ status: 200, delayMs: 200 }) })
    const other = await receiver()
    const crowdId = await fixture.webhook(crowd.url)
    await fixture.emit()
    const webhook = await fixture.webhookRow(crowdId)
    const copies = Array.from({ length: 1_000 }, () => ({ ...webhook, id: randomUUID() }))
    for (let from = 0; from < copies.length; from += 100) {
      await fixture.database.knex('webhooks').insert(copies.slice(from, from + 100))
    }
    await fixture.emit()
    const loop = await fixture.startLoop({ concurrency: 16 })
    loop.wake()
    await crowd.waitFor(all => all.length > 20)
    const { id: tenantId } = await fixture.token()
    const otherId = await fixture.webhook(other.url)
    await fixture.database.knex('webhooks').where({ id: otherId }).update({ access_token_id: tenantId })
    await fixture.database.knex('webhooks').whereNot({ id: otherId }).update({ all_organisations_and_projects: 0 })
    const before = crowd.requests.length
    await fixture.emit()
    loop.wake()
    await other.waitFor(all => all.length === 1)
    const meanwhile = crowd.requests.length - before
    assert.ok(meanwhile < 200, `${meanwhile} of 2,000 had gone before`)
  })

  it('send what is new before what is recovered', async () => {
    const slow = await receiver({ answer: () => ({ status: 200, delayMs: 100 }) })
    const id = await fixture.webhook(slow.url)
    const old = new Set(await fixture.emit(300))
    await fixture.database.knex('deliveries').update({ status: 'rejected', next_attempt_at: null })
    await fixture.database.knex('delivery_queue').delete()
    const token = { seesAllOrganisations: true } as AccessToken
    const span = { since: 0, until: undefined }
    const change = <T>(work: (change: Change) => Promise<T>): Promise<T> =>
      fixture.database.transaction(trx => work({ trx, token, now: realClock.now }))
    await recoverDeliveries({ database: fixture.database, clock: realClock, change, look: change }, id, span)
    const loop = await fixture.startLoop({ concurrency: 16 })
    loop.wake()
    await slow.waitFor(all => all.length > 4)
    await fixture.emit(10)
    loop.wake()
    const isNew = ({ body }: { body: { payload: { projectReport: { id: string } } } }): boolean =>
      !old.has(body.payload.projectReport.id)
    const all = await slow.waitFor(all => all.filter(isNew).length === 10)
    assert.ok(all.length < 150, `${all.length} requests until the 10 new ones had come`)
  })

  it('pass over a webhook that is held, however much is due of it', async () => {
    const held = await receiver({ answer: () => ({ status: 429, headers: { 'retry-after': '1' } }) })
    const heldId = await fixture.webhook(held.url)
    await fixture.emit(30)
    await fixture.multiplyQueue(heldId, 100)
    const well = await receiver()
    const loop = await fixture.startLoop({ concurrency: 64 })
    loop.wake()
    await held.waitFor(all => all.length > 0)
    await wait(1_500)
    await fixture.webhook(well.url)
    const since = held.requests.length
    const startedAt = Date.now()
    for (let n = 0; n < 20; n++) {
      await fixture.emit()
      loop.wake()
      await wait(50)
    }
    await well.waitFor(all => all.length === 20)
    const latencies = well.requests.map(({ receivedAt, body }) => receivedAt - Date.parse(body.eventTime))
    assert.ok(Math.max(...latencies) < 10_000, `${latencies}`)
    const probes = held.requests.length - since
    const most = 2 + (Date.now() - startedAt) / 1_000
    assert.ok(probes <= most, `${probes} requests to an endpoint that asks for a second each time`)
    const pending = () => fixture.countWhere({ webhook_id: heldId, status: 'pending' })
    await eventually('nothing to be lost', pending, count => count === 3_020)
  })
})

describe('the shares of tenants', () => {
  const clock = testClock()
  const job = (webhookId: string, tenant: string) =>
    ({ webhookId, epoch: 0, recovered: false, webhook: { held_until: null, access_token_id: tenant } }) as Job
  const made = (result: object, durationMs = 10) =>
    ({ result, durationMs, outcome: { status: 'delivered' } }) as unknown as Settlement
  const timeout = made({ kind: 'failure', reason: 'timeout' }, 15_000)

  it('are three quarters for one alone, and the first event of another finds room', () => {
    const places = new Places({ clock, concurrency: 64 })
    const crowd = Array.from({ length: 500 }, (_, n) => job(`crowd-${n}`, 'crowd'))
    const { take } = places.triage(crowd)
    assert.ok(take.length <= 96, `${take.length} of 128`)
    for (const each of take) places.add(each, clock.now() + 30_000, performance.now())
    assert.equal(places.triage([job('other', 'other')]).take.length, 1)
  })

  it('go round: of two tenants, one of which has a hundred webhooks, each gets as many', () => {
    const places = new Places({ clock, concurrency: 64 })
    const crowd = Array.from({ length: 100 }, (_, n) => ({
      ...{ webhookId: `${n}`, epoch: 0, tenantId: 'crowd', recovered: false },
    }))
    const two = ['x', 'y'].map(webhookId => ({ webhookId, epoch: 0, tenantId: 'other', recovered: false }))
    const quotas = [...places.quotas([...crowd, ...two], 10)]
    const of = (tenant: string) =>
      quotas.filter(([{ tenantId }]) => tenantId === tenant).reduce((sum, [, quota]) => sum + quota, 0)
    assert.deepEqual([of('crowd'), of('other')], [5, 5])
  })

  it('go to new deliveries of a webhook first, whether they are claimed or wait here, then to recovered ones', () => {
    const places = new Places({ clock, concurrency: 64 })
    const claimables = [true, false].map(recovered => ({ webhookId: 'a', epoch: 0, tenantId: 'tenant', recovered }))
    assert.deepEqual([...places.quotas(claimables, 1)], [[claimables[1], 1]])
    for (const recovered of [true, false])
      places.add({ ...job('a', 'tenant'), recovered }, clock.now() + 30_000, performance.now())
    assert.deepEqual(
      [places.next(), places.next()].map(place => place!.job.recovered),
      [false, true],
    )
  })

  it('leave an endpoint that has timed out twice one place, until it answers', () => {
    const places = new Places({ clock, concurrency: 64 })
    const attempt = (settlement: Settlement): void => {
      places.add(job('a', 'tenant'), clock.now() + 30_000, performance.now())
      const place = places.next()!
      places.ended(place, settlement)
      places.leave(place)
    }
    const mayHave = () => places.triage(Array.from({ length: 10 }, () => job('a', 'tenant'))).take.length
    attempt(timeout)
    assert.ok(mayHave() > 1)
    attempt(timeout)
    assert.equal(mayHave(), 1)
    attempt(made({ kind: 'response' }))
    assert.ok(mayHave() > 1)
  })

  it('leave a webhook alone for as long as its url asked for, and no url that comes after', () => {
    const places = new Places({ clock, concurrency: 64 })
    const of = (epoch: number) => ({ ...job('asked', 'asked'), epoch })
    const place = places.startNow(of(1), clock.now() + 30_000, performance.now())
    places.add(of(1), clock.now() + 30_000, performance.now())
    places.add(of(2), clock.now() + 30_000, performance.now())
    assert.deepEqual(
      places.holdWebhook(place, clock.now() + 60_000).map(waiting => waiting.job.epoch),
      [1],
    )
    assert.deepEqual([places.triage([of(1)]).take.length, places.triage([of(2)]).take.length], [0, 1])
  })

  it('send what may be sent, however long the look takes that another delivery waits for', () => {
    const places = new Places({ clock, concurrency: 64 })
    const recheck = new Recheck({
      // Where no statement is answered, the look does not end well.
      database: {} as Database,
      log: createLog('silent'),
      unsent: () => places.all,
      hasUnsent: () => true,
      onLooked: () => {},
    })
    places.add(job('old', 'tenant'), clock.now() + 30_000, performance.now() - 900)
    places.add(job('new', 'tenant'), clock.now() + 30_000, performance.now())
    const next = () => places.next(place => recheck.isFresh(place))?.job.webhookId
    assert.deepEqual([next(), next()], ['new', undefined])
    recheck.stop()
  })

  it('probe no more than a quarter of the places together', () => {
    const places = new Places({ clock, concurrency: 64 })
    const ids = Array.from({ length: 100 }, (_, n) => `hanging-${n}`)
    for (const id of ids) {
      for (let n = 0; n < 2; n++) {
        const place = places.startNow(job(id, id), clock.now() + 30_000, performance.now())
        places.ended(place, timeout)
        places.leave(place)
      }
    }
    assert.equal(places.triage(ids.map(id => job(id, id))).take.length, 16)
  })

  it('are the same for what is sent without a claim, and are free again when it is not committed', () => {
    const places = new Places({ clock, concurrency: 64 })
    const leaseEnd = clock.now() + 30_000
    const crowd = Array.from({ length: 500 }, (_, n) => job(`crowd-${n}`, 'crowd'))
    const kept = crowd.flatMap(each => places.reserve(each, leaseEnd) ?? [])
    assert.equal(kept.length, new Places({ clock, concurrency: 64 }).triage(crowd).take.length)
    const other = places.reserve(job('other', 'other'), leaseEnd)!
    assert.equal(places.fill(other, performance.now()), 0)
    assert.equal(places.next(), other, 'which is sent before those that are not committed')
    for (const place of kept) places.leave(place)
    assert.deepEqual([places.reserved, places.count], [0, 1])
    assert.ok(places.triage(crowd).take.length >= kept.length - 1)
  })

  it('keep none for a webhook that is held, and give back what was kept when it becomes so', () => {
    const places = new Places({ clock, concurrency: 64 })
    const leaseEnd = clock.now() + 30_000
    const held = clock.now() + 1_000
    const given = { ...job('a', 'tenant'), epoch: 0 }
    assert.equal(places.reserve({ ...given, webhook: { ...given.webhook, held_until: held } }, leaseEnd), undefined)
    const [sent, kept] = [places.reserve(given, leaseEnd)!, places.reserve(given, leaseEnd)!]
    places.fill(sent, performance.now())
    places.next()
    places.holdWebhook(sent, held)
    assert.equal(places.fill(kept, performance.now()), held)
  })
})

describe('the places for pings', () => {
  it('are few for a webhook and a token, and others find theirs', async () => {
    const pings = new Pings({ concurrency: 64 })
    const end = Promise.withResolvers<void>()
    let hanging = 0
    const hang = () => {
      hanging += 1
      return end.promise
    }
    const refused = Array.from({ length: 20 }, (_, n) =>
      pings.run({ tokenId: 'crowd', webhookId: `webhook-${n % 3}` }, hang).then(
        () => 'done',
        error => error.code,
      ),
    )
    await pings.run({ tokenId: 'other', webhookId: 'other' }, async () => {})
    assert.equal(hanging, 4)
    assert.equal(await refused.at(-1), 'RATE_LIMITED')
    end.resolve()
    assert.deepEqual(Object.groupBy(await Promise.all(refused), code => code).done?.length, 4)
  })

  it('go to the next in turn when one is answered', async () => {
    const pings = new Pings({ concurrency: 64 })
    let done = 0
    await Promise.all(
      Array.from({ length: 50 }, () =>
        pings.run({ tokenId: 'token', webhookId: 'webhook' }, async () => {
          await wait(1)
          done += 1
        }),
      ),
    )
    assert.equal(done, 50)
  })
})
