import { upsertOrganisation } from '../../domain/organisations.ts'
import { organisations, projects } from '../../domain/resources.ts'
import { given, needs, type Resolvers } from './resolvers.ts'

export const organisationResolvers: Resolvers = {
  Query: {
    organisations: needs('read', (_root, { query }, context) => context.list(organisations, query)),
  },
  Mutation: {
    upsertOrganisation: needs('admin', (_root, args, context) =>
      context.change(change => upsertOrganisation(change, given(args))),
    ),
  },
  Organisation: {
    projects: needs('read', (organisation, { query }, context, info) =>
      context.children(info, projects, query, { column: 'organisation_id' }, organisation.id),
    ),
  },
}
