import type { Ask } from '../../connection/client.ts'
import { type Delivery, type DeliveryAtAGlance, deliveryFields, glanceFields } from '../../resources/timeline.ts'
import { type Webhook, webhookFields } from '../../resources/webhook.ts'

/** The deliveries on the screen, which a poll asks for. */
export interface Wanted {
  /** The list's selector; undefined if nothing can match. */
  selector: Record<string, unknown> | undefined
  /** The shown rows, which may have changed while the list stands still. */
  refresh: string[]
  /** The delivery of the timeline. */
  timelineId: string | undefined
}

export interface Look {
  /** The newest matching deliveries, newest first. */
  newest: DeliveryAtAGlance[]
  refreshed: DeliveryAtAGlance[]
  /** The requested timeline, if any; null if the delivery does not exist. */
  timeline: { id: string; delivery: Delivery | null } | undefined
}

/**
 * Rows of one request, more than most screens show, so that one request for each poll suffices at any rate of
 * deliveries.
 */
export const PAGE = 100
/** The most webhooks to show. */
export const MOST_WEBHOOKS = 500

/** Everything that the screen shows of deliveries, in one request. */
export const lookAtDeliveries = async (ask: Ask, { selector, refresh, timelineId }: Wanted): Promise<Look> => {
  const parts = [
    selector && `newest: deliveries(query: $newest) { ${glanceFields} }`,
    refresh.length > 0 && `refreshed: deliveries(query: $refreshed) { ${glanceFields} }`,
    timelineId && `timeline: deliveries(query: $timeline) { ${deliveryFields} }`,
  ].filter(part => typeof part === 'string')
  if (parts.length === 0) return { newest: [], refreshed: [], timeline: undefined }
  const variables = {
    ...(selector && { newest: { selector, sort: [{ id: 'desc' }], limit: PAGE } }),
    ...(refresh.length > 0 && { refreshed: { selector: { id: { $in: refresh } }, limit: refresh.length } }),
    ...(timelineId && { timeline: { selector: { id: timelineId }, limit: 1 } }),
  }
  const declared = Object.keys(variables).map(name => `$${name}: MangoQuery`)
  const answer = await ask<{ newest?: DeliveryAtAGlance[]; refreshed?: DeliveryAtAGlance[]; timeline?: Delivery[] }>(
    `query (${declared.join(', ')}) { ${parts.join('\n')} }`,
    variables,
  )
  return {
    newest: answer.newest ?? [],
    refreshed: answer.refreshed ?? [],
    timeline: timelineId === undefined ? undefined : { id: timelineId, delivery: answer.timeline?.[0] ?? null },
  }
}

/** The page of the list after a row. */
export const olderDeliveries = async (
  ask: Ask,
  selector: Record<string, unknown>,
  after: string,
): Promise<DeliveryAtAGlance[]> => {
  const { deliveries } = await ask<{ deliveries: DeliveryAtAGlance[] }>(
    `query ($query: MangoQuery) { deliveries(query: $query) { ${glanceFields} } }`,
    { query: { selector, sort: [{ id: 'desc' }], limit: PAGE, after } },
  )
  return deliveries
}

export const lookAtWebhooks = async (ask: Ask): Promise<Webhook[]> => {
  const { webhooks } = await ask<{ webhooks: Webhook[] }>(
    `query ($query: MangoQuery) { webhooks(query: $query) { ${webhookFields} } }`,
    { query: { sort: [{ id: 'desc' }], limit: MOST_WEBHOOKS } },
  )
  return webhooks
}
