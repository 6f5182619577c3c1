import { toIso } from '../../../shared/time.ts'
import { requireSeesAll } from '../../domain/permissions.ts'
import { type Mutations, mutation } from './mutation.ts'

export const signingKeyMutations: Mutations = {
  rotateSigningKey: mutation(
    'admin',
    async (_args, { change, tools: { keyring } }) => {
      const made = await change(async ({ trx, token }) => {
        requireSeesAll(token, 'rotate the signing key')
        const { kid, publicJwk, createdAt, activeFrom } = await keyring.rotate(trx)
        return { kid, publicJwk, createdAt: toIso(createdAt), activeFrom: toIso(activeFrom) }
      })
      // The key exists even if this fails: each process looks for new keys by itself.
      await keyring.refresh().catch(() => {})
      return made
    },
    made => made,
    ({ kid }) => kid,
  ),
}
