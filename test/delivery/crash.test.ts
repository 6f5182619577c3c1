import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import { connect } from '../../server/database/connect.ts'
import { LEASE_MS } from '../../server/delivery/leases.ts'
import { startProxy } from '../database/proxy.ts'
import { describeEachEngine, engines } from '../support/databases.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { sendGraphql } from '../support/server.ts'
import { type Rig, startRig } from './rig.ts'
import { masterKey, type ServerProcess, startServerProcess } from './server-process.ts'

const EVENTS = 200
const realClock = { now: () => Date.now() }

const counts = ({ requests }: Receiver): Map<string, number> => {
  const counted = new Map<string, number>()
  for (const { body } of requests) counted.set(body.eventId, (counted.get(body.eventId) ?? 0) + 1)
  return counted
}

const doubled = (receiver: Receiver): string[] => [...counts(receiver)].filter(([, n]) => n > 1).map(([id]) => id)

const claimed = (rig: Rig): Promise<string[]> =>
  rig.database.knex('delivery_queue').whereNotNull('lease').pluck('delivery_id')

const untilDelivered = async (rig: Rig, count: number, timeoutMs = 30_000): Promise<void> => {
  const deadline = Date.now() + timeoutMs
  while ((await rig.countWhere({ status: 'delivered' })) < count && Date.now() < deadline) await wait(20)
  assert.equal(await rig.countWhere({ status: 'delivered' }), count)
}

describeEachEngine('kill -9 of a server in the middle of deliveries', engine => {
  it('loses nothing, keeps event ids, and doubles only what was in flight', async () => {
    const rig = await startRig(engine, realClock, { masterKey })
    const receiver = await startReceiver({ answer: () => ({ status: 200, delayMs: 30 }) })
    const servers: ServerProcess[] = []
    const start = async () => servers.push(await startServerProcess(rig.given.url, { TIDINGS_CONCURRENCY: '32' }))
    try {
      await rig.webhook(receiver.url)
      await Promise.all(engine === 'sqlite' ? [start()] : [start(), start()])
      const emitted = rig.emit(EVENTS)
      await receiver.waitFor(all => all.length >= EVENTS / 4, 20_000)
      assert.equal((await servers[0]!.end('SIGKILL')).signal, 'SIGKILL')
      const inFlight = await claimed(rig)
      await emitted
      assert.ok(inFlight.length > 0, 'something was in flight')

      if (engine === 'sqlite') await start()
      else {
        // The other process has all but what the dead one held; and that when the lease has run out.
        const dead = new Set(inFlight)
        await untilDelivered(rig, EVENTS - (await leftOf(rig, dead)))
        await rig.database.knex('delivery_queue').decrement('due_at', LEASE_MS)
      }
      await untilDelivered(rig, EVENTS)
      const ids = (await rig.deliveries()).map(({ id }) => id)
      assert.deepEqual([...counts(receiver).keys()].toSorted(), ids.toSorted())
      for (const id of doubled(receiver)) assert.ok(inFlight.includes(id), `${id} was not in flight`)
      assert.equal(await rig.count('delivery_queue'), 0)
    } finally {
      for (const server of servers) await server.end('SIGKILL')
      await receiver.close()
      await rig.stop()
    }
  })
})

/** How many of the queue are held by a process that does nothing more: the same for a while, with nothing else left. */
const leftOf = async (rig: Rig, dead: Set<string>): Promise<number> => {
  let before: string[] = []
  for (let same = 0; same < 10; ) {
    await wait(100)
    const now = await rig.database.knex('delivery_queue').pluck('delivery_id')
    same = now.length === before.length && now.every(id => dead.has(id)) ? same + 1 : 0
    before = now
  }
  return before.length
}

describeEachEngine('SIGTERM', engine => {
  it('finishes what is in flight, leaves nothing claimed, and ends with 0', async () => {
    const rig = await startRig(engine, realClock, { masterKey })
    const receiver = await startReceiver({ answer: () => ({ status: 200, delayMs: 1000 }) })
    const server = await startServerProcess(rig.given.url, { TIDINGS_CONCURRENCY: '16' })
    try {
      await rig.webhook(receiver.url)
      await rig.emit(40)
      await receiver.waitFor(all => all.length >= 2, 10_000)
      const sentAt = Date.now()
      assert.deepEqual(await server.end('SIGTERM'), { code: 0, signal: null })
      assert.ok(Date.now() - sentAt < 30_000)
      assert.deepEqual(await claimed(rig), [])
      assert.deepEqual(doubled(receiver), [])
      assert.equal(await rig.countWhere({ status: 'delivered' }), receiver.requests.length)
      assert.equal(await rig.count('attempts'), receiver.requests.length)
      assert.equal(server.log(), '')
    } finally {
      await server.end('SIGKILL')
      await receiver.close()
      await rig.stop()
    }
  })
})

describeEachEngine('SIGTERM while a request is being answered', engine => {
  it('answers it first: a webhook whose endpoint is slow to answer its ping is stored', async () => {
    const rig = await startRig(engine, realClock, { masterKey })
    const receiver = await startReceiver({ answer: () => ({ status: 200, delayMs: 1000 }) })
    const server = await startServerProcess(rig.given.url)
    try {
      const token = await rig.token()
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
      assert.equal(await rig.count('webhooks'), 1)
    } finally {
      await server.end('SIGKILL')
      await receiver.close()
      await rig.stop()
    }
  })
})

describe('a database out of reach', () => {
  for (const engine of engines.filter(name => name !== 'sqlite')) {
    for (const outage of ['refuses', 'does not answer'] as const) {
      it(`is waited for when it ${outage}, and deliveries go on by themselves (${engine})`, async () => {
        const rig = await startRig(engine, realClock)
        const receiver = await startReceiver({ answer: () => ({ status: 200, delayMs: 20 }) })
        const proxy = await startProxy(rig.given.url)
        const database = await connect(proxy.url)
        try {
          await rig.webhook(receiver.url)
          await rig.emit(EVENTS)
          const loop = await rig.startLoop({ database, concurrency: 32 })
          await receiver.waitFor(all => all.length >= EVENTS / 4, 20_000)
          proxy.break(outage)
          await wait(300)
          const sent = receiver.requests.length
          const inFlight = await claimed(rig)
          await wait(1500)
          assert.equal(receiver.requests.length, sent, 'nothing is sent that cannot be claimed')
          await rig.emit(10)
          proxy.mend()
          await untilDelivered(rig, EVENTS + 10)
          for (const id of doubled(receiver)) assert.ok(inFlight.includes(id), `${id} was not in flight`)
          // Their lease has not run out: the process that made the attempts recorded them.
          assert.deepEqual(doubled(receiver), [])
          await loop.stop()
        } finally {
          proxy.mend()
          await receiver.close()
          await rig.stop()
          await database.close()
          proxy.close()
        }
      })
    }
  }
})
