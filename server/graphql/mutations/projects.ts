import { upsertProject } from '../../domain/projects.ts'
import { type Mutations, mutation } from './mutation.ts'

export const projectMutations: Mutations = {
  upsertProject: mutation<{ id?: string; organisationId: string; name: string }>(
    'admin',
    (args, context) => context.change(change => upsertProject(change, args)),
    row => row,
    ({ id }) => id,
  ),
}
