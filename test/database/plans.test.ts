import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, it } from 'node:test'
import { connect, type Database, insertMany, rows } from '../../server/database/connect.ts'
import type { Change } from '../../server/domain/change.ts'
import type { AccessToken } from '../../server/domain/permissions.ts'
import { recoverDeliveries } from '../../server/domain/recovery.ts'
import { leaveActive } from '../../server/domain/webhooks.ts'
import { type Fixture, startFixture } from '../delivery/fixture.ts'
import { testClock } from '../support/clock.ts'
import { describeEachEngine } from '../support/databases.ts'
import { startReceiver } from '../support/receiver.ts'
import { addWebhook, DISABLING } from '../support/webhooks.ts'

const HISTORY = 4_000
const EVENTS = 30
/** The rows that a statement may read besides a few for each bound value. */
const FEW = 400

type Statement = { sql: string; bindings: (string | number | null)[] }

/** So that lists of any length are one statement. */
const shapeOf = (sql: string): string => sql.replaceAll(/\(\?(?:, \?)+\)/g, '(?…)').replaceAll(/\s+/g, ' ')

describeEachEngine('the statements on the way of an event', engine => {
  const clock = testClock()
  let fixture: Fixture
  const statements = new Map<string, Statement>()

  before(async () => {
    fixture = await startFixture(engine, clock)
    await fillHistory()
    const { database } = fixture
    const answers = [{ status: 200 }, { status: 500 }, { status: 404 }]
    const receiver = await startReceiver({ answer: (_request, n) => answers[n % answers.length]! })
    const throttled = await startReceiver({
      answer: (_request, n) => (n === 1 ? { status: 429, headers: { 'retry-after': '1' } } : { status: 429 }),
    })
    try {
      const startedAt = clock.now()
      const webhookId = await fixture.webhook(receiver.url)
      await addWebhook(database.knex, { accessTokenId: await limitedToken(), url: receiver.url })
      await fixture.webhook(throttled.url)
      const loop = await fixture.startLoop({ concurrency: 8 })
      // What a start does is not on the way.
      await loop.idle()
      database.knex.on('query', ({ sql, bindings }: Statement) => {
        if (/^\s*\(*(SELECT|INSERT|UPDATE|DELETE|WITH)/i.test(sql)) statements.set(shapeOf(sql), { sql, bindings })
      })
      await fixture.emit(EVENTS)
      for (let n = 0; n < 3; n++) {
        await loop.idle()
        clock.advance(5_000)
      }
      await fixture.emit(2)
      await database.transaction(trx => leaveActive(trx, webhookId, DISABLING, clock.now()))
      await loop.idle()
      await database.knex('webhooks').where({ id: webhookId }).update({ status: 'active' })
      const change = <T>(work: (change: Change) => Promise<T>): Promise<T> =>
        database.transaction(trx => work({ trx, token: { seesAllOrganisations: true } as AccessToken, now: clock.now }))
      const span = { since: startedAt, until: undefined }
      const { queued } = await recoverDeliveries({ database, clock, change, look: change }, webhookId, span)
      assert.ok(queued > 0)
      await loop.idle()
    } finally {
      database.knex.removeAllListeners('query')
      await receiver.close()
      await throttled.close()
    }
  })
  after(() => fixture?.stop())

  /** One that sees the organisations that there are, and no others. */
  const limitedToken = async (): Promise<string> => {
    const { knex } = fixture.database
    const { id } = await fixture.token()
    await knex('access_tokens').where({ id }).update({ sees_all_organisations: 0 })
    const seen: { id: string }[] = await knex('organisations').select('id')
    await knex('access_token_organisations').insert(
      seen.map(organisation => ({ access_token_id: id, organisation_id: organisation.id })),
    )
    return id
  }

  const fillHistory = async (): Promise<void> => {
    const { knex } = fixture.database
    const created_at = clock.now() - 1_000_000
    const webhook_id = randomUUID()
    const history = Array.from({ length: HISTORY }, () => ({ id: randomUUID(), event_id: randomUUID() }))
    await insertMany(
      knex,
      'events',
      history.map(({ event_id }) => ({ id: event_id, type: 'ping', all_organisations: 0, payload: '{}', created_at })),
    )
    await insertMany(
      knex,
      'deliveries',
      history.map(({ id, event_id }) => ({
        id,
        event_id,
        webhook_id,
        event_type: 'ping',
        status: 'pending',
        created_at,
      })),
    )
    await insertMany(
      knex,
      'attempts',
      history.map(({ id }) => ({ delivery_id: id, number: 1, started_at: created_at, status_code: 500 })),
    )
    // Far ahead: none of them is due meanwhile.
    await insertMany(
      knex,
      'delivery_queue',
      history.map(({ id, event_id }) => ({
        delivery_id: id,
        event_id,
        webhook_id,
        due_at: clock.now() + 1_000_000_000,
      })),
    )
    if (engine === 'sqlite') await knex.raw('ANALYZE')
    else await knex.raw('ANALYZE TABLE events, deliveries, attempts, delivery_queue')
  }

  it('read no more rows than they are about', async () => {
    assert.ok(statements.size > 15, `${statements.size} statements`)
    const greedy = engine === 'sqlite' ? await scans(fixture.database, statements) : await readers(fixture, statements)
    assert.deepEqual(greedy, [])
  })
})

/** Statements of SQLite that go through a large table without an index. */
const scans = async (database: Database, statements: Map<string, Statement>): Promise<string[]> => {
  const found: string[] = []
  for (const [shape, { sql, bindings }] of statements) {
    const plan = await rows<{ detail: string }>(database.knex, database.dialect.explain + sql, bindings)
    const bad = plan.filter(({ detail }) =>
      /^SCAN (events|deliveries|attempts|delivery_queue)\b(?!.* INDEX)/.test(detail),
    )
    if (bad.length > 0) found.push(`${shape}: ${bad.map(({ detail }) => detail)}`)
  }
  return found
}

/** Statements that read many rows by the server's own count, each repeated and rolled back. */
const readers = async (fixture: Fixture, statements: Map<string, Statement>): Promise<string[]> => {
  const database = await connect(fixture.given.url, { poolSize: 1 })
  const found: string[] = []
  try {
    for (const [shape, { sql, bindings }] of statements) {
      const count = await database.knex
        .transaction(async trx => {
          const before = await rowsRead(trx)
          await trx.raw(sql, bindings as never).catch(error => {
            // What it wrote is there by now.
            if (error.errno !== 1062) throw error
          })
          throw Object.assign(new Error('taken back'), { read: (await rowsRead(trx)) - before })
        })
        .catch(error => {
          if (error.read === undefined) throw error
          return error.read as number
        })
      if (count > FEW + 6 * bindings.length) found.push(`${shape} read ${count} rows`)
    }
  } finally {
    await database.close()
  }
  return found
}

const rowsRead = async (trx: Parameters<typeof rows>[0]): Promise<number> => {
  const counters = await rows<{ Value: string }>(trx, "SHOW SESSION STATUS LIKE 'Handler_read%'")
  return counters.reduce((sum, { Value }) => sum + Number(Value), 0)
}
