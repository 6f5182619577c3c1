import { toIso } from '../../../shared/time.ts'
import { redeliver } from '../../domain/recovery.ts'
import { type Redelivery, redeliverMany } from '../../domain/redelivery.ts'
import { deliveries } from '../../domain/resources.ts'
import type { MangoQuery } from '../../mango/query.ts'
import { BUDGET, Budget } from '../budget.ts'
import { type Mutations, mutation, resumable } from './mutation.ts'

/** Each search may spend a request's budget, because its rows are queued and not kept. */
const bounded = <T>(search: (budget: Budget) => Promise<T>): Promise<T> => {
  const budget = new Budget()
  return budget.within(() => search(budget), BUDGET.timeMs)
}

export const deliveryMutations: Mutations = {
  redeliver: mutation<{ deliveryId: string }, string>(
    'webhooks',
    ({ deliveryId }, { change }) => change(held => redeliver(held, deliveryId)),
    (id, { loaders }) => loaders.row(deliveries).load(id),
    id => id,
  ),
  redeliverMany: resumable<{ webhookId: string; query: MangoQuery; dryRun?: boolean }, Redelivery>(
    'webhooks',
    (asked, { database, tools: { clock }, token, change, look }, earlier) =>
      redeliverMany({ database, clock, token, change, look, bounded }, asked, earlier),
    ({ webhookId, queued, isComplete, last }) => ({
      webhookId,
      queued,
      resumeSince: isComplete || !last ? null : toIso(last.createdAt),
      resumeAfter: isComplete || !last ? null : last.id,
    }),
  ),
}
