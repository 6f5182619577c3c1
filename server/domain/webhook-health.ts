import { toIso } from '../../shared/time.ts'
import { type DeliveryStatus, deliveryStatuses } from '../../shared/vocabulary.ts'
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
    // One range of the index on (webhook_id, status, finished_at) for each webhook and status.
    const found: { webhook_id: string; status: DeliveryStatus; deliveries: number }[] = await source
      .connection('deliveries')
      .select('webhook_id', 'status')
      .count({ deliveries: '*' })
      .whereIn('webhook_id', webhookIds)
      .whereIn('status', deliveryStatuses)
      .where(recent => recent.where('status', 'pending').orWhere('finished_at', '>=', source.now - DAY_MS))
      .modify(source.seen(deliveries()))
      .groupBy('webhook_id', 'status')
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
    const found: { webhook_id: string; last: number | null }[] = await source
      .connection('deliveries')
      .select('webhook_id')
      .max({ last: 'finished_at' })
      .whereIn('webhook_id', webhookIds)
      .modify(source.seen(deliveries()))
      .groupBy('webhook_id', 'status')
    const last = new Map<string, number>()
    for (const { webhook_id, last: time } of found) {
      if (time !== null) last.set(webhook_id, Math.max(Number(time), last.get(webhook_id) ?? 0))
    }
    return new Map([...last].map(([id, time]) => [id, toIso(time)]))
  },
})
