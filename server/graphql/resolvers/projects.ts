import { projects, visibleProjects } from '../../domain/projects.ts'
import { column, needs, type Resolvers, related } from './resolvers.ts'

export const projectResolvers: Resolvers = {
  Query: {
    projects: needs('read', (_root, { query }, context) =>
      context.list(projects, query, visibleProjects(context.token)),
    ),
  },
  Project: {
    organisationId: column('organisation_id'),
    organisation: related('organisation_id', context => context.loaders.organisation),
  },
}
