import { parseIso } from '../../../shared/time.ts'
import { type Colours, cellText } from '../../output/output.ts'
import { timeOfDay, zoneAt } from '../../output/time.ts'
import { calledWebhook } from '../../resources/cells.ts'
import { type DeliveryAtAGlance, describeState, hasFailed, statusMark } from '../../resources/timeline.ts'
import { firstShown, type Layout } from './layout.ts'
import { type Cell, filledUp, rowOf, rule, selectable, withoutScheme, wrapLine } from './lines.ts'
import { MOST_ROWS } from './looks.ts'
import { type State, selectedWebhook } from './state.ts'

/** The rows that fit, including the selected one. */
export const shownDeliveries = (
  { deliveries = [], deliveryId }: State,
  { deliveryRows }: Layout,
): DeliveryAtAGlance[] => {
  const selected = deliveries.findIndex(({ id }) => id === deliveryId)
  const first = firstShown(Math.max(0, selected), deliveries.length, deliveryRows)
  return deliveries.slice(first, first + deliveryRows)
}

/** The deliveries, newest first, as lines of the terminal. */
export const deliveriesPane = (state: State, layout: Layout, colours: Colours): string[] => {
  const { deliveryId, deliveries, focus, nowMs } = state
  const { listsWidth: width, deliveryRows: height } = layout
  const focused = focus === 'deliveries'
  const title = rule(`Deliveries${limitsOf(state)}`, noteOf(state), width, focused)
  const heads = rowOf(
    cellsOf({ mark: '', time: 'TIME', what: 'WHAT HAPPENED', event: 'EVENT', webhook: 'WEBHOOK' }, state, width),
  )
  const lines = [focused ? colours.bold(title) : title, `  ${colours.dim(heads)}`]
  if (deliveries === undefined) return filledUp([...lines, '  Looking …'], height + 2)
  if (deliveries.length === 0) return filledUp([...lines, ...wrapLine(`  ${noneOf(state)}`, width, 2)], height + 2)
  for (const delivery of shownDeliveries(state, layout)) {
    const draw = (palette: Colours) => rowOf(cellsOf(valuesOf(delivery, nowMs, palette), state, width))
    lines.push(selectable(draw, { selected: delivery.id === deliveryId, focused, colours }))
  }
  return filledUp(lines, height + 2)
}

const limitsOf = (state: State): string => {
  const { webhookId, statuses, eventType, search } = state
  const limits = [
    webhookId !== undefined && withoutScheme(calledWebhook(selectedWebhook(state), webhookId)),
    statuses.join(' or '),
    eventType,
    search.deliveries !== '' && `“${search.deliveries}”`,
  ]
  return limits.map(limit => (limit ? ` · ${cellText(limit)}` : '')).join('')
}

/** The rate of deliveries, and the position in the list. */
const noteOf = ({ perSecond, deliveryId, newer, newerAtLeast, more, deliveries = [] }: State): string => {
  const rate = perSecond === 0 ? '' : `${perSecond < 10 ? perSecond.toFixed(1) : Math.round(perSecond)}/s`
  if (deliveries.length === 0) return rate
  const at = deliveries.findIndex(({ id }) => id === deliveryId)
  const place = at === -1 ? 'newest first' : `${at + 1} of ${deliveries.length}${more ? '+' : ''}`
  const behind = newer === 0 ? '' : `${newer}${newerAtLeast ? '+' : ''} newer: home`
  const end = deliveries.length === MOST_ROWS ? 'older ones: narrow it' : ''
  return [rate, behind, place, end].filter(part => part !== '').join(' · ')
}

const noneOf = ({ webhooks, webhookId, statuses, eventType, search }: State): string => {
  if (webhookId !== undefined || statuses.length > 0 || eventType !== undefined || search.deliveries !== '') {
    return 'None are like that. Esc shows them all again.'
  }
  return webhooks?.length === 0
    ? 'None yet. One is made for each webhook that an event concerns.'
    : 'None yet. One is made for each webhook that an event concerns; try one with p, on a webhook.'
}

interface DeliveryCells {
  mark: string
  time: string
  what: string
  event: string
  webhook: string
  colour?: (text: string) => string
}

const valuesOf = (delivery: DeliveryAtAGlance, nowMs: number, colours: Colours): DeliveryCells => ({
  mark: statusMark(delivery, colours),
  time: timeOf(delivery.createdAt, nowMs),
  what: describeState(delivery, nowMs),
  event: cellText(delivery.eventType),
  webhook: withoutScheme(calledWebhook(delivery.webhook, delivery.webhookId)),
  ...(hasFailed(delivery.status) && { colour: colours.red }),
})

/** The columns that fit; the webhook column is left out for a single webhook. */
const cellsOf = (
  { mark, time, what, event, webhook, colour }: DeliveryCells,
  { webhookId }: State,
  width: number,
): Cell[] => {
  const room = width - 2 - 1 - 2 - 8 - 2
  const first: Cell[] = [
    { text: mark, width: 1 },
    { text: time, width: 8 },
  ]
  const whatWidth = room < 80 ? 22 : 32
  if (webhookId !== undefined) {
    const eventWidth = Math.max(8, Math.min(EVENT, room - whatWidth - 2))
    return [
      ...first,
      { text: what, width: Math.max(whatWidth, room - eventWidth - 2), colour },
      { text: event, width: eventWidth, shrinks: 'start' },
    ]
  }
  const eventWidth = Math.max(8, Math.min(EVENT, Math.ceil((room - whatWidth - 4) / 2)))
  return [
    ...first,
    { text: what, width: whatWidth, colour },
    // Event types differ at their ends.
    { text: event, width: eventWidth, shrinks: 'start' },
    { text: webhook, width: Math.max(8, room - whatWidth - eventWidth - 4), shrinks: 'middle' },
  ]
}

/** The width of the longest type. */
const EVENT = 34

/** The time of day for today, the date for older deliveries, whose timeline has the time. */
const timeOf = (iso: string, nowMs: number): string => {
  const ms = parseIso(iso)
  if (ms === undefined) return cellText(iso)
  if (nowMs - ms < 86_400_000) return timeOfDay(ms)
  return new Date(ms + zoneAt(ms) * 60_000).toLocaleDateString('en-GB', {
    day: '2-digit',
    month: 'short',
    timeZone: 'UTC',
  })
}
