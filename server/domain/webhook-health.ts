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
export const lastDeliveryOf = (webhooks: () => Resource, deliveries: () => Resource): Derived => ({
  kind: 'derived',
  load: async (source, webhookIds) => {
    const seesAll = source.visible(deliveries(), 'deliveries') === undefined
    const found = await (seesAll
      ? lastOfAll(source, webhookIds)
      : lastOfSeen(source, webhookIds, webhooks(), deliveries()))
    const last = new Map<string, number>()
    for (const { webhook_id, last_at } of found) {
      if (last_at !== null) last.set(webhook_id, Math.max(Number(last_at), last.get(webhook_id) ?? 0))
    }
    return new Map([...last].map(([id, time]) => [id, toIso(time)]))
  },
})

type Last = { webhook_id: string; status?: DeliveryStatus; last_at: number | null }

/** Reads the last entry of each range of the index on (webhook_id, status, finished_at). */
const lastOfAll = (source: Source, webhookIds: string[]): Promise<Last[]> => endsOf(source, webhookIds)

const endsOf = (source: Source, webhookIds: string[]): Knex.QueryBuilder =>
  source
    .connection('deliveries')
    .select('webhook_id', 'status')
    .max({ last_at: 'finished_at' })
    .whereIn('webhook_id', webhookIds)
    .groupBy('webhook_id', 'status')

/**
 * Of webhooks whose very last delivery the caller sees, which are nearly all, that one. For the others each such range
 * is read from its end back to the first visible entry.
 */
const lastOfSeen = async (
  source: Source,
  webhookIds: string[],
  webhooks: Resource,
  deliveries: Resource,
): Promise<Last[]> => {
  // Looked up once: an engine may list all webhooks that the caller sees for each range.
  const seen: string[] = await source
    .connection('webhooks')
    .whereIn('webhooks.id', webhookIds)
    .modify(source.seen(webhooks))
    .pluck('webhooks.id')
  if (seen.length === 0) return []
  const { joinInOrder, useIndex } = dialectOf(source.connection)
  const ends = endsOf(source, seen).as('ends').toSQL()
  const table = `(${ends.sql}) ends ${joinInOrder} deliveries ${useIndex('deliveries_by_webhook')}
    ON deliveries.webhook_id = ends.webhook_id AND deliveries.status = ends.status
      AND deliveries.finished_at = ends.last_at`
  const visible: Last[] = await source
    .connection(source.connection.raw(table, ends.bindings as never))
    .select('ends.webhook_id', 'ends.last_at')
    .modify(source.seen(deliveries, true))
  const last = new Map<string, number>()
  for (const { webhook_id, last_at } of await lastOfAll(source, seen)) {
    if (last_at !== null) last.set(webhook_id, Math.max(Number(last_at), last.get(webhook_id) ?? 0))
  }
  for (const { webhook_id, last_at } of visible) {
    if (last.get(webhook_id) === Number(last_at)) last.delete(webhook_id)
  }
  return [...visible, ...(await lastOfEach(source, [...last.keys()], deliveries))]
}

const lastOfEach = async (source: Source, webhookIds: string[], deliveries: Resource): Promise<Last[]> => {
  // Compiled once: for 10,000 webhooks, knex would take longer than the database.
  const newest = source
    .connection('deliveries')
    .select('deliveries.webhook_id', 'deliveries.finished_at as last_at')
    .where({ 'deliveries.webhook_id': WEBHOOK, 'deliveries.status': STATUS })
    .whereNotNull('deliveries.finished_at')
    .modify(source.seen(deliveries, true))
    .orderBy('deliveries.finished_at', 'desc')
    .limit(1)
    .toSQL()
  const bindingsOf = (given: Record<string, string>) =>
    newest.bindings.map(bound => given[bound as string] ?? bound) as Fragment['bindings']
  const ends = webhookIds.flatMap(id => ENDED.map(status => ({ [WEBHOOK]: id, [STATUS]: status })))
  const found: Last[] = []
  for (let from = 0; from < ends.length; from += STATEMENT_LIMITS.selects) {
    const some = ends.slice(from, from + STATEMENT_LIMITS.selects)
    const statement = some.map((_, index) => `SELECT * FROM (${newest.sql}) e${index}`).join(' UNION ALL ')
    found.push(...(await rows<Last>(source.connection, statement, some.flatMap(bindingsOf))))
  }
  return found
}

/** Stand for the bindings of each range in the statement that is repeated for it. */
const WEBHOOK = '\u0000webhook'
const STATUS = '\u0000status'
