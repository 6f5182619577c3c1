import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { EventEmitter } from 'node:events'
import type { ServerResponse } from 'node:http'
import { it } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import { createAccessToken, findByApiKeys } from '../../server/domain/access-tokens.ts'
import type { AccessToken } from '../../server/domain/permissions.ts'
import { newId } from '../../server/ids.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { createLive } from '../../server/live/live.ts'
import { Stream } from '../../server/live/stream.ts'
import { createLog } from '../../server/log.ts'
import { unmetered } from '../../server/mango/meter.ts'
import { realClock } from '../support/clock.ts'
import { describeEachEngine, migratedDatabase } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'

/** A client that reads, or does not. */
const startResponse = ({ reads = true } = {}) => {
  const response = Object.assign(new EventEmitter(), {
    writableLength: 0,
    writableEnded: false,
    destroyed: false,
    written: [] as string[],
    writeHead() {},
    write(text: string) {
      response.written.push(text)
      if (!reads) response.writableLength += text.length
    },
    end() {
      response.writableEnded = true
    },
    destroy() {
      response.destroyed = true
      response.emit('close')
    },
  })
  return { response, stream: new Stream(response as unknown as ServerResponse) }
}

it('a client that does not read is dropped before a mebibyte is kept for it', () => {
  const { response, stream } = startResponse({ reads: false })
  for (let n = 0; n < 2_000; n++) stream.next('x'.repeat(1_000), n)
  assert.ok(response.destroyed)
  assert.ok(response.writableLength <= 1024 * 1024)
})

describeEachEngine('subscribers', engine => {
  it('cost the database the same, one or a thousand, and nothing once they are gone', async () => {
    const fresh = await migratedDatabase(engine)
    let statements = 0
    fresh.database.knex.on('query', () => {
      statements += 1
    })
    const live = createLive({ database: fresh.database, clock: realClock, log: createLog('silent') })
    const token = { id: 'a', apiKey: 'tk_a', permissions: ['read'] } as unknown as AccessToken
    const join = (count: number) =>
      Array.from({ length: count }, (_, n) => {
        const { response, stream } = startResponse()
        const answering = () => ({ meter: unmetered, answer: async () => [] })
        live.subscribe({ key: `${count} ${n}`, token, selector: null, answering, told: String, stream, missed: [] })
        return response
      })
    const during = async (ms: number) => {
      const before = statements
      await wait(ms)
      return statements - before
    }
    await live.ready('a', performance.now() + 10_000)
    const [only] = join(1)
    const ofOne = await during(3_000)
    join(999)
    const ofAll = await during(1_500)
    assert.ok(ofOne >= 1 && ofOne <= 4, `one: ${ofOne}`)
    assert.ok(ofAll <= 3, `a thousand: ${ofAll}`)
    // Half of all that a process has is one token's; the rest is for others.
    join(24)
    await assert.rejects(live.ready('a', performance.now() + 1_000), { code: 'UNAVAILABLE' })
    await live.ready('b', performance.now() + 1_000)
    only!.destroy()
    live.stop()
    assert.equal(await during(1_500), 0)
    await fresh.drop()
  })

  it('who came back for what they missed are answered by the same work as all once they have it', async t => {
    const fresh = await migratedDatabase(engine)
    const { knex } = fresh.database
    const made = await createAccessToken(
      knex,
      createSealer([randomBytes(32)]),
      { name: 'reader', permissions: ['read'], organisationIds: undefined },
      Date.now(),
    )
    const token = (await findByApiKeys(knex, [made.apiKey])).get(made.apiKey)!.token
    const add = async (id: string) => {
      const times = { created_at: Date.now(), finished_at: Date.now() }
      const delivery = { id, event_id: id, webhook_id: id, event_type: 'ping', status: 'delivered', ...times }
      await knex('deliveries').insert(delivery)
    }
    const missedId = newId(Date.now() - 60_000)
    await add(missedId)
    const live = createLive({ database: fresh.database, clock: realClock, log: createLog('silent') })
    t.after(async () => {
      live.stop()
      await fresh.drop()
    })
    await live.ready(token.id, performance.now() + 10_000)
    let answers = 0
    const answer = async (rows: { id?: unknown }[]) => {
      answers += 1
      return rows.map(({ id }) => JSON.stringify(id))
    }
    const clients = [[missedId], [missedId], []].map(missed => {
      const { response, stream } = startResponse()
      const answering = () => ({ meter: unmetered, answer })
      live.subscribe({ key: 'all', token, selector: null, answering, told: String, stream, missed })
      return response
    })
    const told = (id: string) => clients.map(({ written }) => written.filter(text => text.includes(id)).length)
    await eventually(
      'what was missed',
      () => told(missedId),
      counts => counts.join() === '1,1,0',
    )
    await wait(200)
    answers = 0
    const next = newId(Date.now())
    await add(next)
    live.hurry(next)
    await eventually(
      'what is new',
      () => told(next),
      counts => counts.join() === '1,1,1',
    )
    assert.equal(answers, 1)
    clients[0]!.destroy()
    const last = newId(Date.now())
    await add(last)
    live.hurry(last)
    await eventually(
      'what is new',
      () => told(last),
      counts => counts.join() === '0,1,1',
    )
  })
})
