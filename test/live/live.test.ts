import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { EventEmitter } from 'node:events'
import type { ServerResponse } from 'node:http'
import { it, type TestContext } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import { createAccessToken, findByApiKeys } from '../../server/domain/access-tokens.ts'
import { newId } from '../../server/ids.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { Live, type LiveTimes } from '../../server/live/live.ts'
import { framesOf, Stream } from '../../server/live/stream.ts'
import { createLog } from '../../server/log.ts'
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
  const LOOK_MS = 40

  /** Processes that share a database, with what counts the statements of all, and a token. */
  const start = async (
    t: TestContext,
    { processes = 1, ...times }: Partial<LiveTimes> & { processes?: number } = {},
  ) => {
    const fresh = await migratedDatabase(engine)
    const { database } = fresh
    const lives = Array.from({ length: processes }, () => {
      return new Live({ database, clock: realClock, log: createLog('silent') }, { lookMs: LOOK_MS, ...times })
    })
    t.after(async () => {
      for (const live of lives) live.stop()
      await wait(2 * LOOK_MS)
      await fresh.drop()
    })
    const sealer = createSealer([randomBytes(32)])
    const asked = { name: 'reader', permissions: ['read' as const], organisationIds: undefined }
    const made = await createAccessToken(database.knex, sealer, asked, Date.now())
    const { token } = (await findByApiKeys(database.knex, [made.apiKey])).get(made.apiKey)!
    const statements: string[] = []
    database.knex.on('query', ({ sql }) => statements.push(sql))
    const answers = { count: 0 }
    const answer = async (_token: unknown, ids: string[]) => {
      answers.count += 1
      const found = await database.knex('deliveries').whereIn('id', ids)
      return { lines: found.map(({ id, status }) => JSON.stringify({ id, status })) }
    }
    const ready = (live = lives[0]!) => live.ready(token.id, performance.now() + 10_000)
    const join = async (key: string, { live = lives[0]!, missed = [] as string[], coming = ready(live) } = {}) => {
      const { response, stream } = startResponse()
      live.subscribe({ key, token, answer, asError: String, stream, missed }, await coming)
      return response
    }
    return { database, live: lives[0]!, lives, token, statements, answers, ready, join }
  }

  const rowOf = (id: string, more: object = {}) => ({
    id,
    event_id: id,
    webhook_id: id,
    event_type: 'ping',
    status: 'delivered',
    created_at: Date.now(),
    finished_at: Date.now(),
    ...more,
  })
  const timesTold = ({ written }: { written: string[] }, text: string) =>
    written.filter(some => some.includes(text)).length
  const toBeTold = (response: { written: string[] }, text: string) =>
    eventually(
      text,
      () => timesTold(response, text),
      count => count > 0,
    )

  it('cost the database a statement a look, one or a thousand, and nothing when they are gone', async t => {
    const { statements, join, ready, live } = await start(t)
    const looks = () => statements.filter(sql => /d\.id > \?/.test(sql)).length
    const ofTenLooks = async () => {
      const [before, first, begunAt] = [statements.length, looks(), performance.now()]
      await eventually('ten looks', looks, count => count >= first + 10)
      assert.ok(performance.now() - begunAt >= 9 * LOOK_MS, 'with a rest before each')
      return statements.length - before - (looks() - first - 10)
    }
    const responses = [await join('0')]
    const ofOne = await ofTenLooks()
    for (let n = 1; n < 1_000; n++) responses.push(await join(`${n % 100}`))
    const ofAll = await ofTenLooks()
    assert.ok(ofOne >= 10 && ofOne <= 12, `one: ${ofOne}`)
    assert.ok(ofAll >= 10 && ofAll <= 12, `a thousand: ${ofAll}`)
    // Half of all that a process has is one token's; the rest is for others.
    for (let n = 0; n < 24; n++) responses.push(await join('more'))
    await assert.rejects(ready(), { code: 'UNAVAILABLE' })
    live.left(await live.ready('another', performance.now() + 1_000))
    for (const response of responses) response.destroy()
    const idle = async () => {
      const before = statements.length
      await wait(5 * LOOK_MS)
      return statements.length - before
    }
    await eventually('no statement', idle, count => count === 0)
    await toBeTold(await join('0'), 'id: ')
  })

  it('of one token ask for 256 different things at most, however many ask for them', async t => {
    const { join } = await start(t)
    for (let n = 0; n < 500; n++) await join(`${n % 256}`)
    const refused = await join('one more')
    assert.match(refused.written.join(''), /QUERY_TOO_COMPLEX|256 different subscriptions/)
    assert.ok(refused.writableEnded)
    assert.ok(!(await join('0')).writableEnded)
  })

  it('are told what other processes do: what is new, what is cancelled long before it is due', async t => {
    const { database, join } = await start(t)
    const day = 24 * 3_600_000
    const id = newId(Date.now() - 60_000)
    await database.knex('deliveries').insert(rowOf(id, { status: 'pending', next_attempt_at: Date.now() + day }))
    const queued = { delivery_id: id, event_id: id, webhook_id: id, due_at: Date.now() + day }
    await database.knex('delivery_queue').insert(queued)
    const client = await join('all')
    const added = newId(Date.now())
    await database.knex('deliveries').insert(rowOf(added))
    await toBeTold(client, added)
    await database.knex('deliveries').where({ id }).update({ status: 'cancelled', next_attempt_at: null })
    await toBeTold(client, '"cancelled"')
  })

  it('are told what is committed after later ones, at each of two servers', async t => {
    const { database, lives, join } = await start(t, { processes: 2 })
    const clients = [await join('all', { live: lives[0]! }), await join('all', { live: lives[1]! })]
    const [early, late] = [newId(Date.now() - 1_500), newId(Date.now())]
    const insertLate = async () => {
      await database.knex('deliveries').insert(rowOf(late))
      for (const client of clients) await toBeTold(client, late)
    }
    if (engine === 'sqlite') {
      // Its transactions run one after the other, so the order of commits is that of the statements.
      await insertLate()
      await database.knex('deliveries').insert(rowOf(early))
    } else {
      await database.knex.transaction(async trx => {
        await trx('deliveries').insert(rowOf(early))
        await insertLate()
      })
    }
    for (const client of clients) await toBeTold(client, early)
    await wait(3 * LOOK_MS)
    for (const client of clients) assert.deepEqual([timesTold(client, early), timesTold(client, late)], [1, 1])
  })

  it('are told what happens between the search for what they missed and their stream', async t => {
    const { database, join, ready, statements } = await start(t)
    await join('all')
    const coming = await ready()
    const id = newId(Date.now())
    await database.knex('deliveries').insert(rowOf(id))
    const before = statements.length
    await eventually(
      'two looks',
      () => statements.length,
      count => count >= before + 3,
    )
    await toBeTold(await join('all', { coming: Promise.resolve(coming) }), id)
  })

  it('are told the end of their token', async t => {
    const { database, token, join } = await start(t, { beatMs: 2 * LOOK_MS })
    const client = await join('all')
    await database.knex('access_tokens').where('id', token.id).update({ revoked_at: Date.now() })
    await toBeTold(client, 'event: complete')
  })

  it('are told nothing more that happens after the end of their token, however soon', async t => {
    const { database, token, join } = await start(t, { beatMs: 60_000 })
    const client = await join('all')
    await database.knex('access_tokens').where('id', token.id).update({ revoked_at: Date.now() })
    const id = newId(Date.now())
    await database.knex('deliveries').insert(rowOf(id))
    await toBeTold(client, 'event: complete')
    assert.equal(timesTold(client, id), 0)
  })

  it('are told that their token may no longer read', async t => {
    const { database, token, join } = await start(t, { beatMs: 2 * LOOK_MS })
    const client = await join('all')
    await database.knex('access_token_permissions').where('access_token_id', token.id).update({ permission: 'reports' })
    await toBeTold(client, 'needs the permission')
  })

  it('who came back for what they missed are answered by the same work as all once they have it', async t => {
    const { database, live, answers, join } = await start(t)
    const add = (id: string) => database.knex('deliveries').insert(rowOf(id))
    const missedId = newId(Date.now() - 60_000)
    await add(missedId)
    const clients = [
      await join('all', { missed: [missedId] }),
      await join('all', { missed: [missedId] }),
      await join('all'),
    ]
    const told = (id: string) => clients.map(client => timesTold(client, id)).join()
    await eventually(
      'what was missed',
      () => told(missedId),
      counts => counts === '1,1,0',
    )
    await wait(5 * LOOK_MS)
    answers.count = 0
    const next = newId(Date.now())
    await add(next)
    live.hurry(next)
    await eventually(
      'what is new',
      () => told(next),
      counts => counts === '1,1,1',
    )
    assert.equal(answers.count, 1)
    clients[0]!.destroy()
    const last = newId(Date.now())
    await add(last)
    live.hurry(last)
    await eventually(
      'what is new',
      () => told(last),
      counts => counts === '0,1,1',
    )
  })
})
