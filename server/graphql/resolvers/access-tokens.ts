import { notFound } from '../../../shared/errors.ts'
import { toIso } from '../../../shared/time.ts'
import { createAccessToken, revokeAccessToken } from '../../domain/access-tokens.ts'
import { requireSeesAll } from '../../domain/permissions.ts'
import { accessTokens, organisations } from '../../domain/resources.ts'
import { requireVisible } from '../../domain/visibility.ts'
import { column, given, needs, type Resolvers, time, timeArgument } from './resolvers.ts'

export const accessTokenResolvers: Resolvers = {
  Query: {
    viewer: needs('read', (_root, _args, { database, token }) =>
      database.knex('access_tokens').where({ id: token.id }).first(),
    ),
    accessTokens: needs('read', (_root, { query }, context) => context.list(accessTokens, query)),
  },
  Mutation: {
    createAccessToken: needs('admin', async (_root, args, context) => {
      const { expiresAt, ...rest } = given(args)
      const { token, sealer, database } = context
      if (rest.organisationIds === undefined) requireSeesAll(token, 'create one that does; name organisationIds')
      const { id, apiKey, apiSecret } = await context.change(async ({ trx, now }) => {
        await requireVisible(trx, token, organisations, rest.organisationIds ?? [])
        return createAccessToken(trx, sealer, { ...rest, expiresAt: timeArgument(expiresAt) }, now)
      })
      return { accessToken: await database.knex('access_tokens').where({ id }).first(), apiKey, secret: apiSecret }
    }),
    revokeAccessToken: needs('admin', async (_root, { id }, context) => {
      const [found] = await context.list(accessTokens, { selector: { id } })
      if (!found) throw notFound('access token', [id])
      await context.change(({ trx, now }) => revokeAccessToken(trx, id, now))
      return context.database.knex('access_tokens').where({ id }).first()
    }),
    rotateSigningKey: needs('admin', (_root, _args, { token, tools }) => {
      requireSeesAll(token, 'rotate the signing key')
      return tools.keyring.rotate()
    }),
  },
  SigningKey: {
    publicJwk: key => key.publicJwk,
    createdAt: key => toIso(key.createdAt),
    activeFrom: key => toIso(key.activeFrom),
  },
  AccessToken: {
    apiKey: column('api_key'),
    permissions: (token, _args, { loaders }) => loaders.permissions.load(token.id),
    organisationIds: (token, _args, { loaders }) => loaders.tokenOrganisationIds.load(token.id),
    seesAllOrganisations: token => token.sees_all_organisations === 1,
    organisations: needs('read', (token, { query }, context, info) =>
      context.seenOrganisations(info, query, token.sees_all_organisations === 1 ? undefined : token.id),
    ),
    expiresAt: time('expires_at'),
    revokedAt: time('revoked_at'),
    lastUsedAt: time('last_used_at'),
    createdAt: time('created_at'),
  },
}
