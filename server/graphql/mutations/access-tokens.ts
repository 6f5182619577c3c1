import { grantAccessToken, type NewAccessToken, revokeAccessToken } from '../../domain/access-tokens.ts'
import { accessTokens } from '../../domain/resources.ts'
import { type Mutations, mutation, timeArgument } from './mutation.ts'

type CreateArguments = Omit<NewAccessToken, 'expiresAt'> & { expiresAt?: string }

export const accessTokenMutations: Mutations = {
  createAccessToken: mutation<CreateArguments>('admin', async ({ expiresAt, ...wanted }, context) => {
    const { id, apiKey, apiSecret } = await context.change(change =>
      grantAccessToken(change, context.sealer, { ...wanted, expiresAt: timeArgument(expiresAt) }),
    )
    return { accessToken: await context.loaders.row(accessTokens).load(id), apiKey, secret: apiSecret }
  }),
  revokeAccessToken: mutation<{ id: string }>('admin', async ({ id }, context) => {
    await context.change(change => revokeAccessToken(change, id))
    return context.loaders.row(accessTokens).load(id)
  }),
}
