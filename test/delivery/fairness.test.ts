import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import { type Place, Places } from '../../server/delivery/places.ts'
import type { Job, Settlement } from '../../server/delivery/queue.ts'
import { realClock, testClock } from '../support/clock.ts'
import { describeEachEngine } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { atFullSize } from '../support/size.ts'
import { startFixture } from './fixture.ts'

const HEALTHY = 8
/** More than may hang at once. */
const MANY = atFullSize(1000, 160)
const SECOND = 1000

describeEachEngine('events for 10 webhooks, of which one always answers 500 and one never answers', engine => {
  for (const [EVENTS, where] of [
    [MANY, 'all on one origin'],
    ...atFullSize([[250, 'each on a port of its own'] as const], []),
  ] as const) {
    it(`all reach the other 8 meanwhile: ${EVENTS} events, ${where}`, async () => {
      const fixture = await startFixture(engine, realClock)
      const receivers: Receiver[] = []
      let hanging = 0
      let mostHanging = 0
      const receiver = async () => {
        const started = await startReceiver({
          answer: ({ path }) => {
            if (path.endsWith('/failing')) return { status: 500 }
            if (!path.endsWith('/hanging')) return { status: 200 }
            hanging += 1
            mostHanging = Math.max(mostHanging, hanging)
            return 'hang'
          },
        })
        receivers.push(started)
        return started
      }
      try {
        const shared = await receiver()
        const names = [...Array.from({ length: HEALTHY }, (_, n) => `healthy-${n}`), 'failing', 'hanging']
        const ids: string[] = []
        for (const name of names) {
          const { url } = where === 'all on one origin' ? shared : await receiver()
          ids.push(await fixture.webhook(`${url}/${name}`))
        }
        const [failingId, hangingId] = ids.slice(HEALTHY)
        const loop = await fixture.startLoop({
          retryScheduleMs: [2 * SECOND, 60 * SECOND],
          attemptTimeoutMs: 300 * SECOND,
        })
        await fixture.emit(EVENTS)
        loop.wake()
        // Whoever hangs does so for all this time, and longer.
        await eventually(
          'every event to reach every healthy webhook',
          () => fixture.countWhere({ status: 'delivered' }),
          delivered => delivered === EVENTS * HEALTHY,
          { everyMs: 50 },
        )
        assert.ok(mostHanging > 0 && mostHanging <= 512 / 4, `${mostHanging} hanging at once`)
        assert.equal(await fixture.countWhere({ webhook_id: hangingId!, status: 'pending' }), EVENTS)

        await eventually(
          'every event to have been retried once',
          () => fixture.countWhere({ webhook_id: failingId!, attempt_count: 2 }),
          retried => retried === EVENTS,
          { everyMs: 50 },
        )
        const waits = await fixture.waits(failingId!)
        assert.equal(waits.length, EVENTS)
        assert.ok(Math.min(...waits) >= 2 * SECOND, `retried after ${Math.min(...waits)} ms`)
        assert.ok(Math.max(...waits) < 60 * SECOND, `retried after ${Math.max(...waits)} ms`)
      } finally {
        for (const each of receivers) await each.close()
        await fixture.stop()
      }
    })
  }

  it('wait their turn where a webhook has thousands due at once, and the others do not wait for them', async () => {
    const fixture = await startFixture(engine, realClock)
    const slow = await startReceiver({ answer: () => ({ status: 200, delayMs: 1000 }) })
    const quick = await startReceiver()
    try {
      const slowId = await fixture.webhook(slow.url)
      await fixture.emit(1000)
      await fixture.multiplyQueue(slowId, 5)
      const loop = await fixture.startLoop({ concurrency: 64 })
      await slow.waitFor(all => all.length >= 16)
      const quickId = await fixture.webhook(quick.url)
      const emittedAt = Date.now()
      for (let n = 0; n < 20; n++) {
        await fixture.emit()
        loop.wake()
        await wait(20)
      }
      await quick.waitFor(all => all.length === 20)
      const latencies = quick.requests.map(({ receivedAt, body }) => receivedAt - Date.parse(body.eventTime))
      assert.equal(await fixture.countWhere({ webhook_id: quickId }), 20)
      // What is due of the other takes minutes.
      assert.ok(Math.max(...latencies) < 10_000, `took ${latencies} ms; emitted within ${Date.now() - emittedAt}`)
    } finally {
      await slow.close()
      await quick.close()
      await fixture.stop()
    }
  })
})

describe('the shares of a process', () => {
  const clock = testClock()
  const job = (webhookId: string, epoch = 0) =>
    ({ webhookId, epoch, recovered: false, webhook: { held_until: null, access_token_id: 'tenant' } }) as Job
  /** What so many due deliveries of each of these webhooks, by turns, get in memory and in connections. */
  const fill = (places: Places, webhookIds: string[], count = 1000) => {
    const { take } = places.triage(Array.from({ length: count }, () => webhookIds.map(id => job(id))).flat())
    for (const each of take) places.add(each, clock.now() + 30_000, performance.now())
    const sent = []
    for (let place = places.next(); place; place = places.next()) sent.push(place)
    return { taken: take.length, sent }
  }

  const answered = { result: { kind: 'response' }, outcome: { status: 'delivered' } } as Settlement
  /** Places of a process that has had an answer from these webhooks. */
  const placesOf = (concurrency: number, ...known: string[]): Places => {
    const places = new Places({ clock, concurrency })
    for (const id of known) {
      const place = places.startNow(job(id), clock.now() + 30_000, performance.now())
      places.ended(place, answered)
      places.leave(place)
    }
    return places
  }

  it('are at most a quarter for one webhook alone, in connections and in memory', () => {
    const places = placesOf(512, 'flood')
    const { taken, sent } = fill(places, ['flood'])
    assert.equal(taken, 256)
    assert.equal(sent.length, 128)
  })

  it('leave room for one more, however many webhooks take all they can', () => {
    const places = placesOf(512, 'healthy')
    fill(
      places,
      Array.from({ length: 100 }, (_, n) => `hanging-${n}`),
    )
    const { taken, sent } = fill(places, ['healthy'], 3)
    assert.equal(taken, 3)
    assert.equal(sent.filter(({ job }) => job.webhookId === 'healthy').length, 3)
  })

  it('go round when claims are made by webhook: none has two more than another', () => {
    const places = new Places({ clock, concurrency: 512 })
    fill(places, ['flood'])
    const claimables = ['flood', 'a', 'b', 'c'].map(webhookId => ({
      ...{ webhookId, epoch: 0, tenantId: 'tenant', recovered: false },
    }))
    const quotas = places.quotas(claimables, 20)
    assert.deepEqual(
      [...quotas].map(([{ webhookId }, quota]) => [webhookId, quota]),
      [
        ['a', 7],
        ['b', 7],
        ['c', 6],
      ],
    )
  })

  it('give every webhook a place in turn when there are more of them than places', () => {
    const places = new Places({ clock, concurrency: 4 })
    const webhooks = Array.from({ length: 8 }, (_, n) => `webhook-${n}`)
    const { take } = places.triage(webhooks.map(id => job(id)))
    for (const each of take) places.add(each, clock.now() + 30_000, performance.now())
    const served = new Set<string>()
    for (let round = 0; round < 100 && served.size < 8; round++) {
      const place = places.next()
      if (!place) break
      served.add(place.job.webhookId)
      places.ended(place)
      places.leave(place)
      // Whoever has been served has more at once.
      const again = places.triage([job(place.job.webhookId)]).take
      const others = places.triage(webhooks.filter(id => !served.has(id)).map(id => job(id))).take
      for (const each of [...others, ...again]) places.add(each, clock.now() + 30_000, performance.now())
    }
    assert.equal(served.size, 8)
  })

  const throttled = { result: { kind: 'response' }, outcome: { holdWebhookMs: 600_000 } } as Settlement
  const timedOut = { result: { kind: 'failure' }, durationMs: 15_000, outcome: {} } as Settlement
  const endAll = (settlement: Settlement) => (places: Places, sent: Place[]) => {
    for (const place of sent) places.ended(place, settlement)
  }
  const areSetAside = (_: Places, sent: Place[]) =>
    eventually('all to be set aside', () => sent.every(({ state }) => state === 'aside'), Boolean)
  for (const [did, happens] of [
    ['asked to wait', endAll(throttled)],
    ['has timed out again and again', endAll(timedOut)],
    ['does not answer', areSetAside],
  ] as const) {
    it(`are those of a new webhook at a new url, while requests to the old one are open, which ${did}`, async () => {
      const places = placesOf(32)
      const [open, ...ending] = Array.from({ length: 3 }, () => fill(places, ['moved']).sent).flat()
      assert.ok(ending.length > 1)
      await happens(places, ending)
      const takenOf = (webhookId: string, epoch: number) =>
        places.triage(Array.from({ length: 100 }, () => job(webhookId, epoch))).take.length
      assert.equal(takenOf('moved', 0), 0)
      assert.ok(takenOf('other', 0) > 1)
      assert.equal(takenOf('moved', 1), takenOf('other', 0))
      const next = [timedOut, answered].map(settlement => {
        const place = places.startNow(job('moved', 1), clock.now() + 30_000, performance.now())
        places.ended(place, settlement)
        assert.ok(takenOf('moved', 1) > 1)
        return place
      })
      const taken = takenOf('moved', 1)
      places.ended(open!, throttled)
      assert.ok(takenOf('moved', 1) >= taken, 'a late answer of the old url says nothing about the new one')
      places.holdWebhook(next[0]!, clock.now() + 60_000)
      for (const place of places.all.filter(({ job }) => job.epoch === 0)) places.leave(place)
      assert.equal(takenOf('moved', 1), 0, 'the new url is held after the old one is forgotten')
    })
  }

  it('forget a webhook that has nothing here any more', () => {
    const places = new Places({ clock, concurrency: 512 })
    for (let n = 0; n < 1000; n++) {
      const { sent } = fill(places, [`webhook-${n}`], 1)
      for (const place of sent) {
        places.ended(place)
        places.leave(place)
      }
    }
    assert.equal(places.count, 0)
    assert.equal(places.webhooks, 0)
  })
})
