import DataLoader from 'dataloader'
import type { Knex } from 'knex'
import type { Clock } from '../clock.ts'
import type { Database } from '../database/connect.ts'
import { type AccessToken, whereOrganisationVisible } from '../domain/access-tokens.ts'
import { type DeliveryStatus, deliveryStatuses, visibleDeliveries } from '../domain/deliveries.ts'
import type { EventRow } from '../domain/events.ts'
import { type OrganisationRow, visibleOrganisations } from '../domain/organisations.ts'
import { type ProjectRow, visibleProjects } from '../domain/projects.ts'
import type { UserRow } from '../domain/users.ts'
import type { WebhookRow } from '../domain/webhooks.ts'

const DAY_MS = 24 * 3600 * 1000

export type Loaders = ReturnType<typeof createLoaders>

/** The longest list there is, and fewer than the values that SQLite takes in a statement. */
export const maxBatchSize = 10_000

type Visible = (builder: Knex.QueryBuilder) => void

/** Loads what rows refer to, one statement a level however many rows there are. */
export const createLoaders = (database: Database, clock: Clock, token: AccessToken) => {
  /** Rows that whoever sees the row which refers to them sees too. */
  const byId = <Row extends { id: string }>(table: string) =>
    new DataLoader<string, Row>(
      async ids => {
        const found: Row[] = await database.knex(table).whereIn('id', ids as string[])
        const byId = new Map(found.map(row => [row.id, row]))
        return ids.map(id => byId.get(id) ?? new Error(`${table} has no row ${id}`))
      },
      { maxBatchSize },
    )

  /** Rows that may be out of the caller's sight, and then are null. */
  const seenById = <Row extends { id: string }>(table: string, visible: Visible) =>
    new DataLoader<string, Row | null>(
      async ids => {
        const query = database.knex(table).whereIn(`${table}.id`, ids as string[])
        const found = (await query.modify(visible)) as Row[]
        const byId = new Map(found.map(row => [row.id, row]))
        return ids.map(id => byId.get(id) ?? null)
      },
      { maxBatchSize },
    )

  const values = (table: string, key: string, column: string, visible: Visible = () => {}) =>
    new DataLoader<string, string[]>(
      async ids => {
        const found: Record<string, string>[] = await database
          .knex(table)
          .whereIn(key, ids as string[])
          .modify(visible)
          .orderBy(column)
        const lists = Map.groupBy(found, row => row[key]!)
        return ids.map(id => (lists.get(id) ?? []).map(row => row[column]!))
      },
      { maxBatchSize },
    )

  const seenOrganisations = (builder: Knex.QueryBuilder) => whereOrganisationVisible(builder, token, 'organisation_id')
  const seenProjects = (builder: Knex.QueryBuilder) => {
    if (token.seesAllOrganisations) return
    builder.whereIn('project_id', query => {
      query.select('projects.id').from('projects').modify(visibleProjects(token))
    })
  }

  return {
    organisation: byId<OrganisationRow>('organisations'),
    seenOrganisation: seenById<OrganisationRow>('organisations', visibleOrganisations(token)),
    project: byId<ProjectRow>('projects'),
    seenProject: seenById<ProjectRow>('projects', visibleProjects(token)),
    user: byId<UserRow>('users'),
    webhook: byId<WebhookRow>('webhooks'),
    event: byId<EventRow>('events'),
    webhookEvents: values('webhook_events', 'webhook_id', 'event_type'),
    webhookOrganisationIds: values('webhook_organisations', 'webhook_id', 'organisation_id', seenOrganisations),
    webhookProjectIds: values('webhook_projects', 'webhook_id', 'project_id', seenProjects),
    permissions: values('access_token_permissions', 'access_token_id', 'permission'),
    tokenOrganisationIds: values('access_token_organisations', 'access_token_id', 'organisation_id', seenOrganisations),

    health: new DataLoader<string, Record<DeliveryStatus, number>>(
      async ids => {
        // One range of the index on (webhook_id, status, finished_at) for each webhook and status.
        const found: { webhook_id: string; status: DeliveryStatus; deliveries: number }[] = await database
          .knex('deliveries')
          .select('webhook_id', 'status')
          .count({ deliveries: '*' })
          .whereIn('webhook_id', ids as string[])
          .whereIn('status', deliveryStatuses)
          .where(recent => recent.where('status', 'pending').orWhere('finished_at', '>=', clock.now() - DAY_MS))
          .modify(visibleDeliveries(token))
          .groupBy('webhook_id', 'status')
        const counts = new Map(found.map(row => [`${row.webhook_id} ${row.status}`, Number(row.deliveries)]))
        return ids.map(
          id =>
            Object.fromEntries(deliveryStatuses.map(status => [status, counts.get(`${id} ${status}`) ?? 0])) as Record<
              DeliveryStatus,
              number
            >,
        )
      },
      { maxBatchSize },
    ),

    lastDeliveryAt: new DataLoader<string, number | null>(
      async ids => {
        const found: { webhook_id: string; last: number | null }[] = await database
          .knex('deliveries')
          .select('webhook_id')
          .max({ last: 'finished_at' })
          .whereIn('webhook_id', ids as string[])
          .modify(visibleDeliveries(token))
          .groupBy('webhook_id', 'status')
        const last = new Map<string, number>()
        for (const { webhook_id, last: time } of found) {
          if (time !== null) last.set(webhook_id, Math.max(Number(time), last.get(webhook_id) ?? 0))
        }
        return ids.map(id => last.get(id) ?? null)
      },
      { maxBatchSize },
    ),
  }
}
