import { toIso } from '../../../shared/time.ts'
import { createWebhook, pingWebhook, upsertWebhook } from '../../delivery/registration.ts'
import { recoverDeliveries } from '../../domain/recovery.ts'
import { deliveries } from '../../domain/resources.ts'
import { requireWebhook, type WebhookInput } from '../../domain/webhooks.ts'
import { type Mutations, mutation, timeArgument } from './mutation.ts'

export const webhookMutations: Mutations = {
  createWebhook: mutation<WebhookInput>('webhooks', (input, context) => createWebhook(context, input)),
  upsertWebhook: mutation<WebhookInput & { id?: string }>('webhooks', ({ id, ...input }, context) =>
    upsertWebhook(context, id, input),
  ),
  pingWebhook: mutation<{ id: string }>('webhooks', async ({ id }, context) => {
    const deliveryId = await pingWebhook(context, id)
    return context.loaders.row(deliveries).load(deliveryId)
  }),
  recoverDeliveries: mutation<{ webhookId: string; since: string; until?: string }>(
    'webhooks',
    async ({ webhookId, since, until }, { database, tools, loop, token }) => {
      await requireWebhook(database.knex, token, webhookId)
      const span = { since: timeArgument(since)!, until: timeArgument(until) }
      const recovery = await recoverDeliveries(database, tools.clock, token, webhookId, span, loop.wake)
      const { resumeSince } = recovery
      return { ...recovery, resumeSince: resumeSince === null ? null : toIso(resumeSince) }
    },
  ),
}
