import { randomUUID } from 'node:crypto'
import { rows } from '../../server/database/connect.ts'
import { claim } from '../../server/delivery/queue.ts'
import type { Fixture } from '../delivery/fixture.ts'
import { startServerProcess } from '../delivery/server-process.ts'
import { eventually } from '../support/eventually.ts'
import { median } from './figures.ts'

// Measures a queue with many deliveries.

export const untilEmpty = (fixture: Fixture) =>
  eventually(
    'an empty queue',
    () => fixture.database.knex('delivery_queue').select('delivery_id').limit(1),
    queue => queue.length === 0,
    { timeoutMs: 600_000, everyMs: 20 },
  )

/** Deliveries a second of a backlog that falls due at one moment, sent by `count` server processes. */
export const byProcesses = async (fixture: Fixture, count: number, events: number): Promise<number> => {
  const { knex } = fixture.database
  await fixture.emit(events)
  await knex('delivery_queue').update({ due_at: Date.now() + 3_600_000 })
  const [{ deliveries }] = (await knex('delivery_queue').count({ deliveries: '*' })) as [{ deliveries: number }]
  const env = { TIDINGS_ROLES: 'delivery' }
  const servers = await Promise.all(Array.from({ length: count }, () => startServerProcess(fixture.given.url, env)))
  try {
    const due_at = Date.now() + 2_000
    await knex('delivery_queue').update({ due_at })
    await untilEmpty(fixture)
    return (Number(deliveries) / (Date.now() - due_at)) * 1000
  } finally {
    for (const server of servers) await server.end('SIGTERM')
  }
}

const CLAIMED = 200
const CLAIMS = 15
/** SQLite takes no more. */
const ROWS_A_STATEMENT = 500

/**
 * Makes the function that measures a claim of 200 due deliveries beside a number of later ones: the median in
 * milliseconds. Call it with increasing numbers.
 */
export const claimTimer = async (fixture: Fixture): Promise<(later: number) => Promise<number>> => {
  const { knex } = fixture.database
  const webhookId = await fixture.webhook('http://127.0.0.1:9/')
  let later = 0
  return async wanted => {
    for (; later < wanted; later += ROWS_A_STATEMENT) {
      const due_at = Date.now() + 24 * 3_600_000 + later
      const waiting = { event_id: randomUUID(), webhook_id: webhookId, due_at }
      const added = Array.from({ length: ROWS_A_STATEMENT }, () => ({ delivery_id: randomUUID(), ...waiting }))
      await knex('delivery_queue').insert(added)
    }
    const times: number[] = []
    for (let n = 0; n < CLAIMS; n++) {
      await fixture.emit(CLAIMED)
      const startedAt = performance.now()
      const given = { lease: randomUUID(), now: Date.now(), limit: CLAIMED, leaseMs: 30_000 }
      const { taken } = await claim(fixture.database, { ...given, triage: due => ({ take: due, later: [] }) })
      times.push(performance.now() - startedAt)
      if (taken.length !== CLAIMED) throw new Error(`claimed ${taken.length}`)
      await rows(knex, 'SELECT 1')
      await knex('delivery_queue')
        .whereNotNull('lease')
        .where('due_at', '<', Date.now() + 3_600_000)
        .delete()
    }
    return median(times)
  }
}
