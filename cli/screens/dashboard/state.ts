import { isId } from '../../../shared/ids.ts'
import { type DeliveryStatus, eventTypes } from '../../../shared/vocabulary.ts'
import { wordsOf } from '../../output/words.ts'
import { allOf } from '../../resources/mango-query.ts'
import { atAGlance, type Delivery, type DeliveryAtAGlance, outcomes } from '../../resources/timeline.ts'
import type { Viewer } from '../../resources/viewer.ts'
import type { Webhook } from '../../resources/webhook.ts'
import type { Wanted } from './feed.ts'
import type { LastDay } from './last-day.ts'
import type { Link } from './poll.ts'

export type Pane = 'webhooks' | 'deliveries' | 'details'

/** The input mode. */
export type Mode =
  | { kind: 'browse' }
  | { kind: 'help' }
  /** Typing the resource to query in a list. */
  | { kind: 'search'; list: 'webhooks' | 'deliveries'; text: string }
  /** Typing the start of a recovery. */
  | { kind: 'since'; webhook: Target; text: string; fault: string }
  /** Answering a confirmation. */
  | { kind: 'confirm'; action: Action }

/** The webhook of an action. */
export type Target = Pick<Webhook, 'id'> & Partial<Pick<Webhook, 'url' | 'name'>>

/** An action on the server, after its confirmation. */
export type Action =
  | { kind: 'redeliver'; delivery: DeliveryAtAGlance }
  | { kind: 'ping' | 'disable' | 'enable'; webhook: Target; pending?: number }
  | { kind: 'recover'; webhook: Target; sinceMs: number }
export type ActionKind = Action['kind']

export interface Notice {
  text: string
  tone: 'good' | 'bad' | 'busy'
}

export interface State {
  viewer: Viewer
  /** Undefined until they are loaded. */
  webhooks: Webhook[] | undefined
  lastDay: LastDay
  /** The list, newest first; undefined until it is loaded. */
  deliveries: DeliveryAtAGlance[] | undefined
  /** The number of newer deliveries since the list stands still. */
  newer: number
  /** Whether there are more newer ones than counted. */
  newerAtLeast: boolean
  /** Whether there are rows after the last one. */
  more: boolean
  /** The newest delivery found, and when it was first found. */
  newest: { id: string; atMs: number } | undefined
  /** New deliveries a second that match the filters. */
  perSecond: number
  /** The timeline of the selected delivery. Undefined until it is loaded; null if the delivery does not exist. */
  timeline: Delivery | null | undefined
  link: Link
  /** When the last poll was answered, in epoch milliseconds. */
  seenAtMs: number | undefined
  /** When the present poll began. */
  lookingSinceMs: number | undefined
  /** When the webhooks were last loaded, by polls of their own. */
  webhooksSeenAtMs: number | undefined
  startedAtMs: number
  nowMs: number

  focus: Pane
  /** The list whose selected row the details show. */
  detailsOf: 'webhooks' | 'deliveries'
  /** Undefined: all webhooks. */
  webhookId: string | undefined
  /** The selected delivery. While there is one the list stands still; otherwise it follows the newest. */
  deliveryId: string | undefined
  statuses: DeliveryStatus[]
  eventType: string | undefined
  search: { webhooks: string; deliveries: string }
  /** Lines of the details scrolled out at the top. */
  scrolled: number
  mode: Mode
  notice: Notice | undefined
}

export interface Filters {
  webhookId?: string | undefined
  statuses?: DeliveryStatus[] | undefined
  eventType?: string | undefined
}

export const initialState = (viewer: Viewer, filters: Filters, nowMs: number): State => ({
  viewer,
  webhooks: undefined,
  lastDay: new Map(),
  deliveries: undefined,
  newer: 0,
  newerAtLeast: false,
  more: false,
  newest: undefined,
  perSecond: 0,
  timeline: undefined,
  link: { kind: 'live' },
  seenAtMs: undefined,
  lookingSinceMs: undefined,
  webhooksSeenAtMs: undefined,
  startedAtMs: nowMs,
  nowMs,
  focus: 'deliveries',
  detailsOf: 'deliveries',
  webhookId: filters.webhookId,
  deliveryId: undefined,
  statuses: filters.statuses ?? [],
  eventType: filters.eventType,
  search: { webhooks: '', deliveries: '' },
  scrolled: 0,
  mode: { kind: 'browse' },
  notice: undefined,
})

/** The choices that one key cycles through; “failed” covers all kinds of failure. */
export const statusChoices: DeliveryStatus[][] = [
  [],
  ...Object.values(Object.groupBy(wordsOf(outcomes), status => outcomes[status])),
]
export const eventTypeChoices: (string | undefined)[] = [undefined, ...eventTypes]

/** The webhooks that match the search, those that need attention first. */
export const listedWebhooks = ({ webhooks = [], search }: State): Webhook[] => {
  const text = search.webhooks.toLowerCase()
  return webhooks.filter(webhook => isFound(webhook, text)).toSorted(byUrgency)
}

/** The searchable text of a webhook: id, URL, name and labels. */
const isFound = ({ id, url, name, labels }: Webhook, text: string): boolean =>
  `${id} ${url} ${name ?? ''} ${Object.values(labels ?? {}).join(' ')}`.toLowerCase().includes(text)

export const byUrgency = (a: Webhook, b: Webhook): number => urgency(b) - urgency(a) || (a.url < b.url ? -1 : 1)

/**
 * Inactive webhooks come first, because they wait for a person; then by the share of failures; then healthy ones; then
 * disabled ones.
 */
const urgency = ({ status, health }: Webhook): number => {
  if (status === 'inactive') return 3
  if (status === 'disabled') return -1
  const { delivered = 0, rejected = 0, dropped = 0, pending = 0 } = health
  const failed = rejected + dropped
  return failed > 0 ? 1 + failed / (failed + delivered) : pending / (pending + delivered + 1)
}

export const selectedWebhook = ({ webhooks, webhookId }: State): Webhook | undefined =>
  webhooks?.find(({ id }) => id === webhookId)

/** The selected delivery, from the list or from its timeline. */
export const selectedDelivery = ({ deliveries, deliveryId, timeline }: State): DeliveryAtAGlance | undefined =>
  deliveries?.find(({ id }) => id === deliveryId) ??
  (timeline && timeline.id === deliveryId ? atAGlance(timeline) : undefined)

/** The webhook that keys act on: the selected one, or that of the selected delivery. */
export const targetWebhook = (state: State): Target | undefined => {
  if (listInFocus(state) === 'webhooks') return selectedWebhook(state)
  const delivery = selectedDelivery(state)
  if (!delivery) return selectedWebhook(state)
  return { ...delivery.webhook, id: delivery.webhookId }
}

export const listInFocus = ({ focus, detailsOf }: State): 'webhooks' | 'deliveries' =>
  focus === 'details' ? detailsOf : focus

/** Why the access token may not do this; undefined if it may. */
export const notPermitted = ({ viewer }: State, kind: ActionKind): string | undefined =>
  viewer.permissions.some(each => each === 'webhooks' || each === 'admin')
    ? undefined
    : `This access token may read but not ${kind}: it lacks the permission “webhooks”. ` +
      'An admin can create one that has it: tidings tokens create --permissions read,webhooks'

const PART_OF_ID = /^[0-9a-f]{8}[0-9a-f-]{0,27}$/

/**
 * The condition for the list of deliveries; undefined if nothing can match. A search matches an id or its beginning, or
 * text of the webhook or the event type. Text is resolved here to ids and types, so that the server need not read every
 * row.
 */
export const selectorOf = (state: State): Record<string, unknown> | undefined => {
  const search = searchOf(state)
  if (!search) return undefined
  return allOf([filterOf(state), search]) ?? {}
}

/** The condition of the filters. */
export const filterOf = ({ webhookId, statuses = [], eventType }: Filters): Record<string, unknown> => ({
  ...(webhookId !== undefined && { webhookId }),
  ...(statuses.length > 0 && { status: { $in: statuses } }),
  ...(eventType !== undefined && { eventType }),
})

/** Empty without a search; undefined if nothing can match. */
const searchOf = (state: State): Record<string, unknown> | undefined => {
  const text = state.search.deliveries.trim().toLowerCase()
  if (isId(text)) {
    return state.webhooks?.some(({ id }) => id === text)
      ? { webhookId: text }
      : { $or: [{ id: text }, { eventId: text }] }
  }
  if (PART_OF_ID.test(text)) return { id: { $gte: filled(text, '0'), $lte: filled(text, 'f') } }
  if (text === '') return {}
  const webhookIds = (state.webhooks ?? []).filter(webhook => isFound(webhook, text)).map(({ id }) => id)
  const types = eventTypes.filter(type => type.includes(text))
  const either = [
    ...(webhookIds.length > 0 ? [{ webhookId: { $in: webhookIds } }] : []),
    ...(types.length > 0 ? [{ eventType: { $in: types } }] : []),
  ]
  return either.length === 0 ? undefined : { $or: either }
}

/** The first or last id with this beginning. */
const filled = (beginning: string, digit: '0' | 'f'): string =>
  beginning + '00000000-0000-0000-0000-000000000000'.replaceAll('0', digit).slice(beginning.length)

export const wantedOf = (state: State, shown: DeliveryAtAGlance[], detailsShown: boolean): Wanted => ({
  selector: selectorOf(state),
  refresh: state.deliveryId === undefined ? [] : shown.filter(({ status }) => status === 'pending').map(({ id }) => id),
  timelineId: detailsShown ? state.deliveryId : undefined,
})
