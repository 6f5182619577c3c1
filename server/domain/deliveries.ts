import type { Knex } from 'knex'
import { type DeliveryStatus, deliveryStatuses, type EventType, eventTypes } from '../../shared/vocabulary.ts'
import type { Resource } from '../mango/resource.ts'
import { type AccessToken, may } from './access-tokens.ts'
import { events, visibleEvents } from './events.ts'
import { visibleWebhooks } from './webhook-visibility.ts'
import { webhooks } from './webhooks.ts'

export type DeliveryRow = {
  id: string
  event_id: string
  webhook_id: string
  event_type: EventType
  status: DeliveryStatus
  attempt_count: number
  next_attempt_at: number | null
  created_at: number
  finished_at: number | null
}

export type AttemptRow = {
  delivery_id: string
  number: number
  started_at: number
  duration_ms: number | null
  status_code: number | null
  failure: string | null
  failure_detail: string | null
  response: string | null
  retry_after: number | null
}

export const attempts: Resource = {
  name: 'attempts',
  table: 'attempts',
  fields: {
    number: { kind: 'column', column: 'number', type: 'integer' },
    startedAt: { kind: 'column', column: 'started_at', type: 'time' },
    durationMs: { kind: 'column', column: 'duration_ms', type: 'integer', nullable: true },
    statusCode: { kind: 'column', column: 'status_code', type: 'integer', nullable: true },
    failure: { kind: 'column', column: 'failure', type: 'string', nullable: true },
    failureDetail: { kind: 'column', column: 'failure_detail', type: 'string', nullable: true },
    response: { kind: 'column', column: 'response', type: 'string', nullable: true },
    retryAfter: { kind: 'column', column: 'retry_after', type: 'time', nullable: true },
  },
}

export const deliveries: Resource = {
  name: 'deliveries',
  table: 'deliveries',
  fields: {
    id: { kind: 'column', column: 'id', type: 'uuid' },
    webhookId: { kind: 'column', column: 'webhook_id', type: 'uuid' },
    webhook: { kind: 'related', column: 'webhook_id', resource: () => webhooks },
    eventId: { kind: 'column', column: 'event_id', type: 'uuid' },
    eventType: { kind: 'column', column: 'event_type', type: 'string', values: eventTypes },
    event: { kind: 'related', column: 'event_id', resource: () => events },
    status: { kind: 'column', column: 'status', type: 'string', values: deliveryStatuses },
    attemptCount: { kind: 'column', column: 'attempt_count', type: 'integer' },
    nextAttemptAt: { kind: 'column', column: 'next_attempt_at', type: 'time', nullable: true },
    createdAt: { kind: 'column', column: 'created_at', type: 'time' },
    finishedAt: { kind: 'column', column: 'finished_at', type: 'time', nullable: true },
    attempts: { kind: 'children', resource: () => attempts, key: 'delivery_id', orderBy: 'number' },
  },
}

/**
 * A delivery is visible where both its webhook and its event are: what a
 * webhook was sent before it named less is not for all who see it now.
 */
export const visibleDeliveries =
  (token: AccessToken) =>
  (builder: Knex.QueryBuilder): void => {
    if (token.seesAllOrganisations) return
    if (!may(token, 'admin')) {
      builder.whereIn('deliveries.webhook_id', query => {
        query.select('webhooks.id').from('webhooks').modify(visibleWebhooks(token))
      })
    }
    builder.whereIn('deliveries.event_id', query => {
      query.select('events.id').from('events').modify(visibleEvents(token))
    })
  }
