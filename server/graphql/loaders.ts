import DataLoader from 'dataloader'
import type { Knex } from 'knex'
import type { Clock } from '../clock.ts'
import type { Database } from '../database/connect.ts'
import type { AccessToken } from '../domain/permissions.ts'
import {
  accessTokens,
  type EventRow,
  type OrganisationRow,
  organisations,
  type ProjectRow,
  projects,
  type UserRow,
  type WebhookRow,
  webhooks,
} from '../domain/resources.ts'
import { visibleTo } from '../domain/visibility.ts'
import { valuesOf } from '../mango/documents.ts'
import type { Field } from '../mango/resource.ts'
import { sourceOf } from '../mango/search.ts'
import type { Json } from '../mango/selector.ts'

export type Loaders = ReturnType<typeof createLoaders>

/** The longest list there is, and fewer than the values that SQLite takes in a statement. */
export const maxBatchSize = 10_000

type Visible = (builder: Knex.QueryBuilder) => void

/** Loads what rows refer to, one statement a level however many rows there are. */
export const createLoaders = (database: Database, clock: Clock, token: AccessToken) => {
  const visible = visibleTo(token)

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

  /** Fields that are read from other tables than the row's own. */
  const values = (field: Field) =>
    new DataLoader<string, Json>(
      async ids => {
        const rows = ids.map(id => ({ id }))
        const read = await valuesOf(sourceOf(database.knex, { related: visible, now: clock.now() }), field, rows)
        return rows.map(read)
      },
      { maxBatchSize },
    )

  return {
    organisation: byId<OrganisationRow>('organisations'),
    seenOrganisation: seenById<OrganisationRow>('organisations', visible(organisations)),
    project: byId<ProjectRow>('projects'),
    seenProject: seenById<ProjectRow>('projects', visible(projects)),
    user: byId<UserRow>('users'),
    webhook: byId<WebhookRow>('webhooks'),
    event: byId<EventRow>('events'),
    webhookEvents: values(webhooks.fields.events),
    webhookOrganisationIds: values(webhooks.fields.organisationIds),
    webhookProjectIds: values(webhooks.fields.projectIds),
    permissions: values(accessTokens.fields.permissions),
    tokenOrganisationIds: values(accessTokens.fields.organisationIds),
    health: values(webhooks.fields.health),
    lastDeliveryAt: values(webhooks.fields.lastDeliveryAt),
  }
}
