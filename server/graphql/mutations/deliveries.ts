import { redeliver } from '../../domain/recovery.ts'
import { deliveries } from '../../domain/resources.ts'
import { type Mutations, mutation } from './mutation.ts'

export const deliveryMutations: Mutations = {
  redeliver: mutation<{ deliveryId: string }>('webhooks', async ({ deliveryId }, context) => {
    const id = await context.change(change => redeliver(change, deliveryId))
    return context.loaders.row(deliveries).load(id)
  }),
}
