import { upsertProject } from '../../domain/projects.ts'
import { projectReports, projects } from '../../domain/resources.ts'
import { column, given, needs, type Resolvers, related } from './resolvers.ts'

export const projectResolvers: Resolvers = {
  Query: {
    projects: needs('read', (_root, { query }, context) => context.list(projects, query)),
  },
  Mutation: {
    upsertProject: needs('admin', (_root, args, context) =>
      context.change(change => upsertProject(change, given(args))),
    ),
  },
  Project: {
    organisationId: column('organisation_id'),
    organisation: related('organisation_id', context => context.loaders.organisation),
    projectReports: needs('read', (project, { query }, context, info) =>
      context.children(info, projectReports, query, { column: 'project_id' }, project.id),
    ),
  },
}
