import { accessTokens } from '../../domain/access-tokens.ts'
import { deliveries } from '../../domain/deliveries.ts'
import { events } from '../../domain/events.ts'
import { organisations } from '../../domain/organisations.ts'
import { projectReports } from '../../domain/project-reports.ts'
import { projects } from '../../domain/projects.ts'
import { users } from '../../domain/users.ts'
import { webhooks } from '../../domain/webhooks.ts'
import type { Resource } from '../../mango/resource.ts'
import { needs, type Resolvers } from './resolvers.ts'

/** By the names of the queries for them. */
export const resources: Record<string, Resource> = {
  organisations,
  projects,
  users,
  projectReports,
  webhooks,
  events,
  deliveries,
  accessTokens,
}

export const explainResolvers: Resolvers = {
  Query: {
    explain: needs('read', (_root, { resource, query }, context) => context.explain(resources[resource]!, query)),
  },
}
