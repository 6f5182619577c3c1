import { toIso } from '../../../shared/time.ts'
import { requireSeesAll } from '../../domain/permissions.ts'
import { type Mutations, mutation } from './mutation.ts'

export const signingKeyMutations: Mutations = {
  rotateSigningKey: mutation('admin', async (_args, { token, tools }) => {
    requireSeesAll(token, 'rotate the signing key')
    const { kid, publicJwk, createdAt, activeFrom } = await tools.keyring.rotate()
    return { kid, publicJwk, createdAt: toIso(createdAt), activeFrom: toIso(activeFrom) }
  }),
}
