import { accessTokens, visibleAccessTokens } from '../../domain/access-tokens.ts'
import { organisations, visibleOrganisations } from '../../domain/organisations.ts'
import { column, needs, type Resolvers, time } from './resolvers.ts'

export const accessTokenResolvers: Resolvers = {
  Query: {
    viewer: needs('read', (_root, _args, { database, token }) =>
      database.knex('access_tokens').where({ id: token.id }).first(),
    ),
    accessTokens: needs('read', (_root, { query }, context) =>
      context.list(accessTokens, query, visibleAccessTokens(context.token)),
    ),
  },
  AccessToken: {
    apiKey: column('api_key'),
    permissions: (token, _args, { loaders }) => loaders.permissions.load(token.id),
    seesAllOrganisations: token => token.sees_all_organisations === 1,
    organisations: async (token, _args, context) => {
      // A token that sees all is shown with those that the caller sees: no other name leaves.
      if (token.sees_all_organisations === 1) {
        return context.list(organisations, null, visibleOrganisations(context.token))
      }
      return context.loaders.organisation.loadMany(await context.loaders.tokenOrganisationIds.load(token.id))
    },
    expiresAt: time('expires_at'),
    revokedAt: time('revoked_at'),
    lastUsedAt: time('last_used_at'),
    createdAt: time('created_at'),
  },
}
