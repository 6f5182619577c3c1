import type { DeliveryStatus, WebhookOrdering, WebhookStatus } from '../../shared/vocabulary.ts'
import type { Session } from '../connection/session.ts'
import { CliError, exitCodes } from '../errors.ts'
import { type Colours, cellText, describeFields } from '../output/output.ts'
import { relativeIso } from '../output/time.ts'
import { wordsOf } from '../output/words.ts'
import { labelsCell, onlyFails, statusCell, webhookStatusCell } from './cells.ts'

/** A webhook as the API shows it. Each field stands in FIELDS too; a test compares them with the API's own. */
export interface Webhook {
  id: string
  url: string
  /** Null where it was given none. */
  name: string | null
  labels: Record<string, string>
  events: string[]
  organisationIds: string[]
  projectIds: string[]
  ordering: WebhookOrdering
  status: WebhookStatus
  statusReason: string | null
  createdAt: string
  updatedAt: string
  /** Null but for one that only its deliveries still lead to. */
  deletedAt: string | null
  lastDeliveryAt: string | null
  health: Record<DeliveryStatus, number>
}

/** What needs somebody comes first. */
const HEALTH = wordsOf<DeliveryStatus>({ rejected: 1, dropped: 1, pending: 1, cancelled: 1, delivered: 1 })

/**
 * `argument`: the API's type of it where a client sets it. `selection`: what is selected of it, where that is more than
 * its name.
 */
const FIELDS = {
  id: { argument: 'UUID!' },
  url: { argument: 'String' },
  name: { argument: 'String' },
  labels: { argument: 'JSON' },
  events: { argument: '[EventType!]' },
  organisationIds: { argument: '[UUID!]' },
  projectIds: { argument: '[UUID!]' },
  ordering: { argument: 'WebhookOrdering' },
  status: { argument: 'WebhookStatus' },
  statusReason: {},
  createdAt: {},
  updatedAt: {},
  deletedAt: {},
  lastDeliveryAt: {},
  health: { selection: `health { ${HEALTH.join(' ')} }` },
} as const satisfies Record<keyof Webhook, { argument?: string; selection?: string }>

type Settable = {
  [Name in keyof Webhook]: (typeof FIELDS)[Name] extends { argument: string } ? Name : never
}[keyof Webhook]

/** The statuses that a client sets. */
export const settableStatuses = ['active', 'disabled'] as const satisfies WebhookStatus[]

/** What a client sets of a webhook. */
export type WebhookInput = Omit<Pick<Webhook, Settable>, 'status'> & { status: (typeof settableStatuses)[number] }

/** Every field, in the order in which it is shown as data. */
export const fieldNames = wordsOf<keyof Webhook>(FIELDS)
/** The API's type of each field that a client sets. */
export const inputTypes = Object.fromEntries(
  Object.entries(FIELDS).flatMap(([name, field]) => ('argument' in field ? [[name, field.argument]] : [])),
) as Record<Settable, string>

/** GraphQL selection of everything that is told about a webhook. */
export const webhookFields = Object.entries(FIELDS)
  .map(([name, field]) => ('selection' in field ? field.selection : name))
  .join(' ')

const mutationOf = (name: string, types: Record<string, string>): string => {
  const declared = Object.entries(types).map(([argument, type]) => `$${argument}: ${type}`)
  const passed = Object.keys(types).map(argument => `${argument}: $${argument}`)
  return `mutation (${declared.join(', ')}) {
  webhook: ${name}(${passed.join(', ')}) { ${webhookFields} }
}`
}

const { id: _id, status: _status, ...creationTypes } = inputTypes
/** Creates a webhook, under an id of the server's. */
export const createWebhook = mutationOf('createWebhook', { ...creationTypes, url: 'String!' })
/** Creates or changes the webhook with an id. */
export const upsertWebhook = mutationOf('upsertWebhook', inputTypes)

/** A name and a value for each field; undefined for one that has no line of its own. */
export type WebhookLines = Record<keyof Webhook, [name: string, value: string] | undefined>

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
    'List the visible ones with: tidings webhooks list',
  )
}

/** The same, before something is done with it; undefined where the access token may do that, and not look. */
export const lookAtWebhook = (session: Session, id: string): Promise<Webhook | undefined> =>
  findWebhook(session, id).catch(unlessForbidden)

/** An access token that has the permission webhooks alone may change what it may not read. */
export const unlessForbidden = (error: unknown): undefined => {
  if (!(error instanceof CliError) || error.code !== 'FORBIDDEN') throw error
}

/**
 * The id for a webhook that is to be made once: it follows from access token and URL, so that a run whose answer was
 * lost, or two at once, make one webhook and not two.
 */
export const idForUrl = async (apiKey: string, url: string): Promise<string> => {
  const { v5: uuid } = await import('uuid')
  return uuid(`${apiKey} ${url}`, uuid.URL)
}

/** Prints one webhook: what it receives, and the health of each. */
export const printWebhook = (session: Session, webhook: Webhook): void => {
  const { nowMs } = session.output
  const listed = (values: string[], none: string) => (values.length === 0 ? none : cellText(values.join(', ')))
  const limited = webhook.organisationIds.length + webhook.projectIds.length > 0
  session.output.one(webhook, colours => {
    const time = (iso: string) => `${cellText(iso)}  ${colours.dim(relativeIso(iso, nowMs))}`
    const reason = webhook.statusReason ? `  ${cellText(webhook.statusReason)}` : ''
    const silence = onlyFails(webhook.health) ? ', and nothing has arrived in 24 hours' : ''
    const lines: WebhookLines = {
      id: ['ID', cellText(webhook.id)],
      name: webhook.name ? ['Name', cellText(webhook.name)] : undefined,
      url: ['URL', cellText(webhook.url)],
      labels: Object.keys(webhook.labels ?? {}).length > 0 ? ['Labels', labelsCell(webhook.labels)] : undefined,
      status: ['Status', webhookStatusCell(webhook, colours) + silence + reason],
      statusReason: undefined,
      events: ['Events', listed(webhook.events, 'all')],
      organisationIds: [
        'Organisations',
        listed(webhook.organisationIds, limited ? 'none' : 'all that its access token sees'),
      ],
      projectIds: [
        'Projects',
        listed(
          webhook.projectIds,
          limited ? 'none besides those of the organisations' : 'all that its access token sees',
        ),
      ],
      ordering: webhook.ordering === 'none' ? undefined : ['Ordering', `by ${cellText(webhook.ordering)}`],
      createdAt: ['Created', time(webhook.createdAt)],
      updatedAt: undefined,
      deletedAt: undefined,
      lastDeliveryAt: ['Last delivery', webhook.lastDeliveryAt ? time(webhook.lastDeliveryAt) : '–'],
      health: ['Last 24 hours', describeHealth(webhook.health, colours)],
    }
    return describeFields(
      Object.values(lines).filter(line => line !== undefined),
      colours,
    )
  })
}

/** `1 pending, 3 delivered`. */
export const describeHealth = (health: Webhook['health'], colours: Colours): string => {
  const parts = HEALTH.filter(status => (health[status] ?? 0) > 0)
  return parts.length === 0 ? '–' : parts.map(status => `${health[status]} ${statusCell(status, colours)}`).join(', ')
}
