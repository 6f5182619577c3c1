import { type Delivery, type DeliveryAtAGlance, deliveryFields, glanceFields } from '../../timeline.ts'
import { type Webhook, webhookFields } from '../../webhook.ts'

/** Sends a query or mutation and answers with its data. Throws a CliError. */
export type Ask = <Data>(document: string, variables?: object) => Promise<Data>

/** What the screen shows of deliveries, and so what a look asks for. */
export interface Wanted {
  /** Of the list; undefined if nothing can match. */
  selector: Record<string, unknown> | undefined
  /** Rows of the list that are shown, and may have changed while the list is held. */
  refresh: string[]
  /** The delivery whose story is shown. */
  storyId: string | undefined
}

export interface Look {
  /** The newest that match, the newest first. */
  newest: DeliveryAtAGlance[]
  refreshed: DeliveryAtAGlance[]
  /** The story that was asked for, if one was; null if it is not there. */
  story: { id: string; delivery: Delivery | null } | undefined
}

/**
 * Rows of the list that one request asks for: more than most
 * screens show, so that one request a look is enough at any rate.
 */
export const PAGE = 100
/** A screen of more webhooks than these would have no use. */
export const MOST_WEBHOOKS = 500

/** Everything that the screen shows of deliveries, in one request. */
export const lookAtDeliveries = async (ask: Ask, { selector, refresh, storyId }: Wanted): Promise<Look> => {
  const parts = [
    selector && `newest: deliveries(query: $newest) { ${glanceFields} }`,
    refresh.length > 0 && `refreshed: deliveries(query: $refreshed) { ${glanceFields} }`,
    storyId && `story: deliveries(query: $story) { ${deliveryFields} }`,
  ].filter(part => typeof part === 'string')
  if (parts.length === 0) return { newest: [], refreshed: [], story: undefined }
  const variables = {
    ...(selector && { newest: { selector, sort: [{ id: 'desc' }], limit: PAGE } }),
    ...(refresh.length > 0 && { refreshed: { selector: { id: { $in: refresh } }, limit: refresh.length } }),
    ...(storyId && { story: { selector: { id: storyId }, limit: 1 } }),
  }
  const declared = Object.keys(variables).map(name => `$${name}: MangoQuery`)
  const answer = await ask<{ newest?: DeliveryAtAGlance[]; refreshed?: DeliveryAtAGlance[]; story?: Delivery[] }>(
    `query (${declared.join(', ')}) { ${parts.join('\n')} }`,
    variables,
  )
  return {
    newest: answer.newest ?? [],
    refreshed: answer.refreshed ?? [],
    story: storyId === undefined ? undefined : { id: storyId, delivery: answer.story?.[0] ?? null },
  }
}

/** The page of the list behind a row. */
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
