import type { Knex } from 'knex'
import { toIso } from '../../shared/time.ts'
import { type DeliveryStatus, deliveryStatuses } from '../../shared/vocabulary.ts'
import type { Sql } from '../database/connect.ts'
import type { Field, Resource } from '../mango/resource.ts'
import { deliveries } from './deliveries.ts'

const DAY_MS = 24 * 3600 * 1000

export type WebhookHealth = Record<DeliveryStatus, number>

/** Narrows a SELECT from the deliveries to those that the caller sees. */
type Visible = (builder: Knex.QueryBuilder) => void

/** For each webhook how many deliveries came to which end in the 24 h before `now`, and how many are pending. */
export const healthOf = async (
  sql: Sql,
  webhookIds: readonly string[],
  now: number,
  visible: Visible,
): Promise<Map<string, WebhookHealth>> => {
  // One range of the index on (webhook_id, status, finished_at) for each webhook and status.
  const found: { webhook_id: string; status: DeliveryStatus; deliveries: number }[] = await sql('deliveries')
    .select('webhook_id', 'status')
    .count({ deliveries: '*' })
    .whereIn('webhook_id', webhookIds as string[])
    .whereIn('status', deliveryStatuses)
    .where(recent => recent.where('status', 'pending').orWhere('finished_at', '>=', now - DAY_MS))
    .modify(visible)
    .groupBy('webhook_id', 'status')
  const counts = new Map(found.map(row => [`${row.webhook_id} ${row.status}`, Number(row.deliveries)]))
  const health = (id: string) =>
    Object.fromEntries(deliveryStatuses.map(status => [status, counts.get(`${id} ${status}`) ?? 0])) as WebhookHealth
  return new Map(webhookIds.map(id => [id, health(id)]))
}

/** For each webhook when a delivery to it last came to an end (epoch milliseconds); none has no entry. */
export const lastDeliveriesOf = async (
  sql: Sql,
  webhookIds: readonly string[],
  visible: Visible,
): Promise<Map<string, number>> => {
  const found: { webhook_id: string; last: number | null }[] = await sql('deliveries')
    .select('webhook_id')
    .max({ last: 'finished_at' })
    .whereIn('webhook_id', webhookIds as string[])
    .modify(visible)
    .groupBy('webhook_id', 'status')
  const last = new Map<string, number>()
  for (const { webhook_id, last: time } of found) {
    if (time !== null) last.set(webhook_id, Math.max(Number(time), last.get(webhook_id) ?? 0))
  }
  return last
}

type Derived = Extract<Field, { kind: 'derived' }>

const health: Resource = {
  name: 'health',
  table: 'deliveries',
  get fields() {
    return Object.fromEntries(
      deliveryStatuses.map(status => [status, { kind: 'column', column: status, type: 'integer' } as const]),
    )
  },
}

const seen =
  (source: Parameters<Derived['load']>[0]): Visible =>
  builder => {
    const visible = source.visible(deliveries, 'deliveries')
    if (visible) builder.whereRaw(visible.sql, visible.bindings)
  }

export const healthField: Derived = {
  kind: 'derived',
  object: health,
  load: (source, ids) => healthOf(source.connection, ids, source.now, seen(source)),
}

export const lastDeliveryField: Derived = {
  kind: 'derived',
  load: async (source, ids) => {
    const last = await lastDeliveriesOf(source.connection, ids, seen(source))
    return new Map([...last].map(([id, time]) => [id, toIso(time)]))
  },
}
