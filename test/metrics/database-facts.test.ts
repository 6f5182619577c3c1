import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, afterEach, before, it } from 'node:test'
import { Registry } from 'prom-client'
import { insertMany, rows } from '../../server/database/connect.ts'
import { askFacts, databaseFacts } from '../../server/metrics/database-facts.ts'
import { type Fixture, startFixture } from '../delivery/fixture.ts'
import { testClock } from '../support/clock.ts'
import { describeEachEngine } from '../support/databases.ts'

const MINUTE_MS = 60_000
const DAY_MS = 24 * 60 * MINUTE_MS

describeEachEngine('what the database is asked for by metrics', engine => {
  const clock = testClock()
  let fixture: Fixture
  before(async () => {
    fixture = await startFixture(engine, clock)
  })
  afterEach(() => fixture.reset())
  after(() => fixture?.stop())

  const ask = (mostCounted = 1_000) => askFacts({ database: fixture.database, clock, retentionDays: 30, mostCounted })
  /** Deliveries in the queue, due so long ago. */
  const queue = (webhook_id: string, dueForMs: number, count = 1) =>
    insertMany(
      fixture.database.knex,
      'delivery_queue',
      Array.from({ length: count }, () => ({
        delivery_id: randomUUID(),
        event_id: randomUUID(),
        webhook_id,
        due_at: clock.now() - dueForMs,
      })),
    )
  const change = (id: string, values: object) => fixture.database.knex('webhooks').where({ id }).update(values)

  it('tells how long the oldest delivery has been due, how many are, and how many webhooks are behind', async () => {
    const [a, b] = [await fixture.webhook('http://a.example'), await fixture.webhook('http://b.example')]
    await queue(a, 5 * MINUTE_MS)
    await queue(a, 10_000)
    await queue(b, 20_000)
    await queue(b, -MINUTE_MS, 3)
    const { oldestDueMs, due, queued, webhooksBehind, webhooks } = await ask()
    assert.deepEqual(
      { oldestDueMs, due, queued, webhooksBehind },
      { oldestDueMs: 300_000, due: 3, queued: 6, webhooksBehind: 1 },
    )
    assert.deepEqual(webhooks, [
      { status: 'active', count: 2 },
      { status: 'inactive', count: 0 },
      { status: 'disabled', count: 0 },
    ])
  })

  it('does not take for late what a receiver asked to wait with, nor what a disabled webhook has left', async () => {
    const [held, gone, other] = [
      await fixture.webhook('http://held.example'),
      await fixture.webhook('http://gone.example'),
      await fixture.webhook('http://other.example'),
    ]
    await queue(held, 60 * MINUTE_MS, 5)
    await change(held, { held_until: clock.now() + MINUTE_MS })
    await queue(gone, 60 * MINUTE_MS)
    await change(gone, { status: 'disabled', epoch: 2 })
    await queue(other, 1_000)
    const { oldestDueMs, webhooksBehind } = await ask()
    assert.deepEqual([oldestDueMs, webhooksBehind], [1_000, 0])
  })

  it('counts no more of a long queue than it may', async () => {
    await queue(await fixture.webhook('http://a.example'), MINUTE_MS, 3_000)
    const { dialect, knex } = fixture.database
    // By itself, TiDB does so every few minutes.
    if (dialect.name === 'TiDB') await knex.raw('ANALYZE TABLE delivery_queue')
    const { due, queued } = await ask(1_000)
    // Beyond that, the engine's estimate, where it has one.
    const [least, most] = engine === 'sqlite' ? [1_000, 1_000] : [1_200, 6_000]
    for (const count of [due, queued]) assert.ok(count >= least && count <= most, `${due} and ${queued}`)
    assert.equal((await ask(100_000)).due, 3_000)
  })

  it('tells how long the oldest event has outlived its retention', async () => {
    assert.equal((await ask()).purgeLagMs, 0)
    const event = { type: 'ping', all_organisations: 0, payload: '{}' }
    await fixture.database.knex('events').insert({ id: randomUUID(), ...event, created_at: clock.now() - 29 * DAY_MS })
    assert.equal((await ask()).purgeLagMs, 0)
    await fixture.database.knex('events').insert({ id: randomUUID(), ...event, created_at: clock.now() - 31 * DAY_MS })
    assert.equal((await ask()).purgeLagMs, DAY_MS)
  })

  it('is asked once for all who look, and again only after a while', async () => {
    const { database } = fixture
    const registry = new Registry()
    databaseFacts(registry, { database, clock, retentionDays: 30 })
    let statements = 0
    // The fixture's keyring looks for signing keys meanwhile.
    const count = ({ sql }: { sql: string }) => {
      if (!sql.includes('signing_keys')) statements += 1
    }
    database.knex.on('query', count)
    try {
      const texts = await Promise.all([registry.metrics(), registry.metrics()])
      await registry.metrics()
      assert.match(texts[0], /^tidings_database_up 1$/m)
      assert.match(texts[1], /^tidings_queue_oldest_due_seconds 0$/m)
      assert.ok(statements > 0 && statements <= 9, `${statements} statements`)
    } finally {
      database.knex.removeListener('query', count)
    }
  })

  it('is read from indexes', async () => {
    const { knex, dialect } = fixture.database
    await queue(await fixture.webhook('http://a.example'), MINUTE_MS, 500)
    const asked: { sql: string; bindings: string[] }[] = []
    const note = ({ sql, bindings }: { sql: string; bindings: string[] }) => asked.push({ sql, bindings })
    knex.on('query', note)
    await ask(10)
    knex.removeListener('query', note)
    const onQueue = asked.filter(({ sql }) => /^(SELECT|WITH)/.test(sql) && /delivery_queue/.test(sql))
    assert.ok(onQueue.length >= 3)
    for (const { sql, bindings } of onQueue) {
      const plan = await rows<Record<string, unknown>>(knex, dialect.explain + sql, bindings)
      const indexes = plan.flatMap(row => dialect.indexesIn(row)).join(' ')
      assert.match(indexes, /delivery_queue_by/, sql)
    }
  })

  it('is told no more where the database is away', async () => {
    const registry = new Registry()
    const { database } = fixture
    const knex = { client: { acquireConnection: () => Promise.reject(new Error('away')) } }
    databaseFacts(registry, { database: { ...database, knex: knex as never }, clock, retentionDays: 30 })
    const text = await registry.metrics()
    assert.match(text, /^tidings_database_up 0$/m)
    assert.doesNotMatch(text, /^tidings_queue_depth /m)
  })

  it('is told again soon after an outage, and not for longer than it stays fresh after a slow answer', async t => {
    const { database } = fixture
    let now = performance.now()
    t.mock.method(performance, 'now', () => now)
    let takesMs = 0
    let isAway = false
    const slow = new Proxy(database.knex, {
      get(knex, name) {
        now += takesMs
        takesMs = 0
        if (isAway) throw new Error('away')
        return Reflect.get(knex, name)
      },
    })
    const registry = new Registry()
    databaseFacts(registry, { database: { ...database, knex: slow }, clock, retentionDays: 30 })
    const up = async (): Promise<string | undefined> =>
      /^tidings_database_up (\d)$/m.exec(await registry.metrics())?.[1]
    isAway = true
    takesMs = 30_000
    assert.equal(await up(), '0')
    isAway = false
    now += 10_001
    assert.equal(await up(), '1')
    takesMs = 20_000
    now += 10_001
    assert.match(await registry.metrics(), /^tidings_queue_due 0$/m)
    await queue(await fixture.webhook('http://late.example'), MINUTE_MS)
    now += 60_001
    assert.match(await registry.metrics(), /^tidings_queue_due 1$/m)
  })
})
