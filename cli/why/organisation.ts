import type { DeliveryStatus } from '../../shared/vocabulary.ts'
import type { Session } from '../connection/session.ts'
import { type Colours, cellText } from '../output/output.ts'
import { count } from '../output/time.ts'
import { calledWebhook, statusCell } from '../resources/cells.ts'
import { conditionsOf, type Window } from '../window.ts'
import { moment, verdictLine } from './words.ts'

interface Sent {
  id: string
  webhookId: string
  webhook: { name: string | null; url: string | null } | null
  status: DeliveryStatus
  attempts: { statusCode: number | null; failure: string | null }[]
}

interface HappenedEvent {
  id: string
  type: string
  time: string
  deliveries: Sent[]
}

export interface OrganisationWhy {
  organisationId: string
  name: string
  verdict: 'all_arrived' | 'some_missing' | 'no_events'
  events: HappenedEvent[]
  /** Whether there are more events in this time. */
  areMore: boolean
  /** The latest event of the organisation, of any type and time, where none is found. */
  latest: { id: string; type: string; time: string } | null
  next: string | null
}

const MOST_EVENTS = 100

const FACTS = `query ($organisation: MangoQuery, $events: MangoQuery, $latest: MangoQuery) {
  organisations(query: $organisation) { id name }
  events(query: $events) { id type time deliveries(query: { sort: [{ createdAt: "asc" }] }) {
    id webhookId webhook { name url } status attempts(query: { sort: [{ number: "desc" }], limit: 1 }) {
      statusCode failure } } }
  latest: events(query: $latest) { id type time }
  webhooks(query: { selector: { status: "active" }, limit: 1 }) { id }
}`

/** Which events of an organisation there were, and where each went. */
export const whyOrganisation = async (
  session: Session,
  organisationId: string,
  { type, ...span }: Window & { type?: string | undefined },
): Promise<OrganisationWhy> => {
  const of = { organisationId }
  const { organisations, events, latest, webhooks } = await session.graphql<{
    organisations: { id: string; name: string }[]
    events: HappenedEvent[]
    latest: { id: string; type: string; time: string }[]
    webhooks: { id: string }[]
  }>(FACTS, {
    organisation: { selector: { id: organisationId } },
    events: {
      selector: { $and: [of, ...(type ? [{ type }] : []), ...conditionsOf(span, 'time')] },
      sort: [{ time: 'desc' }],
      limit: MOST_EVENTS + 1,
    },
    latest: { selector: of, sort: [{ time: 'desc' }], limit: 1 },
  })
  const shown = events.slice(0, MOST_EVENTS)
  const missing = shown.find(isMissing)
  return {
    organisationId,
    name: organisations[0]?.name ?? organisationId,
    verdict: shown.length === 0 ? 'no_events' : missing === undefined ? 'all_arrived' : 'some_missing',
    events: shown,
    areMore: events.length > MOST_EVENTS,
    latest: shown.length === 0 ? (latest[0] ?? null) : null,
    next: nextOf(missing, organisationId, webhooks[0]?.id),
  }
}

const isMissing = ({ deliveries }: HappenedEvent): boolean =>
  deliveries.length === 0 || [...lastOfEach(deliveries)].some(({ status }) => status !== 'delivered')

/** The last delivery to each webhook: an earlier one may have been sent again. */
const lastOfEach = (deliveries: Sent[]): Iterable<Sent> =>
  new Map(deliveries.map(each => [each.webhookId, each])).values()

const nextOf = (
  missing: HappenedEvent | undefined,
  organisationId: string,
  anyWebhook: string | undefined,
): string | null => {
  if (missing === undefined) return `tidings events list --organisation ${organisationId}`
  const [wrong] = [...lastOfEach(missing.deliveries)].filter(({ status }) => status !== 'delivered')
  const webhookId = wrong?.webhookId ?? anyWebhook
  return webhookId === undefined ? 'tidings webhooks list' : `tidings why ${webhookId} ${missing.id}`
}

export const describeOrganisationWhy = (why: OrganisationWhy, nowMs: number, colours: Colours): string => {
  const { name, verdict, events, areMore, latest, next } = why
  const called = cellText(name)
  const missing = events.filter(isMissing).length
  const head = {
    no_events: colours.yellow(`There was no such event of ${called} in this time.`),
    all_arrived: colours.green(`All of ${count(events.length, 'event')} of ${called} arrived where they went.`),
    some_missing: colours.red(
      `${missing} of ${count(events.length, 'event')} of ${called} did not arrive, or not everywhere.`,
    ),
  }[verdict]
  const lines = events.flatMap(event => describeEvent(event, nowMs, colours))
  if (latest) lines.push(`The latest event of ${called} is ${cellText(latest.type)}, ${moment(latest.time, nowMs)}.`)
  if (areMore) lines.push(colours.dim(`The newest ${MOST_EVENTS}; narrow the time with --since and --until.`))
  return verdictLine(head, lines, [], next, colours)
}

const describeEvent = ({ id, type, time, deliveries }: HappenedEvent, nowMs: number, colours: Colours): string[] => [
  `${colours.dim(moment(time, nowMs))}  ${cellText(type)}  ${colours.dim(cellText(id))}`,
  ...(deliveries.length === 0 ? [`  ${colours.red('went nowhere: no webhook wanted it then')}`] : []),
  ...deliveries.map(({ webhookId, webhook, status, attempts: [last] }) => {
    const answer = last ? ` (${last.statusCode ?? cellText(last.failure ?? 'under way').replaceAll('_', ' ')})` : ''
    const called = calledWebhook(webhook && { ...webhook, url: webhook.url ?? '' }, webhookId)
    return `  ${statusCell(status, colours)}${answer}  ${called}`
  }),
]
