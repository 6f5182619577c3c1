import { toIso } from '../../../shared/time.ts'
import { createWebhook, pingWebhook, upsertWebhook } from '../../delivery/registration.ts'
import { recoverDeliveries } from '../../domain/recovery.ts'
import { deliveries, webhooks } from '../../domain/resources.ts'
import { requireWebhook } from '../../domain/webhooks.ts'
import { given, needs, type Resolvers, time, timeArgument } from './resolvers.ts'

export const webhookResolvers: Resolvers = {
  Query: {
    webhooks: needs('read', (_root, { query }, context) => context.list(webhooks, query)),
  },
  Mutation: {
    createWebhook: needs('webhooks', (_root, args, context) => createWebhook(context, given(args))),
    upsertWebhook: needs('webhooks', (_root, { id, ...args }, context) =>
      upsertWebhook(context, id ?? undefined, given(args)),
    ),
    pingWebhook: needs('webhooks', async (_root, { id }, context) => {
      const deliveryId = await pingWebhook(context, id)
      return context.database.knex('deliveries').where({ id: deliveryId }).first()
    }),
    recoverDeliveries: needs(
      'webhooks',
      async (_root, { webhookId, since, until }, { database, tools, loop, token }) => {
        await requireWebhook(database.knex, token, webhookId)
        const span = { since: timeArgument(since)!, until: timeArgument(until) }
        return recoverDeliveries(database, tools.clock, token, webhookId, span, loop.wake)
      },
    ),
  },
  Webhook: {
    events: (webhook, _args, { loaders }) => loaders.webhookEvents.load(webhook.id),
    organisationIds: (webhook, _args, { loaders }) => loaders.webhookOrganisationIds.load(webhook.id),
    projectIds: (webhook, _args, { loaders }) => loaders.webhookProjectIds.load(webhook.id),
    statusReason: webhook => webhook.status_reason,
    createdAt: time('created_at'),
    updatedAt: time('updated_at'),
    lastDeliveryAt: (webhook, _args, { loaders }) => loaders.lastDeliveryAt.load(webhook.id),
    health: (webhook, _args, { loaders }) => loaders.health.load(webhook.id),
    deliveries: needs('read', (webhook, { query }, context, info) =>
      context.children(info, deliveries, query, { column: 'webhook_id' }, webhook.id),
    ),
  },
  Recovery: {
    resumeSince: recovery => (recovery.resumeSince === null ? null : toIso(recovery.resumeSince)),
  },
}
