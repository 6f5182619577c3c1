import { users } from '../../domain/resources.ts'
import { upsertUser } from '../../domain/users.ts'
import { given, needs, type Resolvers } from './resolvers.ts'

export const userResolvers: Resolvers = {
  Query: {
    users: needs('read', (_root, { query }, context) => context.list(users, query)),
  },
  Mutation: {
    upsertUser: needs('admin', (_root, args, context) => context.change(change => upsertUser(change, given(args)))),
  },
}
