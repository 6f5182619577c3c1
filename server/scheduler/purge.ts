import { marks, rows, run } from '../database/connect.ts'
import { dialectOf, STATEMENT_LIMITS } from '../database/dialect.ts'
import type { Transaction } from '../database/transaction.ts'
import { markHours } from '../domain/delivery-hours.ts'
import { purgeWebhooks } from '../domain/webhooks.ts'
import type { Step } from './step.ts'

const DAY_MS = 24 * 3600 * 1000
/** Events of one transaction, and its deliveries unless one event alone has more: about 50 ms of work. */
const EVENTS = 100
const DELIVERIES = 300
const WEBHOOKS = 200

/**
 * Deletes events past their retention with their deliveries, except those with a pending delivery. Processes share the
 * work: each takes the oldest events that no other has locked.
 *
 * Rejected: partitions that are dropped as a whole. Each query by event, webhook or status would read all of them, to
 * save 0.2 ms of the database's CPU for each delivery (MySQL 9.7, decision 15).
 */
export const purge: Step = {
  name: 'purge',
  everyMs: 10_000,
  largestPart: 1 / 2,
  begin({ database, clock, retentionDays }) {
    let last: OldEvent = { id: '', created_at: Number.MIN_SAFE_INTEGER }
    return async () => {
      const before = clock.now() - retentionDays * DAY_MS
      const found = await database.transaction(trx => purgeSome(trx, last, before, clock.now()))
      // Continues after the events kept or deleted in this round.
      if (found) last = found
      return found !== undefined
    }
  },
}

/** Deletes the rows of deleted webhooks after all their deliveries are purged. */
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
 * Deletes some events of a time span, each with everything that belongs to it, so that a recovery never finds an event
 * whose acknowledgement is gone. An event that is pending again stays complete.
 *
 * @returns the last event; undefined if there was none
 */
const purgeSome = async (
  trx: Transaction,
  after: OldEvent,
  before: number,
  now: number,
): Promise<OldEvent | undefined> => {
  // A redelivery locks its event; what it wrote by then is visible below.
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
  await markHours(trx, theirs, now)
  // Deliveries go before attempts: an attempt that is recorded late waits for this, and finds no delivery.
  await deleteByKeys(trx, 'deliveries', 'id', theirs.toSorted())
  await deleteByKeys(trx, 'attempts', 'delivery_id', theirs)
  await deleteByKeys(trx, 'events', 'id', gone)
  await deleteByKeys(trx, 'event_organisations', 'event_id', gone)
  return part.at(-1)
}

/** The first events whose deliveries fit into a batch, or only the first if it alone has more. */
const oneBatch = (events: OldEvent[], deliveriesOf: (id: string) => number): OldEvent[] => {
  let sum = 0
  const end = events.findIndex(({ id }) => {
    sum += deliveriesOf(id)
    return sum > DELIVERIES
  })
  return end === -1 ? events : events.slice(0, Math.max(1, end))
}

const deleteByKeys = async (trx: Transaction, table: string, key: string, values: string[]): Promise<void> => {
  for (let from = 0; from < values.length; from += STATEMENT_LIMITS.keys) {
    const part = values.slice(from, from + STATEMENT_LIMITS.keys)
    await run(trx, `DELETE FROM ${table} WHERE ${key} IN (${marks(part)})`, part)
  }
}
