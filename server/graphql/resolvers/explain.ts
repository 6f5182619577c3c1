import {
  accessTokens,
  deliveries,
  events,
  organisations,
  projectReports,
  projects,
  users,
  webhooks,
} from '../../domain/resources.ts'
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
