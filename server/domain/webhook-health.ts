import { toIso } from '../../shared/time.ts'
import { type DeliveryStatus, deliveryStatuses } from '../../shared/vocabulary.ts'
import { rows } from '../database/connect.ts'
import { STATEMENT_LIMITS } from '../database/dialect.ts'
import type { Fragment } from '../database/fragment.ts'
import type { Field, Resource } from '../mango/resource.ts'

type Derived = Extract<Field, { kind: 'derived' }>

const DAY_MS = 24 * 3600 * 1000

/**
 * Of each webhook, how many deliveries came to which end in the last 24 h, and how many are pending: of those that the
 * caller sees.
 */
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
    // One range of the index on (webhook_id, status, finished_at) for each webhook and status: what is pending has not
    // come to an end, and what has is of the last day.
    const ended = deliveryStatuses.filter(status => status !== 'pending')
    const found: { webhook_id: string; status: DeliveryStatus; deliveries: number }[] = await source
      .connection('deliveries')
      .select('deliveries.webhook_id', 'deliveries.status')
      .count({ deliveries: '*' })
      .whereIn('deliveries.webhook_id', webhookIds)
      .where(either =>
        either
          .where(owed => owed.where('deliveries.status', 'pending').whereNull('deliveries.finished_at'))
          .orWhere(recent =>
            recent.whereIn('deliveries.status', ended).where('deliveries.finished_at', '>=', source.now - DAY_MS),
          ),
      )
      .modify(source.seen(deliveries()))
      .groupBy('deliveries.webhook_id', 'deliveries.status')
    const counts = new Map(found.map(row => [`${row.webhook_id} ${row.status}`, Number(row.deliveries)]))
    const health = (id: string) =>
      Object.fromEntries(deliveryStatuses.map(status => [status, counts.get(`${id} ${status}`) ?? 0]))
    return new Map(webhookIds.map(id => [id, health(id)]))
  },
})

/** Of each webhook, when a delivery to it that the caller sees last came to an end. */
export const lastDeliveryOf = (deliveries: () => Resource): Derived => ({
  kind: 'derived',
  load: async (source, webhookIds) => {
    const last = new Map<string, number>()
    // Of each webhook and status one row: the end of a range of the index on (webhook_id, status, finished_at).
    const ended = deliveryStatuses.filter(status => status !== 'pending')
    const ends = webhookIds.flatMap(id => ended.map(status => ({ id, status })))
    for (let from = 0; from < ends.length; from += STATEMENT_LIMITS.selects) {
      const selects = ends.slice(from, from + STATEMENT_LIMITS.selects).map(({ id, status }, index) => {
        const newest = source
          .connection('deliveries')
          .select('deliveries.webhook_id', 'deliveries.finished_at')
          .where({ 'deliveries.webhook_id': id, 'deliveries.status': status })
          .whereNotNull('deliveries.finished_at')
          .modify(source.seen(deliveries()))
          .orderBy('deliveries.finished_at', 'desc')
          .limit(1)
          .toSQL()
        return { sql: `SELECT * FROM (${newest.sql}) e${index}`, bindings: newest.bindings as Fragment['bindings'] }
      })
      const found = await rows<{ webhook_id: string; finished_at: number }>(
        source.connection,
        selects.map(({ sql }) => sql).join(' UNION ALL '),
        selects.flatMap(({ bindings }) => bindings),
      )
      for (const { webhook_id, finished_at } of found) {
        last.set(webhook_id, Math.max(Number(finished_at), last.get(webhook_id) ?? 0))
      }
    }
    return new Map([...last].map(([id, time]) => [id, toIso(time)]))
  },
})
