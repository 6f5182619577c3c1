import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import { connect } from '../../server/database/connect.ts'
import { LEASE_MS } from '../../server/delivery/leases.ts'
import { startProxy } from '../database/proxy.ts'
import { realClock } from '../support/clock.ts'
import { describeEachEngine, engines } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { sendGraphql } from '../support/server.ts'
import { type Fixture, startFixture } from './fixture.ts'
import { masterKey, type ServerProcess, startServerProcess } from './server-process.ts'

const EVENTS = 200

const counts = ({ requests }: Receiver): Map<string, number> => {
  const counted = new Map<string, number>()
  for (const { body } of requests) counted.set(body.eventId, (counted.get(body.eventId) ?? 0) + 1)
  return counted
}

const doubled = (receiver: Receiver): string[] => [...counts(receiver)].filter(([, n]) => n > 1).map(([id]) => id)

const claimed = (fixture: Fixture): Promise<string[]> =>
  fixture.database.knex('delivery_queue').whereNotNull('lease').pluck('delivery_id')

const untilDelivered = async (fixture: Fixture, count: number, timeoutMs = 30_000): Promise<void> => {
  const delivered = () => fixture.countWhere({ status: 'delivered' })
  const found = await eventually(`${count} deliveries to be delivered`, delivered, n => n >= count, { timeoutMs })
  assert.equal(found, count)
}

describeEachEngine('kill -9 of a server in the middle of deliveries', engine => {
  it('loses nothing, keeps event ids, and doubles only what was in flight', async () => {
    const fixture = await startFixture(engine, realClock, { masterKey })
    const receiver = await startReceiver({ answer: () => ({ status: 200, delayMs: 30 }) })
    const servers: ServerProcess[] = []
    const start = async () => servers.push(await startServerProcess(fixture.given.url, { TIDINGS_CONCURRENCY: '32' }))
    try {
      await fixture.webhook(receiver.url)
      await Promise.all(engine === 'sqlite' ? [start()] : [start(), start()])
      const emitted = fixture.emit(EVENTS)
      await receiver.waitFor(all => all.length >= EVENTS / 4)
      assert.equal((await servers[0]!.end('SIGKILL')).signal, 'SIGKILL')
      const inFlight = await claimed(fixture)
      await emitted
      assert.ok(inFlight.length > 0, 'something was in flight')

      if (engine === 'sqlite') await start()
      else {
        // The other process has all but what the dead one held; and that when the lease has run out.
        const dead = new Set(inFlight)
        await untilDelivered(fixture, EVENTS - (await leftOf(fixture, dead)))
        await fixture.database.knex('delivery_queue').decrement('due_at', LEASE_MS)
      }
      await untilDelivered(fixture, EVENTS)
      const ids = (await fixture.deliveries()).map(({ id }) => id)
      assert.deepEqual([...counts(receiver).keys()].toSorted(), ids.toSorted())
      for (const id of doubled(receiver)) assert.ok(inFlight.includes(id), `${id} was not in flight`)
      assert.equal(await fixture.count('delivery_queue'), 0)
    } finally {
      for (const server of servers) await server.end('SIGKILL')
      await receiver.close()
      await fixture.stop()
    }
  })
})

/** The number of queue rows held by a dead process: it stays the same, and nothing else is left. */
const leftOf = async (fixture: Fixture, dead: Set<string>): Promise<number> => {
  const sizes: number[] = []
  const look = async () => {
    const now: string[] = await fixture.database.knex('delivery_queue').pluck('delivery_id')
    sizes.push(now.length)
    if (!now.every(id => dead.has(id))) sizes.length = 0
    return sizes.slice(-11)
  }
  const isStill = (last: number[]) => last.length === 11 && new Set(last).size === 1
  const still = await eventually('the queue to be left as it is', look, isStill, { everyMs: 100 })
  return still[0]!
}

describeEachEngine('SIGTERM', engine => {
  it('finishes what is in flight, leaves nothing claimed, and ends with 0', async () => {
    const fixture = await startFixture(engine, realClock, { masterKey })
    const receiver = await startReceiver({ answer: () => ({ status: 200, delayMs: 1000 }) })
    const server = await startServerProcess(fixture.given.url, { TIDINGS_CONCURRENCY: '16' })
    try {
      await fixture.webhook(receiver.url)
      await fixture.emit(40)
      await receiver.waitFor(all => all.length >= 2)
      const sentAt = Date.now()
      assert.deepEqual(await server.end('SIGTERM'), { code: 0, signal: null })
      assert.ok(Date.now() - sentAt < 30_000)
      assert.deepEqual(await claimed(fixture), [])
      assert.deepEqual(doubled(receiver), [])
      assert.equal(await fixture.countWhere({ status: 'delivered' }), receiver.requests.length)
      assert.equal(await fixture.count('attempts'), receiver.requests.length)
      assert.equal(server.log(), '')
    } finally {
      await server.end('SIGKILL')
      await receiver.close()
      await fixture.stop()
    }
  })
})

describeEachEngine('SIGTERM while a request is being answered', engine => {
  it('answers it first: a webhook whose endpoint is slow to answer its ping is stored', async () => {
    const fixture = await startFixture(engine, realClock, { masterKey })
    const receiver = await startReceiver({ answer: () => ({ status: 200, delayMs: 1000 }) })
    const server = await startServerProcess(fixture.given.url)
    try {
      const token = await fixture.token()
      const created = sendGraphql(
        server.url,
        token,
        'mutation ($url: String!) { createWebhook(url: $url) { status } }',
        {
          url: receiver.url,
        },
      )
      await receiver.waitFor(all => all.length === 1)
      assert.deepEqual(await server.end('SIGTERM'), { code: 0, signal: null })
      assert.deepEqual((await created).data, { createWebhook: { status: 'active' } })
      assert.equal(await fixture.count('webhooks'), 1)
    } finally {
      await server.end('SIGKILL')
      await receiver.close()
      await fixture.stop()
    }
  })
})

describe('a database out of reach', () => {
  for (const engine of engines.filter(name => name !== 'sqlite')) {
    for (const outage of ['refuses', 'does not answer'] as const) {
      it(`is waited for when it ${outage}, and deliveries go on by themselves (${engine})`, async () => {
        const fixture = await startFixture(engine, realClock)
        const receiver = await startReceiver({ answer: () => ({ status: 200, delayMs: 20 }) })
        const proxy = await startProxy(fixture.given.url)
        const database = await connect(proxy.url)
        try {
          await fixture.webhook(receiver.url)
          await fixture.emit(EVENTS)
          const loop = await fixture.startLoop({ database, concurrency: 32 })
          await receiver.waitFor(all => all.length >= EVENTS / 4)
          proxy.break(outage)
          await wait(300)
          const sent = receiver.requests.length
          const inFlight = await claimed(fixture)
          await wait(1500)
          assert.equal(receiver.requests.length, sent, 'nothing is sent that cannot be claimed')
          await fixture.emit(10)
          proxy.mend()
          await untilDelivered(fixture, EVENTS + 10)
          for (const id of doubled(receiver)) assert.ok(inFlight.includes(id), `${id} was not in flight`)
          // Their lease has not run out: the process that made the attempts recorded them.
          assert.deepEqual(doubled(receiver), [])
          await loop.stop()
        } finally {
          proxy.mend()
          await receiver.close()
          await fixture.stop()
          await database.close()
          proxy.close()
        }
      })
    }
  }
})
