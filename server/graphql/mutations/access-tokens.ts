import { badInput } from '../../../shared/errors.ts'
import {
  type Credentials,
  endAccessToken,
  grantAccessToken,
  type NewAccessToken,
  revokeAccessToken,
} from '../../domain/access-tokens.ts'
import { accessTokens } from '../../domain/resources.ts'
import type { Context } from '../context.ts'
import type { Resolver } from '../fields.ts'
import { type Mutations, mutation, timeArgument } from './mutation.ts'

type CreateArguments = Omit<NewAccessToken, 'expiresAt'> & { expiresAt?: string }

const createAccessToken = mutation<CreateArguments, Credentials>(
  'admin',
  ({ expiresAt, ...wanted }, context) =>
    context.change(change =>
      grantAccessToken(change, context.sealer, {
        ...wanted,
        expiresAt: timeArgument(expiresAt),
      }),
    ),
  async ({ id, apiKey, apiSecret }, { loaders }) => ({
    accessToken: await loaders.row(accessTokens).load(id),
    apiKey,
    secret: apiSecret,
  }),
  ({ id }) => id,
)

/** A missing variable must not create a token that sees everything. */
const unlessNull: Resolver<unknown, { organisationIds?: string[] | null }, Context> = (root, args, context, info) => {
  if (args.organisationIds === null) {
    throw badInput('organisationIds', 'must not be null; name some, or leave it out for a token that sees all')
  }
  return createAccessToken(root, args as never, context, info)
}

export const accessTokenMutations: Mutations = {
  createAccessToken: unlessNull,
  revokeAccessToken: mutation<{ id: string; at?: string }, string>(
    'admin',
    ({ id, at }, { change }) =>
      change(async within => {
        const endsAt = timeArgument(at)
        if (endsAt === undefined) await revokeAccessToken(within, id)
        else await endAccessToken(within, id, endsAt)
        return id
      }),
    (id, { loaders }) => loaders.row(accessTokens).load(id),
  ),
}
