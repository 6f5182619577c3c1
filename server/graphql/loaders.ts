import DataLoader from 'dataloader'
import type { Clock } from '../clock.ts'
import { type Database, marks, rows } from '../database/connect.ts'
import { type DeliveryStatus, deliveryStatuses } from '../domain/deliveries.ts'
import type { EventRow } from '../domain/events.ts'
import type { OrganisationRow } from '../domain/organisations.ts'
import type { ProjectRow } from '../domain/projects.ts'
import type { UserRow } from '../domain/users.ts'
import type { WebhookRow } from '../domain/webhooks.ts'

const DAY_MS = 24 * 3600 * 1000

export type Loaders = ReturnType<typeof createLoaders>

/** Loads what rows refer to, one statement a level however many rows there are. */
export const createLoaders = (database: Database, clock: Clock) => {
  const byId = <Row extends { id: string }>(table: string) =>
    new DataLoader<string, Row>(async ids => {
      const found: Row[] = await database.knex(table).whereIn('id', ids as string[])
      const byId = new Map(found.map(row => [row.id, row]))
      return ids.map(id => byId.get(id) ?? new Error(`${table} has no row ${id}`))
    })

  const values = (table: string, key: string, column: string) =>
    new DataLoader<string, string[]>(async ids => {
      const found: Record<string, string>[] = await database
        .knex(table)
        .whereIn(key, ids as string[])
        .orderBy(column)
      const lists = Map.groupBy(found, row => row[key]!)
      return ids.map(id => (lists.get(id) ?? []).map(row => row[column]!))
    })

  return {
    organisation: byId<OrganisationRow>('organisations'),
    project: byId<ProjectRow>('projects'),
    user: byId<UserRow>('users'),
    webhook: byId<WebhookRow>('webhooks'),
    event: byId<EventRow>('events'),
    webhookEvents: values('webhook_events', 'webhook_id', 'event_type'),
    webhookOrganisationIds: values('webhook_organisations', 'webhook_id', 'organisation_id'),
    webhookProjectIds: values('webhook_projects', 'webhook_id', 'project_id'),
    permissions: values('access_token_permissions', 'access_token_id', 'permission'),
    tokenOrganisationIds: values('access_token_organisations', 'access_token_id', 'organisation_id'),

    health: new DataLoader<string, Record<DeliveryStatus, number>>(async ids => {
      // One range of the index on (webhook_id, status, finished_at) for each webhook and status.
      const found = await rows<{ webhook_id: string; status: DeliveryStatus; deliveries: number }>(
        database.knex,
        `SELECT webhook_id, status, COUNT(*) AS deliveries FROM deliveries
         WHERE webhook_id IN (${marks(ids)}) AND status IN (${marks(deliveryStatuses)})
           AND (status = 'pending' OR finished_at >= ?)
         GROUP BY webhook_id, status`,
        [...ids, ...deliveryStatuses, clock.now() - DAY_MS],
      )
      const counts = new Map(found.map(row => [`${row.webhook_id} ${row.status}`, Number(row.deliveries)]))
      return ids.map(
        id =>
          Object.fromEntries(deliveryStatuses.map(status => [status, counts.get(`${id} ${status}`) ?? 0])) as Record<
            DeliveryStatus,
            number
          >,
      )
    }),

    lastDeliveryAt: new DataLoader<string, number | null>(async ids => {
      const found = await rows<{ webhook_id: string; last: number | null }>(
        database.knex,
        `SELECT webhook_id, MAX(finished_at) AS last FROM deliveries WHERE webhook_id IN (${marks(ids)}) GROUP BY webhook_id, status`,
        [...ids],
      )
      return ids.map(id => {
        const times = found.flatMap(row => (row.webhook_id === id && row.last !== null ? [row.last] : []))
        return times.length > 0 ? Math.max(...times) : null
      })
    }),
  }
}
