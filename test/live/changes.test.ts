import assert from 'node:assert/strict'
import { after, before, beforeEach, it } from 'node:test'
import { v7 as uuid } from 'uuid'
import { insertMany } from '../../server/database/connect.ts'
import { Changes } from '../../server/live/changes.ts'
import { type TestClock, testClock } from '../support/clock.ts'
import { describeEachEngine, migratedDatabase, type TestDatabase } from '../support/databases.ts'

describeEachEngine('what changes among deliveries', engine => {
  let fresh: TestDatabase
  let clock: TestClock
  before(async () => {
    fresh = await migratedDatabase(engine)
  })
  beforeEach(async () => {
    clock = testClock()
    for (const table of ['deliveries', 'delivery_queue']) await fresh.database.knex(table).del()
  })
  after(() => fresh.drop())

  /** Pending deliveries, which are due so much later than now. */
  const queue = async (count: number, inMs = 0): Promise<string[]> => {
    const ids = Array.from({ length: count }, () => uuid({ msecs: clock.now() }))
    const dueAt = clock.now() + inMs
    const common = { event_id: uuid(), webhook_id: uuid() }
    const row = { ...common, event_type: 'ping', status: 'pending', next_attempt_at: dueAt, created_at: clock.now() }
    await insertMany(
      fresh.database.knex,
      'deliveries',
      ids.map(id => ({ id, ...row })),
    )
    await insertMany(
      fresh.database.knex,
      'delivery_queue',
      ids.map(delivery_id => ({ delivery_id, ...common, due_at: dueAt })),
    )
    return ids
  }
  const end = (id: string, status: string) =>
    fresh.database.knex('deliveries').where({ id }).update({ status, next_attempt_at: null })
  const begin = async (): Promise<Changes> => {
    const changes = new Changes(fresh.database.knex, clock)
    await changes.begin()
    return changes
  }

  it('is what is new, once, and nothing that was there', async () => {
    await queue(3)
    const changes = await begin()
    assert.deepEqual(await changes.look(), [])
    clock.advance(100)
    const added = await queue(2)
    assert.deepEqual(await changes.look(), added.toSorted())
    assert.deepEqual(await changes.look(), [])
  })

  it('is what a transaction of half a minute commits, within ten looks, also if there was none for long', async () => {
    await queue(1)
    const changes = await begin()
    const early = await queue(1)
    const [missed] = await fresh.database.knex('deliveries').where('id', early[0]!)
    await fresh.database.knex('deliveries').where('id', early[0]!).del()
    clock.advance(25_000)
    await queue(1)
    await changes.look()
    // This process stands still, and others go on.
    clock.advance(120_000)
    const later = await queue(1)
    await fresh.database.knex('deliveries').insert(missed)
    const found: string[] = []
    for (let looks = 0; looks < 20; looks++) found.push(...(await changes.look()))
    assert.deepEqual(found, [...later, ...early])
  })

  it('is the end of one that was due before the first look, whoever came to it', async () => {
    const [id] = await queue(1, 10_000)
    const changes = await begin()
    clock.advance(60_000)
    // What else happens is long past the overlap.
    await queue(1)
    await changes.look()
    await end(id!, 'delivered')
    assert.deepEqual(await changes.look(), [id])
    assert.deepEqual(await changes.look(), [])
  })

  it('is, within a few looks, one that was cancelled long before it was due', async () => {
    const [id] = await queue(1, 3_600_000)
    clock.advance(60_000)
    await queue(1, 3_600_000)
    const changes = await begin()
    await end(id!, 'cancelled')
    const found: string[] = []
    for (let looks = 0; looks < 6; looks++) found.push(...(await changes.look()))
    assert.deepEqual(found, [id])
  })

  it('is asked for of a backlog in turns', async () => {
    const ids = await queue(12_000, -1_000)
    clock.advance(60_000)
    await queue(1)
    const changes = await begin()
    for (const id of [ids[0]!, ids.at(-1)!]) await end(id, 'dropped')
    let bindings = 0
    fresh.database.knex.on('query', query => {
      bindings += query.bindings?.length ?? 0
    })
    const found: string[] = []
    for (let looks = 0; looks < 3; looks++) found.push(...(await changes.look()))
    assert.deepEqual(found.sort(), [ids[0], ids.at(-1)].sort())
    assert.ok(bindings > 12_000 && bindings < 16_000, `${bindings} ids were asked for in three looks`)
  })
})
