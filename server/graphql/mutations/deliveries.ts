import { redeliver } from '../../domain/recovery.ts'
import { deliveries } from '../../domain/resources.ts'
import { type Mutations, mutation } from './mutation.ts'

export const deliveryMutations: Mutations = {
  redeliver: mutation<{ deliveryId: string }, string>(
    'webhooks',
    ({ deliveryId }, { change }) => change(held => redeliver(held, deliveryId)),
    (id, { loaders }) => loaders.row(deliveries).load(id),
    id => id,
  ),
}
