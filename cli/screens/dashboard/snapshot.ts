import type { Session } from '../../connection/session.ts'
import { usageError } from '../../errors.ts'
import { type Colours, cellText, type View } from '../../output/output.ts'
import { relativeIso } from '../../output/time.ts'
import { calledWebhook, idColumn, webhookStatusCell } from '../../resources/cells.ts'
import { type DeliveryAtAGlance, describeState, glanceFields, statusMark } from '../../resources/timeline.ts'
import { describeHealth, type Webhook, webhookFields } from '../../resources/webhook.ts'
import { MOST_WEBHOOKS } from './feed.ts'
import { byUrgency, type Filters, filterOf } from './state.ts'

const DELIVERIES = 30

/** Prints the dashboard's content once: webhooks, those that need attention first, and the last deliveries. */
export const printSnapshot = async (session: Session, filters: Filters): Promise<void> => {
  const { output } = session
  if (output.form === 'id') {
    throw usageError(
      'A dashboard shows more than ids.',
      'Ask for another form, or for a list: tidings deliveries list --output id',
    )
  }
  const found = await session.graphql<{ webhooks: Webhook[]; deliveries: DeliveryAtAGlance[] }>(
    `query ($webhooks: MangoQuery, $deliveries: MangoQuery) {
      webhooks(query: $webhooks) { ${webhookFields} }
      deliveries(query: $deliveries) { ${glanceFields} }
    }`,
    {
      webhooks: { sort: [{ id: 'desc' }], limit: MOST_WEBHOOKS },
      deliveries: { selector: filterOf(filters), sort: [{ id: 'desc' }], limit: DELIVERIES },
    },
  )
  const webhooks = found.webhooks.toSorted(byUrgency)
  const { deliveries } = found
  if (!output.forPeople) return output.one({ webhooks, deliveries }, () => '')
  const { colours, nowMs } = output
  output.data(`${colours.bold('Webhooks')}, those that need attention first\n\n`)
  output.list(webhooks, webhookView(nowMs))
  output.data(`\n${colours.bold('Deliveries')}, the newest first\n\n`)
  output.list(deliveries, deliveryView(nowMs))
}

const webhookView = (nowMs: number): View<Webhook> => ({
  columns: [
    idColumn,
    { title: 'STATUS', cell: webhookStatusCell },
    { title: 'WEBHOOK', shrinks: 'url', cell: row => calledWebhook(row, row.id) },
    { title: 'LAST DELIVERY', optional: true, cell: row => cellText(relativeIso(row.lastDeliveryAt, nowMs)) },
    { title: 'LAST 24 H', cell: (row, colours) => describeHealth(row.health, colours) },
  ],
  empty: 'No webhooks. Register an endpoint with: tidings webhooks create URL',
})

const deliveryView = (nowMs: number): View<DeliveryAtAGlance> => ({
  columns: [
    idColumn,
    {
      title: 'WHAT HAPPENED',
      cell: (row, colours: Colours) => `${statusMark(row, colours)} ${describeState(row, nowMs)}`,
    },
    { title: 'EVENT', shrinks: 'start', cell: row => cellText(row.eventType) },
    { title: 'WEBHOOK', shrinks: 'url', cell: row => calledWebhook(row.webhook, row.webhookId) },
    { title: 'CREATED', cell: row => cellText(relativeIso(row.createdAt, nowMs)) },
  ],
  empty: 'No deliveries. One is made for each webhook that an event concerns.',
})
