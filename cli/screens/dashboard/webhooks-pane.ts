import type { DeliveryStatus } from '../../../shared/vocabulary.ts'
import { type Colours, cellText } from '../../output/output.ts'
import { asStarted } from '../../output/program.ts'
import { relativeIso, timeOfDay } from '../../output/time.ts'
import { calledWebhook, onlyFails, statusColour } from '../../resources/cells.ts'
import type { Webhook } from '../../resources/webhook.ts'
import { MOST_WEBHOOKS } from './feed.ts'
import { HOURS, lineOf } from './last-day.ts'
import { firstShown, type Layout } from './layout.ts'
import { type Cell, filledUp, rowOf, rule, selectable, withoutScheme, wrapLine } from './lines.ts'
import { listedWebhooks, type State } from './state.ts'

/** The webhooks, those that need attention first, as lines of the terminal. */
export const webhooksPane = (state: State, { listsWidth: width, webhookRows: height }: Layout, colours: Colours) => {
  const { webhooks, webhookId, focus, search } = state
  const listed = listedWebhooks(state)
  const focused = focus === 'webhooks'
  const found = search.webhooks === '' ? '' : ` · “${cellText(search.webhooks)}”`
  const number = webhooks === undefined ? '' : ` · ${listed.length}${webhooks.length === MOST_WEBHOOKS ? '+' : ''}`
  const title = rule(`Webhooks${number}${found}`, noteOf(state), width, focused)
  const heads = rowOf(cellsOf(HEADS, width))
  const lines = [focused ? colours.bold(title) : title, `  ${colours.dim(heads)}`]
  if (webhooks === undefined) return filledUp([...lines, '  Looking …'], height + 2)
  if (webhooks.length === 0) return filledUp([...lines, ...wrapLine(NONE, width, 2)], height + 2)
  const ids = [undefined, ...listed.map(({ id }) => id)]
  const selected = Math.max(0, ids.indexOf(webhookId))
  const first = firstShown(selected, ids.length, height)
  for (const [index, id] of ids.slice(first, first + height).entries()) {
    const webhook = listed.find(each => each.id === id)
    const draw = (palette: Colours) =>
      rowOf(cellsOf(webhook ? valuesOf(webhook, state, palette) : totals(listed), width))
    lines.push(selectable(draw, { selected: first + index === selected, focused, colours }))
  }
  return filledUp(lines, height + 2)
}

/** They are loaded at least every 15 s; after this time without an answer they count as outdated. */
const OLD_MS = 40_000

const noteOf = ({ webhooksSeenAtMs, nowMs }: State): string =>
  webhooksSeenAtMs !== undefined && nowMs - webhooksSeenAtMs > OLD_MS
    ? `last 24 h, as of ${timeOfDay(webhooksSeenAtMs)}`
    : 'last 24 h'

const NONE = asStarted(
  '  None yet. Register an endpoint with: tidings webhooks create URL. Or receive on this machine with: ' +
    'tidings listen --register',
)

interface WebhookCells {
  status: Value
  webhook: string
  delivered: Value
  rejected: Value
  dropped: Value
  failed: Value
  pending: Value
  last: string
  /** The last day as a line of this width. */
  day: (width: number) => string
}
type Value = { text: string; colour?: (text: string) => string }

/** The columns that fit. */
const cellsOf = (values: WebhookCells, width: number): Cell[] => {
  const counts: Cell[] =
    width < 92
      ? [
          { ...values.delivered, width: 9, align: 'right' },
          { ...values.failed, width: 6, align: 'right' },
        ]
      : [
          { ...values.delivered, width: 9, align: 'right' },
          { ...values.rejected, width: 8, align: 'right' },
          { ...values.dropped, width: 7, align: 'right' },
        ]
  const rest: Cell[] = [...counts, { ...values.pending, width: 7, align: 'right' }]
  if (width >= 70) {
    const columns = width < 128 ? HOURS / 2 : HOURS
    rest.push({ text: values.day(columns), width: columns })
  }
  if (width >= 108) rest.push({ text: values.last, width: 13, align: 'right' })
  const taken = rest.reduce((sum, cell) => sum + cell.width + 2, 2 + 8 + 2)
  return [
    { ...values.status, width: 8 },
    { text: values.webhook, width: Math.max(8, width - taken), shrinks: 'middle' },
    ...rest,
  ]
}

const HEADS: WebhookCells = {
  status: { text: 'STATUS' },
  webhook: 'WEBHOOK',
  delivered: { text: 'DELIVERED' },
  rejected: { text: 'REJECTED' },
  dropped: { text: 'DROPPED' },
  failed: { text: 'FAILED' },
  pending: { text: 'PENDING' },
  last: 'LAST DELIVERY',
  day: () => 'LAST DAY',
}

const valuesOf = (webhook: Webhook, { nowMs, lastDay }: State, colours: Colours): WebhookCells => {
  const { status, health, lastDeliveryAt } = webhook
  const { delivered = 0, rejected = 0, dropped = 0, pending = 0 } = health
  const bad = (number: number): Value =>
    number > 0 ? { text: short(number), colour: colours.red } : { text: short(number) }
  return {
    // A webhook that waits for a person is as red as a failure.
    status: {
      text: cellText(status),
      colour:
        status === 'inactive' || (status === 'active' && onlyFails(health))
          ? colours.red
          : statusColour(status, colours),
    },
    webhook: withoutScheme(calledWebhook(webhook, webhook.id)),
    delivered: { text: short(delivered) },
    rejected: bad(rejected),
    dropped: bad(dropped),
    failed: bad(rejected + dropped),
    pending: pending > 0 ? { text: short(pending), colour: colours.yellow } : { text: short(pending) },
    last: cellText(relativeIso(lastDeliveryAt, nowMs)),
    day: width => lineOf(lastDay.get(webhook.id), width),
  }
}

const totals = (webhooks: Webhook[]): WebhookCells => {
  const sum = (...statuses: DeliveryStatus[]): Value => ({
    text: short(
      webhooks.reduce((total, { health }) => total + statuses.reduce((sum, each) => sum + (health[each] ?? 0), 0), 0),
    ),
  })
  return {
    status: { text: 'all' },
    webhook: webhooks.length === 1 ? 'the one webhook' : `all ${webhooks.length} webhooks`,
    delivered: sum('delivered'),
    rejected: sum('rejected'),
    dropped: sum('dropped'),
    failed: sum('rejected', 'dropped'),
    pending: sum('pending'),
    last: '',
    day: () => '',
  }
}

/** At most six characters: `9999`, `12.3k`, `4.5M`. */
const short = (number: number): string => {
  if (number < 10_000) return String(number)
  if (number < 999_950) return `${(number / 1000).toFixed(1)}k`
  return `${(number / 1_000_000).toFixed(1)}M`
}
