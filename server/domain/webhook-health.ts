import type { Knex } from 'knex'
import { toIso } from '../../shared/time.ts'
import { type DeliveryStatus, deliveryStatuses } from '../../shared/vocabulary.ts'
import { rows } from '../database/connect.ts'
import { dialectOf, STATEMENT_LIMITS } from '../database/dialect.ts'
import type { Fragment } from '../database/fragment.ts'
import type { Field, Resource, Source } from '../mango/resource.ts'

type Derived = Extract<Field, { kind: 'derived' }>

const DAY_MS = 24 * 3600 * 1000
const ENDED = deliveryStatuses.filter(status => status !== 'pending')

/** For each webhook, the number of visible deliveries that ended in the last 24 h, by status, and that are pending. */
export const healthOf = (deliveries: () => Resource): Derived => ({
  kind: 'derived',
  object: {
    name: 'health',
    table: 'deliveries',
    fields: Object.fromEntries(
      deliveryStatuses.map(status => [status, { kind: 'column', column: status, type: 'integer' }]),
    ),
  },
  load: async (source, webhookIds) => {
    const found: { webhook_id: string; status: DeliveryStatus; deliveries: number }[] = await source.connection
      .queryBuilder()
      .unionAll([countEnded(source, webhookIds, deliveries()), countPending(source, webhookIds, deliveries())])
    const counts = new Map(found.map(row => [`${row.webhook_id} ${row.status}`, Number(row.deliveries)]))
    const health = (id: string) =>
      Object.fromEntries(deliveryStatuses.map(status => [status, counts.get(`${id} ${status}`) ?? 0]))
    return new Map(webhookIds.map(id => [id, health(id)]))
  },
})

// Ended and pending deliveries are counted separately, each by one index range for each webhook and status. Engines may
// plan a condition that covers both as a full scan. Both counts are one statement, so that a delivery that ends
// meanwhile is counted once.

const countEnded = (source: Source, webhookIds: string[], deliveries: Resource): Knex.QueryBuilder =>
  counted(source, webhookIds, deliveries)
    .whereIn('deliveries.status', ENDED)
    .where('deliveries.finished_at', '>=', source.now - DAY_MS)

const countPending = (source: Source, webhookIds: string[], deliveries: Resource): Knex.QueryBuilder =>
  counted(source, webhookIds, deliveries).where('deliveries.status', 'pending').whereNull('deliveries.finished_at')

const counted = (source: Source, webhookIds: string[], deliveries: Resource): Knex.QueryBuilder =>
  deliveriesOf(source, deliveries)
    .select('deliveries.webhook_id', 'deliveries.status')
    .count({ deliveries: '*' })
    .whereIn('deliveries.webhook_id', webhookIds)
    .modify(source.seen(deliveries))
    .groupBy('deliveries.webhook_id', 'deliveries.status')

/**
 * If the caller sees all deliveries, names the index on (webhook_id, status, finished_at), because engines may choose
 * another for many webhooks.
 */
const deliveriesOf = ({ connection, visible }: Source, deliveries: Resource): Knex.QueryBuilder => {
  const isHinted = visible(deliveries, 'deliveries') === undefined
  const hint = isHinted ? dialectOf(connection).useIndex('deliveries_by_webhook') : ''
  return connection.queryBuilder().fromRaw(`deliveries ${hint}`)
}

/** For each webhook, when the latest visible delivery to it ended. */
export const lastDeliveryOf = (deliveries: () => Resource): Derived => ({
  kind: 'derived',
  load: async (source, webhookIds) => {
    const seesAll = source.visible(deliveries(), 'deliveries') === undefined
    const found = await (seesAll ? lastOfAll(source, webhookIds) : lastOfSeen(source, webhookIds, deliveries()))
    const last = new Map<string, number>()
    for (const { webhook_id, last_at } of found) {
      if (last_at !== null) last.set(webhook_id, Math.max(Number(last_at), last.get(webhook_id) ?? 0))
    }
    return new Map([...last].map(([id, time]) => [id, toIso(time)]))
  },
})

type Last = { webhook_id: string; last_at: number | null }

/** Reads the last entry of each range of the index on (webhook_id, status, finished_at). */
const lastOfAll = (source: Source, webhookIds: string[]): Promise<Last[]> =>
  source
    .connection('deliveries')
    .select('webhook_id')
    .max({ last_at: 'finished_at' })
    .whereIn('webhook_id', webhookIds)
    .groupBy('webhook_id', 'status')

/** Reads each such range from its end back to the first visible entry. */
const lastOfSeen = async (source: Source, webhookIds: string[], deliveries: Resource): Promise<Last[]> => {
  const ends = webhookIds.flatMap(id => ENDED.map(status => ({ id, status })))
  const found: Last[] = []
  for (let from = 0; from < ends.length; from += STATEMENT_LIMITS.selects) {
    const selects = ends.slice(from, from + STATEMENT_LIMITS.selects).map(({ id, status }, index) => {
      const newest = source
        .connection('deliveries')
        .select('deliveries.webhook_id', 'deliveries.finished_at as last_at')
        .where({ 'deliveries.webhook_id': id, 'deliveries.status': status })
        .whereNotNull('deliveries.finished_at')
        .modify(source.seen(deliveries))
        .orderBy('deliveries.finished_at', 'desc')
        .limit(1)
        .toSQL()
      return { sql: `SELECT * FROM (${newest.sql}) e${index}`, bindings: newest.bindings as Fragment['bindings'] }
    })
    const statement = selects.map(({ sql }) => sql).join(' UNION ALL ')
    const bindings = selects.flatMap(({ bindings }) => bindings)
    found.push(...(await rows<Last>(source.connection, statement, bindings)))
  }
  return found
}
