import { toIso } from '../../../shared/time.ts'
import { redeliver } from '../../domain/recovery.ts'
import { type Redelivering, type Redelivery, redeliverMany } from '../../domain/redelivery.ts'
import { deliveries } from '../../domain/resources.ts'
import { findRedeliveryPage } from '../task.ts'
import { type Mutations, mutation, resumable } from './mutation.ts'

export const deliveryMutations: Mutations = {
  redeliver: mutation<{ deliveryId: string }, string>(
    'webhooks',
    ({ deliveryId }, { change }) => change(within => redeliver(within, deliveryId)),
    (id, { loaders }) => loaders.row(deliveries).load(id),
    id => id,
  ),
  redeliverMany: resumable<Redelivering, Redelivery>(
    'webhooks',
    (asked, context, earlier) => {
      const { change, look } = context
      const pageOf = (asked: Redelivering, soFar: Redelivery) => findRedeliveryPage(context, { asked, soFar })
      return redeliverMany({ change, look, pageOf }, asked, earlier)
    },
    ({ webhookId, queued, isComplete, last }) => ({
      webhookId,
      queued,
      resumeSince: isComplete || !last ? null : toIso(last.createdAt),
      resumeAfter: isComplete || !last ? null : last.id,
    }),
  ),
}
