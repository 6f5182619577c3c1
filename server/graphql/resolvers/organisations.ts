import { organisations, visibleOrganisations } from '../../domain/organisations.ts'
import { needs, type Resolvers } from './resolvers.ts'

export const organisationResolvers: Resolvers = {
  Query: {
    organisations: needs('read', (_root, { query }, context) =>
      context.list(organisations, query, visibleOrganisations(context.token)),
    ),
  },
}
