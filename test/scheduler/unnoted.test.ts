import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, afterEach, before, it } from 'node:test'
import { insertMany } from '../../server/database/connect.ts'
import type { HealingRow } from '../../server/domain/missed.ts'
import { createLog } from '../../server/log.ts'
import { noteDropped } from '../../server/scheduler/unnoted.ts'
import { type Fixture, startFixture } from '../delivery/fixture.ts'
import { testClock } from '../support/clock.ts'
import { describeEachEngine } from '../support/databases.ts'

const MINUTE = 60_000

describeEachEngine('what a process of version 0.2 has dropped of a webhook that heals itself', engine => {
  const clock = testClock()
  let fixture: Fixture
  before(async () => {
    fixture = await startFixture(engine, clock)
  })
  afterEach(async () => {
    await fixture.reset()
    await fixture.database.knex('webhook_recoveries').delete()
  })
  after(() => fixture?.stop())

  const webhook = () => fixture.webhook('http://127.0.0.1:9/', { recovery: 'automatic' })
  /** Emits an event, and returns its delivery's id and its time. */
  const emit = async (): Promise<{ id: string; time: number }> => {
    const ids = await fixture.database.knex('deliveries').pluck('id')
    clock.advance(10)
    await fixture.emit(1)
    const [row] = await fixture.database.knex('deliveries').whereNotIn('id', ids)
    return { id: row.id, time: Number(row.created_at) }
  }
  /** Writes what a process of version 0.2 writes when the last retry has failed. */
  const dropAsBefore = async ({ id }: { id: string }) => {
    clock.advance(10)
    const { knex } = fixture.database
    const failed = { number: 11, started_at: clock.now() - 5, duration_ms: 5, status_code: 503, response: '' }
    await insertMany(knex, 'attempts', [{ delivery_id: id, ...failed }])
    const dropped = { status: 'dropped', attempt_count: 11, next_attempt_at: null, finished_at: clock.now() }
    await knex('deliveries').where({ id }).update(dropped)
    await knex('delivery_queue').where({ delivery_id: id }).delete()
  }
  const look = async () => {
    const batch = noteDropped.begin({
      ...{ database: fixture.database, clock, log: createLog('silent') },
      ...{ reportDueDays: 30, retentionDays: 30, onEvents: () => {} },
    })
    while (await batch());
  }
  const row = (id: string): Promise<HealingRow | undefined> =>
    fixture.database.knex('webhook_recoveries').where({ webhook_id: id }).first()
  const note = (id: string, noted: Partial<HealingRow>) =>
    insertMany(fixture.database.knex, 'webhook_recoveries', [
      { webhook_id: id, missed_since: clock.now(), began_at: clock.now(), due_at: clock.now() + MINUTE, ...noted },
    ])
  /** The times of a row, which may be texts. */
  const times = async (id: string, ...columns: (keyof HealingRow)[]) => {
    const found = await row(id)
    return columns.map(column => (found?.[column] == null ? null : Number(found[column])))
  }

  it('is noted as the first miss, and pinged for 10 minutes later', async () => {
    const ids = [await webhook(), await webhook(), await webhook()]
    clock.advance(10)
    await fixture.emit(1)
    for (const delivery of await fixture.deliveries()) await dropAsBefore(delivery)
    await look()
    const [{ created_at }] = await fixture.database.knex('events')
    for (const id of ids) {
      assert.deepEqual(await times(id, 'missed_since', 'due_at'), [Number(created_at), clock.now() + 10 * MINUTE])
    }
  })

  it('makes the first miss earlier, and leaves the time of the ping', async () => {
    const id = await webhook()
    const early = await emit()
    const late = await emit()
    const dueAt = clock.now() + 3 * MINUTE
    await note(id, { missed_since: late.time, due_at: dueAt })
    await dropAsBefore(late)
    await look()
    assert.deepEqual(await times(id, 'missed_since', 'due_at'), [late.time, dueAt])
    await dropAsBefore(early)
    await look()
    assert.deepEqual(await times(id, 'missed_since', 'due_at'), [early.time, dueAt])
  })

  it('is missed anew if it was dropped after the ping was answered, and is not if it was before', async () => {
    const id = await webhook()
    const [before, after] = [await emit(), await emit()]
    await dropAsBefore(before)
    await note(id, { missed_since: before.time, answered_at: clock.now() })
    await look()
    assert.deepEqual(await times(id, 'again_since'), [null])
    await dropAsBefore(after)
    await look()
    assert.deepEqual(await times(id, 'again_since'), [after.time])
  })

  it('opens a healing that had ended, unless the event has been acknowledged or is pending', async () => {
    const id = await webhook()
    const [queued, dropped] = [await emit(), await emit()]
    await note(id, { missed_since: queued.time, answered_at: clock.now(), recovered_at: clock.now() })
    await dropAsBefore(queued)
    const again = { ...(await fixture.database.knex('deliveries').where({ id: queued.id }).first()) }
    const pending = { ...again, id: randomUUID(), status: 'pending', finished_at: null }
    await insertMany(fixture.database.knex, 'deliveries', [pending])
    await look()
    assert.deepEqual((await times(id, 'recovered_at'))[0] === null, false)
    await dropAsBefore(dropped)
    await look()
    assert.deepEqual(await times(id, 'recovered_at', 'missed_since'), [null, dropped.time])
  })

  it('is left alone if it was dropped before the webhook was told to heal itself, or is a ping', async () => {
    const id = await webhook()
    const { knex } = fixture.database
    await dropAsBefore(await emit())
    clock.advance(1)
    await knex('webhooks').where({ id }).update({ automatic_since: clock.now() })
    const ping = await emit()
    await knex('events').where({ created_at: ping.time }).update({ type: 'ping' })
    await dropAsBefore(ping)
    await look()
    assert.equal(await row(id), undefined)
  })
})
