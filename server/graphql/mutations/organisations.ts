import { upsertOrganisation } from '../../domain/organisations.ts'
import { type Mutations, mutation } from './mutation.ts'

export const organisationMutations: Mutations = {
  upsertOrganisation: mutation<{ id?: string; name: string }>(
    'admin',
    (args, context) => context.change(change => upsertOrganisation(change, args)),
    row => row,
    ({ id }) => id,
  ),
}
