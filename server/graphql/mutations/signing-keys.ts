import { toIso } from '../../../shared/time.ts'
import { requireSeesAll } from '../../domain/permissions.ts'
import { type Mutations, mutation } from './mutation.ts'

export const signingKeyMutations: Mutations = {
  rotateSigningKey: mutation('admin', async (_args, { change, tools: { keyring } }) => {
    const { kid, publicJwk, createdAt, activeFrom } = await change(({ trx, token }) => {
      requireSeesAll(token, 'rotate the signing key')
      return keyring.rotate(trx)
    })
    await keyring.refresh()
    return { kid, publicJwk, createdAt: toIso(createdAt), activeFrom: toIso(activeFrom) }
  }),
}
