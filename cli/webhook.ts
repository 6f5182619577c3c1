import { CliError, exitCodes } from './errors.ts'
import { type Colours, cellText, describeFields } from './output/output.ts'
import { relativeIso } from './output/time.ts'
import { statusCell } from './resources.ts'
import type { Session } from './session.ts'

export interface Webhook {
  id: string
  url: string
  events: string[]
  organisationIds: string[]
  projectIds: string[]
  status: string
  statusReason: string | null
  createdAt: string
  updatedAt: string
  lastDeliveryAt: string | null
  health: Record<string, number>
}

/** As the event registry has them; read from there, they would cost every command the time to load its schemas. */
export const eventTypes = [
  'ping',
  'project_report_quarterly_submitted',
  'project_report_quarterly_approved',
  'project_report_quarterly_overdue',
  'token_expired',
]

/** What needs somebody comes first. */
const HEALTH = ['rejected', 'dropped', 'pending', 'cancelled', 'delivered'] as const
/** GraphQL selection of everything that is told about a webhook. */
export const webhookFields =
  'id url events organisationIds projectIds status statusReason createdAt updatedAt lastDeliveryAt health ' +
  `{ ${HEALTH.join(' ')} }`

/** The webhook with this id. Throws a CliError, exit code 3, when the access token sees none. */
export const findWebhook = async (session: Session, id: string): Promise<Webhook> => {
  const { webhooks } = await session.graphql<{ webhooks: Webhook[] }>(
    `query ($query: MangoQuery) { webhooks(query: $query) { ${webhookFields} } }`,
    { query: { selector: { id } } },
  )
  const [webhook] = webhooks
  if (webhook) return webhook
  throw new CliError(
    exitCodes.notFound,
    'NOT_FOUND',
    `No webhook with id ${cellText(id)} is visible to this access token.`,
    'See those that are with: tidings webhooks list',
  )
}

/** Prints one webhook: what it receives, and how it is doing. */
export const printWebhook = (session: Session, webhook: Webhook): void => {
  const { nowMs } = session.output
  const listed = (values: string[], none: string) => (values.length === 0 ? none : cellText(values.join(', ')))
  const limited = webhook.organisationIds.length + webhook.projectIds.length > 0
  session.output.one(webhook, colours =>
    describeFields(
      [
        ['ID', cellText(webhook.id)],
        ['URL', cellText(webhook.url)],
        [
          'Status',
          `${statusCell(webhook.status, colours)}${webhook.statusReason ? `  ${cellText(webhook.statusReason)}` : ''}`,
        ],
        ['Events', listed(webhook.events, 'all')],
        ['Organisations', listed(webhook.organisationIds, limited ? 'none' : 'all that its access token sees')],
        [
          'Projects',
          listed(
            webhook.projectIds,
            limited ? 'none besides those of the organisations' : 'all that its access token sees',
          ),
        ],
        ['Created', `${cellText(webhook.createdAt)}  ${colours.dim(relativeIso(webhook.createdAt, nowMs))}`],
        [
          'Last delivery',
          webhook.lastDeliveryAt
            ? `${cellText(webhook.lastDeliveryAt)}  ${colours.dim(relativeIso(webhook.lastDeliveryAt, nowMs))}`
            : '–',
        ],
        ['Last 24 hours', describeHealth(webhook.health, colours)],
      ],
      colours,
    ),
  )
}

/** `1 pending, 3 delivered`. */
export const describeHealth = (health: Webhook['health'], colours: Colours): string => {
  const parts = HEALTH.filter(status => (health[status] ?? 0) > 0)
  return parts.length === 0 ? '–' : parts.map(status => `${health[status]} ${statusCell(status, colours)}`).join(', ')
}
