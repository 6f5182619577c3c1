import type { Knex } from 'knex'
import type { Resource } from '../mango/resource.ts'
import { type AccessToken, accessTokens, visibleAccessTokens } from './access-tokens.ts'
import { deliveries, visibleDeliveries } from './deliveries.ts'
import { events, visibleEvents } from './events.ts'
import { organisations, visibleOrganisations } from './organisations.ts'
import { projectReports, visibleProjectReports } from './project-reports.ts'
import { projects, visibleProjects } from './projects.ts'
import { visibleWebhooks } from './webhook-visibility.ts'
import { webhooks } from './webhooks.ts'

type Visible = (builder: Knex.QueryBuilder) => void

const rules = new Map<Resource, (token: AccessToken) => Visible>([
  [accessTokens, visibleAccessTokens],
  [deliveries, visibleDeliveries],
  [events, visibleEvents],
  [organisations, visibleOrganisations],
  [projectReports, visibleProjectReports],
  [projects, visibleProjects],
  [webhooks, visibleWebhooks],
])

/**
 * The rows of a resource that an access token sees. Everything that reads rows for a caller goes through here, related
 * rows included. Users belong to nobody, and attempts to their delivery: they have no rule of their own.
 */
export const visibleTo =
  (token: AccessToken) =>
  (resource: Resource): Visible =>
    rules.get(resource)?.(token) ?? (() => {})
