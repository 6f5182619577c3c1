import { upsertUser } from '../../domain/users.ts'
import { type Mutations, mutation } from './mutation.ts'

export const userMutations: Mutations = {
  upsertUser: mutation<{ id?: string; name: string }>(
    'admin',
    (args, context) => context.change(change => upsertUser(change, args)),
    row => row,
    ({ id }) => id,
  ),
}
