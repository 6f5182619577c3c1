import DataLoader from 'dataloader'
import type { Knex } from 'knex'
import type { Clock } from '../clock.ts'
import type { Database } from '../database/connect.ts'
import { type AccessToken, whereOrganisationVisible } from '../domain/access-tokens.ts'
import { visibleDeliveries } from '../domain/deliveries.ts'
import type { EventRow } from '../domain/events.ts'
import { type OrganisationRow, visibleOrganisations } from '../domain/organisations.ts'
import { type ProjectRow, visibleProjects } from '../domain/projects.ts'
import type { UserRow } from '../domain/users.ts'
import { healthOf, lastDeliveriesOf, type WebhookHealth } from '../domain/webhook-health.ts'
import type { WebhookRow } from '../domain/webhooks.ts'

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

    health: new DataLoader<string, WebhookHealth>(
      async ids => {
        const found = await healthOf(database.knex, ids, clock.now(), visibleDeliveries(token))
        return ids.map(id => found.get(id)!)
      },
      { maxBatchSize },
    ),

    lastDeliveryAt: new DataLoader<string, number | null>(
      async ids => {
        const found = await lastDeliveriesOf(database.knex, ids, visibleDeliveries(token))
        return ids.map(id => found.get(id) ?? null)
      },
      { maxBatchSize },
    ),
  }
}
