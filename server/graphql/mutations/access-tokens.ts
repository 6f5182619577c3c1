import {
  type Credentials,
  grantAccessToken,
  type NewAccessToken,
  revokeAccessToken,
} from '../../domain/access-tokens.ts'
import { accessTokens } from '../../domain/resources.ts'
import { type Mutations, mutation, timeArgument } from './mutation.ts'

type CreateArguments = Omit<NewAccessToken, 'expiresAt'> & { expiresAt?: string }

export const accessTokenMutations: Mutations = {
  createAccessToken: mutation<CreateArguments, Credentials>(
    'admin',
    ({ expiresAt, ...wanted }, context) =>
      context.change(change =>
        grantAccessToken(change, context.sealer, { ...wanted, expiresAt: timeArgument(expiresAt) }),
      ),
    async ({ id, apiKey, apiSecret }, { loaders }) => ({
      accessToken: await loaders.row(accessTokens).load(id),
      apiKey,
      secret: apiSecret,
    }),
    ({ id }) => id,
  ),
  revokeAccessToken: mutation<{ id: string }, string>(
    'admin',
    ({ id }, { change }) =>
      change(async held => {
        await revokeAccessToken(held, id)
        return id
      }),
    (id, { loaders }) => loaders.row(accessTokens).load(id),
  ),
}
