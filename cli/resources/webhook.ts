import type {
  DeliveryStatus,
  WebhookOrdering,
  WebhookRecovery,
  WebhookSigning,
  WebhookStatus,
  WebhookTransport,
} from '../../shared/vocabulary.ts'
import type { Session } from '../connection/session.ts'
import { CliError, exitCodes } from '../errors.ts'
import { type Colours, cellText, describeFields } from '../output/output.ts'
import { count, relativeIso } from '../output/time.ts'
import { wordsOf } from '../output/words.ts'
import { labelsCell, onlyFails, statusCell, webhookStatusCell } from './cells.ts'

/** A webhook of the API. FIELDS has each field too; a test compares them with the API's. */
export interface Webhook {
  id: string
  url: string
  /** Null if it has none. */
  name: string | null
  labels: Record<string, string>
  events: string[]
  organisationIds: string[]
  projectIds: string[]
  ordering: WebhookOrdering
  transport: WebhookTransport
  recovery: WebhookRecovery
  /** The time of the first missed event, while it heals itself. */
  missedSince: string | null
  nextPingAt: string | null
  recoveredAt: string | null
  signing: WebhookSigning
  /** The names of its static headers. */
  headers: string[]
  /** Only in the answer to the mutation that has made it; nothing else asks for it. */
  secret?: string | null
  status: WebhookStatus
  statusReason: string | null
  createdAt: string
  updatedAt: string
  /** Null unless it is deleted and only its deliveries still lead to it. */
  deletedAt: string | null
  lastDeliveryAt: string | null
  health: Record<DeliveryStatus, number>
  /** Those that wait for its deliveries. */
  clients: Clients
}

export interface Clients {
  waiting: number
  /** Of the one that came last; null if none waits. */
  accessTokenName: string | null
  remoteAddress: string | null
}

/** The order of display: what needs attention comes first. */
const HEALTH = wordsOf<DeliveryStatus>({ rejected: 1, dropped: 1, pending: 1, cancelled: 1, delivered: 1 })

/**
 * `argument`: its GraphQL type if a client can set it. `selection`: its GraphQL selection if that is more than its
 * name.
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
  transport: { argument: 'WebhookTransport' },
  recovery: { argument: 'WebhookRecovery' },
  missedSince: {},
  nextPingAt: {},
  recoveredAt: {},
  signing: { argument: 'WebhookSigning' },
  secret: { argument: 'String' },
  headers: { argument: 'JSON' },
  status: { argument: 'WebhookStatus' },
  statusReason: {},
  createdAt: {},
  updatedAt: {},
  deletedAt: {},
  lastDeliveryAt: {},
  health: { selection: `health { ${HEALTH.join(' ')} }` },
  clients: { selection: 'clients { waiting accessTokenName remoteAddress }' },
} as const satisfies Record<keyof Webhook, { argument?: string; selection?: string }>

type Settable = {
  [Name in keyof Webhook]-?: (typeof FIELDS)[Name] extends { argument: string } ? Name : never
}[keyof Webhook]

/** The statuses that a client sets. */
export const settableStatuses = ['active', 'disabled'] as const satisfies WebhookStatus[]

/** The fields that a client can set. */
export type WebhookInput = Omit<Pick<Webhook, Settable>, 'status' | 'secret' | 'headers'> & {
  status: (typeof settableStatuses)[number]
  secret: string
  headers: Record<string, string>
}

/** Every field, in the order of the data. */
export const fieldNames = wordsOf<keyof Webhook>(FIELDS)
/** The GraphQL type of each settable field. */
export const inputTypes = Object.fromEntries(
  Object.entries(FIELDS).flatMap(([name, field]) => ('argument' in field ? [[name, field.argument]] : [])),
) as Record<Settable, string>

/** The GraphQL selection of a webhook, without its secret. */
export const webhookFields = Object.entries(FIELDS)
  .filter(([name]) => name !== 'secret')
  .map(([name, field]) => ('selection' in field ? field.selection : name))
  .join(' ')

const mutationOf = (name: string, types: Record<string, string>): string => {
  const declared = Object.entries(types).map(([argument, type]) => `$${argument}: ${type}`)
  const passed = Object.keys(types).map(argument => `${argument}: $${argument}`)
  return `mutation (${declared.join(', ')}) {
  webhook: ${name}(${passed.join(', ')}) { ${webhookFields} secret }
}`
}

const { id: _id, status: _status, ...creationTypes } = inputTypes
/** Creates a webhook with an id from the server. Throws a CliError. */
export const createWebhook = mutationOf('createWebhook', creationTypes)
/** Creates or changes the webhook with an id. Throws a CliError. */
export const upsertWebhook = mutationOf('upsertWebhook', inputTypes)

/** The label and value of each field; undefined for one without a line of its own. */
export type WebhookLines = Record<keyof Webhook, [name: string, value: string] | undefined>

/** The webhook with this id. Throws a CliError, exit code 3, if the access token sees none. */
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

/** The same before an action; undefined if the access token may act but not read. */
export const lookAtWebhook = (session: Session, id: string): Promise<Webhook | undefined> =>
  findWebhook(session, id).catch(unlessForbidden)

/** An access token with only the permission webhooks may change webhooks that it cannot read. */
export const unlessForbidden = (error: unknown): undefined => {
  if (!(error instanceof CliError) || error.code !== 'FORBIDDEN') throw error
}

/**
 * The id for a new webhook, derived from access token and URL, so that a repeated or concurrent run creates one webhook
 * and not two.
 */
export const idForUrl = async (apiKey: string, url: string): Promise<string> => {
  const { v5: uuid } = await import('uuid')
  return uuid(`${apiKey} ${url}`, uuid.URL)
}

/** Prints one webhook: what it receives, and the health of each. */
export const printWebhook = (session: Session, { secret, ...shown }: Webhook): void => {
  const webhook: Webhook = secret ? { ...shown, secret } : shown
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
      transport: webhook.transport === 'pull' ? ['Transport', `pull: ${whoWaits(webhook.clients)}`] : undefined,
      clients: undefined,
      recovery: webhook.recovery === 'automatic' ? ['Recovery', healing(webhook, time)] : undefined,
      missedSince: undefined,
      nextPingAt: undefined,
      recoveredAt: undefined,
      signing: webhook.signing === 'token' ? undefined : ['Signing', 'token and Standard Webhooks'],
      headers: webhook.headers?.length > 0 ? ['Headers', cellText(webhook.headers.join(', '))] : undefined,
      secret: webhook.secret ? ['Secret', cellText(webhook.secret)] : undefined,
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

/** Who waits for the deliveries of a pulled webhook. */
export const whoWaits = ({ waiting, accessTokenName, remoteAddress }: Clients): string => {
  if (waiting === 0) return 'no client waits for its deliveries'
  const whose = `${waiting === 1 ? '' : 'the last '}of the access token ${cellText(accessTokenName ?? '')}`
  const from = remoteAddress === null ? '' : ` from ${cellText(remoteAddress)}`
  const requests = count(waiting, 'request of a client waits', 'requests of clients wait')
  return `${requests} for its deliveries, ${whose}${from}`
}

/** How a webhook stands that heals itself: `shown` writes a time. */
export const healing = (
  { id, status, missedSince, nextPingAt, recoveredAt }: Webhook,
  shown: (iso: string) => string = cellText,
): string => {
  if (missedSince === null) {
    return `automatic${recoveredAt === null ? '' : `; what it had missed was queued ${shown(recoveredAt)}`}`
  }
  const missed = `automatic; it has missed events since ${shown(missedSince)}`
  if (status !== 'active') return `${missed}, and is pinged again once it is active`
  return nextPingAt === null
    ? `${missed}; what becomes of them: tidings why ${id}`
    : `${missed}, and is pinged next ${shown(nextPingAt)}`
}

/** `1 pending, 3 delivered`. */
export const describeHealth = (health: Webhook['health'], colours: Colours): string => {
  const parts = HEALTH.filter(status => (health[status] ?? 0) > 0)
  return parts.length === 0 ? '–' : parts.map(status => `${health[status]} ${statusCell(status, colours)}`).join(', ')
}
