import { users } from '../../domain/users.ts'
import { needs, type Resolvers } from './resolvers.ts'

export const userResolvers: Resolvers = {
  Query: {
    users: needs('read', (_root, { query }, context) => context.list(users, query, () => {})),
  },
}
