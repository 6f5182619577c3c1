import { parseIso } from '../../shared/time.ts'
import type { DeliveryStatus } from '../../shared/vocabulary.ts'
import type { Session } from '../connection/session.ts'
import { type Colours, cellText } from '../output/output.ts'
import { count } from '../output/time.ts'
import { calledWebhook, statusCell } from '../resources/cells.ts'
import { conditionsOf, type Window } from '../window.ts'
import { whyEvent } from './event.ts'
import { moment, type Reason, reasonLines, verdictLine } from './words.ts'

interface Sent {
  id: string
  webhookId: string
  webhook: { name: string | null; url: string | null } | null
  status: DeliveryStatus
  handledBefore: boolean
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
  /** Why the newest event that went nowhere did not go to the webhooks that are likeliest to be meant. */
  elsewhere: { webhookId: string; called: string; reasons: Reason[] }[]
  /** Whether there are more events in this time. */
  areMore: boolean
  /** The latest event of the organisation, of any type and time, where none is found. */
  latest: { id: string; type: string; time: string } | null
  /** What else is known where none is found. */
  reasons: Reason[]
  next: string | null
}

const MOST_EVENTS = 100
/** Webhooks whose reasons are asked for. */
const MOST_ASKED = 3

const FACTS = `query ($organisation: MangoQuery, $events: MangoQuery, $latest: MangoQuery, $oldest: MangoQuery,
  $naming: MangoQuery, $others: MangoQuery) {
  organisations(query: $organisation) { id name }
  events(query: $events) { id type time deliveries(query: { sort: [{ createdAt: "asc" }] }) {
    id webhookId webhook { name url } status handledBefore attempts(query: { sort: [{ number: "desc" }], limit: 1 }) {
      statusCode failure } } }
  latest: events(query: $latest) { id type time }
  oldest: events(query: $oldest) { id type time }
  naming: webhooks(query: $naming) { id name url }
  others: webhooks(query: $others) { id name url }
}`

type Happened = { id: string; type: string; time: string }
type Hook = { id: string; name: string | null; url: string | null }
interface Facts {
  organisations: { id: string; name: string }[]
  events: HappenedEvent[]
  latest: Happened[]
  oldest: Happened[]
  naming: Hook[]
  others: Hook[]
}

type Asked = Window & { type?: string | undefined; projectId?: string | undefined }

/** Which events of an organisation there were, and where each went. */
export const whyOrganisation = async (
  session: Session,
  organisationId: string,
  { type, projectId, ...span }: Asked,
): Promise<OrganisationWhy> => {
  const of = { organisationId }
  const narrowed = { $and: [of, ...(type ? [{ type }] : []), ...(projectId ? [{ projectId }] : [])] }
  const facts = await session.graphql<Facts>(FACTS, {
    organisation: { selector: { id: organisationId } },
    events: {
      selector: { $and: [narrowed, ...conditionsOf(span, 'time')] },
      sort: [{ time: 'desc' }],
      limit: MOST_EVENTS + 1,
    },
    latest: { selector: of, sort: [{ time: 'desc' }], limit: 1 },
    oldest: { selector: of, sort: [{ time: 'asc' }], limit: 1 },
    naming: { selector: { organisationIds: { $all: [organisationId] } }, limit: MOST_ASKED },
    others: { selector: {}, sort: [{ updatedAt: 'desc' }], limit: MOST_ASKED },
  })
  const { organisations, events } = facts
  const shown = events.slice(0, MOST_EVENTS)
  const missing = shown.find(isMissing)
  const elsewhere = missing?.deliveries.length === 0 ? await elsewhereOf(session, missing.id, facts) : []
  const none = shown.length === 0 ? await noneOf(session, { organisationId, projectId, type, span, facts }) : undefined
  return {
    organisationId,
    name: organisations[0]?.name ?? organisationId,
    verdict: shown.length === 0 ? 'no_events' : missing === undefined ? 'all_arrived' : 'some_missing',
    events: shown,
    elsewhere,
    areMore: events.length > MOST_EVENTS,
    latest: shown.length === 0 ? (facts.latest[0] ?? null) : null,
    reasons: none?.reasons ?? [],
    next: none?.next ?? nextOf(missing, organisationId, elsewhere[0]?.webhookId),
  }
}

/** Why the likeliest webhooks did not get an event: those with the fewest reasons first. */
const elsewhereOf = async (
  session: Session,
  eventId: string,
  { naming, others }: Facts,
): Promise<OrganisationWhy['elsewhere']> => {
  const likely = [...new Map([...naming, ...others].map(hook => [hook.id, hook])).values()].slice(0, MOST_ASKED)
  const asked = await Promise.all(
    likely.map(async hook => {
      const { reasons } = await whyEvent(session, { webhookId: hook.id, eventId })
      return { webhookId: hook.id, called: calledWebhook({ ...hook, url: hook.url ?? '' }, hook.id), reasons }
    }),
  )
  return asked.toSorted((a, b) => a.reasons.length - b.reasons.length)
}

/** Why there was no such event: the project is another organisation's, it did not happen, or it is kept no longer. */
const noneOf = async (
  session: Session,
  of: { organisationId: string; projectId: string | undefined; type: string | undefined; span: Window; facts: Facts },
): Promise<{ reasons: Reason[]; next: string | null }> => {
  const { organisationId, projectId, type, span, facts } = of
  const reasons: Reason[] = []
  let next: string | null = null
  const say = (code: string, message: string, at: string | null = null) => reasons.push({ code, message, at })
  const project = projectId === undefined ? undefined : await projectOf(session, projectId)
  if (project && project.organisationId !== organisationId) {
    say('project_elsewhere', `The project is of organisation ${project.organisationId}.`)
    next = `tidings why ${project.organisationId} --project ${project.id}`
  }
  const [oldest] = facts.oldest
  const from = span.since ?? span.until
  if (oldest && from !== undefined && parseIso(from)! < parseIso(oldest.time)!) {
    say('no_longer_kept', 'Earlier events are not kept any more, or there were none; the oldest is of:', oldest.time)
  }
  const wanted = type && BEFORE[type]
  if (wanted) {
    const where = project ? { projectId: project.id } : { 'project.organisationId': organisationId }
    const [found] = await countReports(session, { ...where, status: wanted.status })
    const many = count(found?.count ?? 0, 'report is', 'reports are')
    if (found?.count) {
      const refused = wanted.isAsked ? ' A request that was refused, such as with RATE_LIMITED, leaves no event.' : ''
      say('not_happened', `${many} ${wanted.status}: ${wanted.happens}.${refused}`)
      next ??= `tidings reports list --status ${wanted.status}${project ? ` --project ${project.id}` : ''}`
    }
  }
  if (next === null && type && BEFORE[type] !== undefined && reasons.length === 0) say('no_trace', NO_TRACE)
  return { reasons, next }
}

const NO_TRACE =
  'No report of these is known that it could be of. A request that was refused, such as with RATE_LIMITED or, with a ' +
  'revoked or expired access token, UNAUTHENTICATED, leaves no event: its sender had the answer.'

/** The status of the reports of which such an event is still to come. */
const BEFORE: Record<string, { status: string; happens: string; isAsked?: true }> = {
  project_report_quarterly_submitted: {
    status: 'open',
    happens: 'the event happens when one is submitted',
    isAsked: true,
  },
  project_report_quarterly_approved: {
    status: 'submitted',
    happens: 'the event happens when one is approved',
    isAsked: true,
  },
  project_report_quarterly_overdue: { status: 'open', happens: 'the event happens when one is past its due date' },
}

const projectOf = async (session: Session, id: string) => {
  const { projects } = await session.graphql<{ projects: { id: string; organisationId: string }[] }>(
    'query ($query: MangoQuery) { projects(query: $query) { id organisationId } }',
    { query: { selector: { id } } },
  )
  return projects[0]
}

const countReports = async (session: Session, selector: object): Promise<{ count: number }[]> => {
  const { counts } = await session.graphql<{ counts: { count: number }[] }>(
    'query ($selector: MangoSelector) { counts(resource: projectReports, selector: $selector) { key count } }',
    { selector },
  )
  return counts
}

const isMissing = ({ deliveries }: HappenedEvent): boolean =>
  deliveries.length === 0 || [...lastOfEach(deliveries)].some(isUnacknowledged)

const isUnacknowledged = ({ status, handledBefore }: Sent): boolean => status !== 'delivered' && !handledBefore

/** The last delivery to each webhook: an earlier one may have been sent again. */
const lastOfEach = (deliveries: Sent[]): Iterable<Sent> =>
  new Map(deliveries.map(each => [each.webhookId, each])).values()

const nextOf = (
  missing: HappenedEvent | undefined,
  organisationId: string,
  likeliest: string | undefined,
): string | null => {
  if (missing === undefined) return `tidings events list --organisation ${organisationId}`
  const [wrong] = [...lastOfEach(missing.deliveries)].filter(isUnacknowledged)
  const webhookId = wrong?.webhookId ?? likeliest
  return webhookId === undefined ? 'tidings webhooks list' : `tidings why ${webhookId} ${missing.id}`
}

export const describeOrganisationWhy = (why: OrganisationWhy, nowMs: number, colours: Colours): string => {
  const { name, verdict, events, elsewhere, areMore, latest, reasons, next } = why
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
  lines.push(...reasonLines(reasons, nowMs, colours))
  for (const { called, reasons: others } of elsewhere) {
    lines.push(`Not to ${called}:`, ...reasonLines(others, nowMs, colours).map(line => `  ${line}`))
  }
  if (areMore) lines.push(colours.dim(`The newest ${MOST_EVENTS}; narrow the time with --since and --until.`))
  return verdictLine(head, lines, [], next, colours)
}

const describeEvent = ({ id, type, time, deliveries }: HappenedEvent, nowMs: number, colours: Colours): string[] => {
  const rows = deliveries.map(({ webhookId, webhook, status, attempts: [last] }) => {
    const answer = last ? ` (${last.statusCode ?? cellText(last.failure ?? 'under way').replaceAll('_', ' ')})` : ''
    const called = calledWebhook(webhook && { ...webhook, url: webhook.url ?? '' }, webhookId)
    return { status, answer, called, width: status.length + answer.length }
  })
  const widest = Math.max(0, ...rows.map(({ width }) => width))
  return [
    `${colours.dim(moment(time, nowMs))}  ${cellText(type)}  ${colours.dim(cellText(id))}`,
    ...(rows.length === 0 ? [`  ${colours.red('went nowhere: no webhook wanted it then')}`] : []),
    ...rows.map(
      ({ status, answer, called, width }) =>
        `  ${statusCell(status, colours)}${answer}${' '.repeat(widest - width)}  ${called}`,
    ),
  ]
}
