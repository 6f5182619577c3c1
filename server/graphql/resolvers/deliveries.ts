import { redeliver } from '../../domain/recovery.ts'
import { attempts, deliveries } from '../../domain/resources.ts'
import { column, needs, type Resolvers, related, time } from './resolvers.ts'

export const deliveryResolvers: Resolvers = {
  Query: {
    deliveries: needs('read', (_root, { query }, context) => context.list(deliveries, query)),
  },
  Mutation: {
    redeliver: needs('webhooks', async (_root, { deliveryId }, context) => {
      const id = await context.change(change => redeliver(change, deliveryId))
      return context.database.knex('deliveries').where({ id }).first()
    }),
  },
  Delivery: {
    webhookId: column('webhook_id'),
    webhook: related('webhook_id', context => context.loaders.webhook),
    eventId: column('event_id'),
    eventType: column('event_type'),
    event: related('event_id', context => context.loaders.event),
    attemptCount: column('attempt_count'),
    nextAttemptAt: time('next_attempt_at'),
    createdAt: time('created_at'),
    finishedAt: time('finished_at'),
    attempts: (delivery, { query }, context, info) =>
      context.children(info, attempts, query, { column: 'delivery_id', orderBy: 'number' }, delivery.id),
  },
  Attempt: {
    startedAt: time('started_at'),
    durationMs: column('duration_ms'),
    statusCode: column('status_code'),
    failureDetail: column('failure_detail'),
    retryAfter: time('retry_after'),
  },
}
