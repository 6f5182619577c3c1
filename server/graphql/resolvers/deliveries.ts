import { deliveries, visibleDeliveries } from '../../domain/deliveries.ts'
import { column, needs, type Resolvers, related, time } from './resolvers.ts'

export const deliveryResolvers: Resolvers = {
  Query: {
    deliveries: needs('read', (_root, { query }, context) =>
      context.list(deliveries, query, visibleDeliveries(context.token)),
    ),
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
    attempts: (delivery, _args, { loaders }) => loaders.attempts.load(delivery.id),
  },
  Attempt: {
    startedAt: time('started_at'),
    durationMs: column('duration_ms'),
    statusCode: column('status_code'),
    failureDetail: column('failure_detail'),
    retryAfter: time('retry_after'),
  },
}
