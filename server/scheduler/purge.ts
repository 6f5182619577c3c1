import type { Knex } from 'knex'
import { marks, rows, run } from '../database/connect.ts'
import { dialectOf, STATEMENT_LIMITS } from '../database/dialect.ts'
import { purgeWebhooks } from '../domain/webhooks.ts'
import type { Step } from './step.ts'

const DAY_MS = 24 * 3600 * 1000
/** Events of one transaction, and their deliveries unless one event alone has more: some 50 ms of work. */
const EVENTS = 100
const DELIVERIES = 300
const WEBHOOKS = 200

/**
 * Deletes events past their retention with their deliveries, except where one is still owed. Processes share the work:
 * each takes the oldest that no other holds.
 */
export const purge: Step = {
  name: 'purge',
  everyMs: 10_000,
  largestPart: 1 / 2,
  begin({ database, clock, retentionDays }) {
    let last: OldEvent = { id: '', created_at: Number.MIN_SAFE_INTEGER }
    return async () => {
      const before = clock.now() - retentionDays * DAY_MS
      const found = await database.transaction(trx => purgeSome(trx, last, before))
      // What was kept in this round is not gone through again, nor what has been deleted.
      if (found) last = found
      return found !== undefined
    }
  },
}

/** Ends webhooks that were deleted, once all deliveries to them are past their retention. */
export const endDeleted: Step = {
  name: 'end deleted webhooks',
  everyMs: 600_000,
  largestPart: 1 / 10,
  begin:
    ({ database, clock, retentionDays }) =>
    async () => {
      const before = clock.now() - retentionDays * DAY_MS
      return (await database.transaction(trx => purgeWebhooks(trx, before, WEBHOOKS))) > 0
    },
}

type OldEvent = { id: string; created_at: number }

/**
 * Deletes some of the events of a span of time, all of an event at once, so that a recovery finds none that was
 * acknowledged and does not look it. One that is to be sent again by now stays, with all that is its own.
 *
 * @returns the last of them; undefined if there was none
 */
const purgeSome = async (trx: Knex.Transaction, after: OldEvent, before: number): Promise<OldEvent | undefined> => {
  // Whoever sends one of them again holds it; what has been written by then is seen below.
  const old = await rows<OldEvent>(
    trx,
    `SELECT id, created_at FROM events ${dialectOf(trx).useIndex('events_by_time')}
     WHERE created_at >= ? AND created_at < ? AND (created_at > ? OR id > ?)
     ORDER BY created_at, id LIMIT ?${dialectOf(trx).forUpdateSkipLocked}`,
    [after.created_at, before, after.created_at, after.id, EVENTS],
  )
  if (old.length === 0) return undefined
  const ids = old.map(({ id }) => id)
  const found = await rows<{ id: string; event_id: string; status: string }>(
    trx,
    `SELECT id, event_id, status FROM deliveries WHERE event_id IN (${marks(ids)})`,
    ids,
  )
  const deliveries = Map.groupBy(found, ({ event_id }) => event_id)
  const part = oneBatch(old, id => deliveries.get(id)?.length ?? 0)
  const owed = new Set(found.filter(({ status }) => status === 'pending').map(({ event_id }) => event_id))
  const gone = part.filter(({ id }) => !owed.has(id)).map(({ id }) => id)
  const theirs = gone.flatMap(id => deliveries.get(id) ?? []).map(({ id }) => id)
  // Before its attempts: one that is recorded late waits for this, and finds no delivery.
  await deleteByKeys(trx, 'deliveries', 'id', theirs.toSorted())
  await deleteByKeys(trx, 'attempts', 'delivery_id', theirs)
  await deleteByKeys(trx, 'events', 'id', gone)
  await deleteByKeys(trx, 'event_organisations', 'event_id', gone)
  return part.at(-1)
}

/** The first events, with no more deliveries than a batch has, unless the first alone has more. */
const oneBatch = (events: OldEvent[], deliveriesOf: (id: string) => number): OldEvent[] => {
  let sum = 0
  const end = events.findIndex(({ id }) => {
    sum += deliveriesOf(id)
    return sum > DELIVERIES
  })
  return end === -1 ? events : events.slice(0, Math.max(1, end))
}

const deleteByKeys = async (trx: Knex.Transaction, table: string, key: string, values: string[]): Promise<void> => {
  for (let from = 0; from < values.length; from += STATEMENT_LIMITS.keys) {
    const part = values.slice(from, from + STATEMENT_LIMITS.keys)
    await run(trx, `DELETE FROM ${table} WHERE ${key} IN (${marks(part)})`, part)
  }
}
