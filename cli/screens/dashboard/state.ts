import { type DeliveryStatus, eventTypes } from '../../../shared/vocabulary.ts'
import { wordsOf } from '../../output/words.ts'
import { allOf } from '../../resources/mango-query.ts'
import { atAGlance, type Delivery, type DeliveryAtAGlance, outcomes } from '../../resources/timeline.ts'
import type { Viewer } from '../../resources/viewer.ts'
import type { Webhook } from '../../resources/webhook.ts'
import type { Wanted } from './feed.ts'
import type { Link } from './poll.ts'

export type Pane = 'webhooks' | 'deliveries' | 'details'

/** What the keyboard is for at the moment. */
export type Mode =
  | { kind: 'browse' }
  | { kind: 'help' }
  /** Typing the resource to query in a list. */
  | { kind: 'search'; list: 'webhooks' | 'deliveries'; text: string }
  /** Typing the time that a recovery begins at. */
  | { kind: 'since'; webhook: Target; text: string; fault: string }
  /** Being asked whether it is meant. */
  | { kind: 'confirm'; action: Action }

/** A webhook that something is to be done with. */
export type Target = Pick<Webhook, 'id'> & Partial<Pick<Webhook, 'url' | 'name'>>

/** Something that is done on the server, after it has been confirmed. */
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
  /** Undefined until they have been asked for. */
  webhooks: Webhook[] | undefined
  /** The list, the newest first; undefined until it has been asked for. */
  deliveries: DeliveryAtAGlance[] | undefined
  /** How many have come since the list is held. */
  newer: number
  /** Newer than those of which at least so many are counted. */
  newerAtLeast: boolean
  /** Whether the list goes on beyond its last row. */
  more: boolean
  /** The newest delivery that a look has found, and when one found it first. */
  newest: { id: string; atMs: number } | undefined
  /** Deliveries made a second, of those that the list is limited to. */
  perSecond: number
  /** Of the selected delivery. Undefined until it has been asked for; null if it is not there. */
  timeline: Delivery | null | undefined
  link: Link
  /** When the last look was answered, epoch milliseconds. */
  seenAtMs: number | undefined
  /** When the look that is under way began. */
  lookingSinceMs: number | undefined
  /** When the webhooks were told last; looks for them are others. */
  webhooksSeenAtMs: number | undefined
  startedAtMs: number
  nowMs: number

  focus: Pane
  /** The list whose selected row the details are about. */
  detailsOf: 'webhooks' | 'deliveries'
  /** Undefined: all webhooks. */
  webhookId: string | undefined
  /** The selected delivery. While there is one the list is held; otherwise it follows the newest. */
  deliveryId: string | undefined
  statuses: DeliveryStatus[]
  eventType: string | undefined
  search: { webhooks: string; deliveries: string }
  /** Lines of the details that are scrolled out above. */
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

/** Choices that one key goes through; support looks for what failed, whichever way. */
export const statusChoices: DeliveryStatus[][] = [
  [],
  ...Object.values(Object.groupBy(wordsOf(outcomes), status => outcomes[status])),
]
export const eventTypeChoices: (string | undefined)[] = [undefined, ...eventTypes]

/** Those that match what was searched for, in the order of who needs attention first. */
export const listedWebhooks = ({ webhooks = [], search }: State): Webhook[] => {
  const text = search.webhooks.toLowerCase()
  return webhooks.filter(webhook => isFound(webhook, text)).toSorted(byUrgency)
}

/** By its id, its URL, its name and its labels. */
const isFound = ({ id, url, name, labels }: Webhook, text: string): boolean =>
  `${id} ${url} ${name ?? ''} ${Object.values(labels ?? {}).join(' ')}`.toLowerCase().includes(text)

export const byUrgency = (a: Webhook, b: Webhook): number => urgency(b) - urgency(a) || (a.url < b.url ? -1 : 1)

/**
 * Inactive comes first, since it waits for a person; then the share that failed; then what is healthy; then disabled.
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

/** The selected delivery as far as it is known: from the list, or from its timeline where the list does not have it. */
export const selectedDelivery = ({ deliveries, deliveryId, timeline }: State): DeliveryAtAGlance | undefined =>
  deliveries?.find(({ id }) => id === deliveryId) ??
  (timeline && timeline.id === deliveryId ? atAGlance(timeline) : undefined)

/** The webhook that keys act on: the one in the list of webhooks, or the one that the selected delivery goes to. */
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

const WHOLE_ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/
const PART_OF_ID = /^[0-9a-f]{8}[0-9a-f-]{0,27}$/

/**
 * The condition for the list of deliveries; undefined if nothing can match. A search is for an id, whole or its
 * beginning, or else for text in what the webhook is known by or the event's type: both are resolved here, so that the
 * server need not read every row.
 */
export const selectorOf = (state: State): Record<string, unknown> | undefined => {
  const search = searchOf(state)
  if (!search) return undefined
  return allOf([filterOf(state), search]) ?? {}
}

/** The condition that the filters make. */
export const filterOf = ({ webhookId, statuses = [], eventType }: Filters): Record<string, unknown> => ({
  ...(webhookId !== undefined && { webhookId }),
  ...(statuses.length > 0 && { status: { $in: statuses } }),
  ...(eventType !== undefined && { eventType }),
})

/** Empty if nothing is searched for; undefined if nothing can match. */
const searchOf = (state: State): Record<string, unknown> | undefined => {
  const text = state.search.deliveries.trim().toLowerCase()
  if (WHOLE_ID.test(text)) {
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

/** The first or the last id that begins so. */
const filled = (beginning: string, digit: '0' | 'f'): string =>
  beginning + '00000000-0000-0000-0000-000000000000'.replaceAll('0', digit).slice(beginning.length)

export const wantedOf = (state: State, shown: DeliveryAtAGlance[], detailsShown: boolean): Wanted => ({
  selector: selectorOf(state),
  refresh: state.deliveryId === undefined ? [] : shown.filter(({ status }) => status === 'pending').map(({ id }) => id),
  timelineId: detailsShown ? state.deliveryId : undefined,
})
