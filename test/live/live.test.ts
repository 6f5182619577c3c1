import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { EventEmitter } from 'node:events'
import type { ServerResponse } from 'node:http'
import { it, type TestContext } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import { createAccessToken, findByApiKeys } from '../../server/domain/access-tokens.ts'
import { newId } from '../../server/ids.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { createLive } from '../../server/live/live.ts'
import { framesOf, Stream } from '../../server/live/stream.ts'
import { createLog } from '../../server/log.ts'
import { startFixture } from '../delivery/fixture.ts'
import { realClock, testClock } from '../support/clock.ts'
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
    end(text = '') {
      response.written.push(text)
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
  for (let n = 0; n < 2_000; n++) for (const frame of framesOf(['x'.repeat(1_000)], n)) stream.next(frame)
  assert.ok(response.destroyed)
  assert.ok(response.writableLength <= 1024 * 1024)
})

describeEachEngine('subscribers', engine => {
  /** An idle process, whose clock stands still, with what counts its statements. */
  const startIdle = async (t: TestContext, { delivers = true } = {}) => {
    const clock = testClock()
    const fixture = await startFixture(engine, clock)
    const { database } = fixture
    const live = createLive({ database, clock, log: createLog('silent') })
    t.after(async () => {
      live.stop()
      await fixture.stop()
    })
    if (delivers) await fixture.startLoop({ rider: live.rider })
    const made = await fixture.token()
    const { token } = (await findByApiKeys(database.knex, [made.apiKey])).get(made.apiKey)!
    let statements = 0
    database.knex.on('query', () => {
      statements += 1
    })
    const answer = async (_token: unknown, ids: string[]) => {
      const found = await database.knex('deliveries').whereIn('id', ids)
      return { lines: found.map(({ id, status }) => JSON.stringify({ id, status })) }
    }
    /** Up to a hundred of them ask for different things. */
    const join = (count: number, { name = `${count}`, different = 100 } = {}) =>
      Array.from({ length: count }, (_, n) => {
        const { response, stream } = startResponse()
        live.subscribe({ key: `${name} ${n % different}`, token, answer, told: String, stream, missed: [] })
        return response
      })
    const during = async (ms: number) => {
      const before = statements
      await wait(ms)
      return statements - before
    }
    /** All that has happened is found, and what may come late of it would have. */
    const quiet = async () => {
      await wait(1_800)
      clock.advance(3_600_000)
      await wait(1_800)
    }
    const ready = (tokenId = token.id) => live.ready(tokenId, performance.now() + 10_000)
    return { clock, fixture, database, live, token, join, during, quiet, ready }
  }

  it('cost the database nothing while nothing happens, one or a thousand', async t => {
    const { live, token, join, during, quiet, ready } = await startIdle(t)
    await wait(500)
    const ofNone = await during(4_000)
    assert.ok(ofNone >= 3, `none: ${ofNone}`)
    await ready()
    const [only] = join(1)
    await quiet()
    const ofOne = await during(4_000)
    join(999)
    const ofAll = await during(4_000)
    assert.ok(Math.abs(ofOne - ofNone) <= 1, `none: ${ofNone}, one: ${ofOne}`)
    assert.ok(Math.abs(ofAll - ofNone) <= 1, `none: ${ofNone}, a thousand: ${ofAll}`)
    // Half of all that a process has is one token's; the rest is for others.
    join(24)
    await assert.rejects(live.ready(token.id, performance.now() + 1_000), { code: 'UNAVAILABLE' })
    await ready('b')
    only!.destroy()
  })

  it('of one token ask for 256 different things at most, however many ask for them', async t => {
    const { join, ready } = await startIdle(t)
    await ready()
    join(500, { name: 'many', different: 256 })
    const [refused] = join(1, { name: 'one more' })
    assert.match(refused!.written.join(''), /QUERY_TOO_COMPLEX|256 different subscriptions/)
    assert.ok(refused!.writableEnded)
    const [same] = join(1, { name: 'many' })
    assert.ok(!same!.writableEnded)
  })

  it('cost a process that does not deliver a statement a second, one or a thousand', async t => {
    const { live, join, during, quiet, ready } = await startIdle(t, { delivers: false })
    await ready()
    join(1)
    await quiet()
    const ofOne = await during(3_000)
    join(999)
    const ofAll = await during(3_000)
    assert.ok(ofOne >= 2 && ofOne <= 4, `one: ${ofOne}`)
    assert.ok(ofAll >= 2 && ofAll <= 4, `a thousand: ${ofAll}`)
    live.stop()
    await wait(100)
    assert.equal(await during(1_500), 0)
  })

  for (const delivers of [true, false]) {
    const process = delivers ? 'one that delivers' : 'one that does not deliver'
    it(`are told within a second or so of what others do after a long silence, by ${process}`, async t => {
      const { clock, fixture, database, token, join, quiet, ready } = await startIdle(t, { delivers })
      const webhookId = await fixture.webhook('https://receiver.example/')
      const day = 24 * 3_600_000
      const pending = { id: newId(clock.now()), status: 'pending', next_attempt_at: clock.now() + day }
      const of = { event_id: webhookId, webhook_id: webhookId, event_type: 'ping', created_at: clock.now() }
      await database.knex('deliveries').insert({ ...pending, ...of })
      const queued = { delivery_id: pending.id, event_id: webhookId, webhook_id: webhookId, due_at: clock.now() + day }
      await database.knex('delivery_queue').insert(queued)
      await ready()
      const [client] = join(1)
      await quiet()
      const told = (what: string, text: string) =>
        eventually(
          what,
          () => client!.written,
          written => written.some(some => some.includes(text)),
          { timeoutMs: 8_000 },
        )
      const added = newId(clock.now())
      const startedAt = performance.now()
      await database.knex('deliveries').insert({ ...of, id: added, status: 'delivered', finished_at: clock.now() })
      await told('a delivery that another process made', added)
      assert.ok(performance.now() - startedAt < 2_500)
      await quiet()
      // One mutation disables the webhook, and this is cancelled long before it is due.
      const entry = { created_at: clock.now(), access_token_id: token.id, operation: 'x', arguments: '{}' }
      await database.knex('audit_log').insert({ ...entry, id: newId(clock.now()) })
      await database.knex('deliveries').where('id', pending.id).update({ status: 'cancelled', next_attempt_at: null })
      await database.knex('delivery_queue').del()
      await told('what was cancelled', '"cancelled"')
      await quiet()
      await database.knex('access_tokens').where('id', token.id).update({ revoked_at: clock.now() })
      await database.knex('audit_log').insert({ ...entry, id: newId(clock.now()) })
      await told('the end of its token', 'event: complete')
    })
  }

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
    const answer = async (_token: unknown, ids: string[]) => {
      answers += 1
      return { lines: ids.map(id => JSON.stringify(id)) }
    }
    const clients = [[missedId], [missedId], []].map(missed => {
      const { response, stream } = startResponse()
      live.subscribe({ key: 'all', token, answer, told: String, stream, missed })
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
