import type { DeliveryStatus, WebhookStatus } from '../../shared/vocabulary.ts'
import type { Session } from '../connection/session.ts'
import { CliError, exitCodes } from '../errors.ts'
import { type Colours, cellText } from '../output/output.ts'
import { count } from '../output/time.ts'
import { calledWebhook } from '../resources/cells.ts'
import type { Attempt } from '../resources/timeline.ts'
import { type Clients, whoWaits } from '../resources/webhook.ts'
import { conditionsOf, type Window } from '../window.ts'
import { type Healing, healingReasons } from './healing.ts'
import type { Reason } from './words.ts'
import { reasonLines, verdictLine } from './words.ts'

export type WebhookVerdict =
  | 'healthy'
  | 'idle'
  | 'failing'
  | 'refusing'
  | 'throttled'
  | 'waiting'
  | 'inactive'
  | 'disabled'
  | 'deleted'

export interface WebhookWhy {
  webhookId: string
  name: string | null
  url: string | null
  verdict: WebhookVerdict
  reasons: Reason[]
  counts: Partial<Record<DeliveryStatus, number>>
  /** When the next attempt follows. */
  nextAttemptAt: string | null
  next: string | null
}

type Last = Pick<Attempt, 'startedAt' | 'statusCode' | 'failure' | 'failureDetail' | 'retryAfter'>

/** A delivery that was not acknowledged, with all of its event to the webhook, oldest first. */
interface Missed {
  id: string
  status: DeliveryStatus
  createdAt: string
  event: { id: string; deliveries: { id: string }[] } | null
}

interface Seen {
  id: string
  eventType: string
  status: DeliveryStatus
  createdAt: string
  nextAttemptAt: string | null
  attempts: Last[]
  /** None of the attempts before the last was acknowledged. */
  first: Pick<Attempt, 'startedAt'>[]
}

interface Facts {
  webhooks: (Healing & {
    id: string
    name: string | null
    url: string | null
    status: WebhookStatus
    statusReason: string | null
    updatedAt: string
    transport: string
    clients: Clients
  })[]
  counts: { key: { status: DeliveryStatus }; count: number }[]
  tried: Seen[]
}

interface Latest {
  id: string
  type: string
  time: string
}

/** The newest attempted deliveries, among which a run of equal failures is looked for. */
const LOOKED_AT = 200

const NOT_ACKNOWLEDGED: DeliveryStatus[] = ['dropped', 'rejected', 'cancelled']

const FACTS = `query ($webhook: MangoQuery, $all: MangoSelector, $tried: MangoQuery) {
  webhooks(query: $webhook) { id name url status statusReason updatedAt transport recovery missedSince
    recoveredAt clients { waiting accessTokenName remoteAddress } }
  counts(resource: deliveries, selector: $all, by: ["status"]) { key count }
  tried: deliveries(query: $tried) { ...seen }
}
fragment seen on Delivery { id eventType status createdAt nextAttemptAt
  attempts(query: { sort: [{ number: "desc" }], limit: 1 }) { startedAt statusCode failure failureDetail retryAfter }
  first: attempts(query: { sort: [{ number: "asc" }], limit: 1 }) { startedAt } }`

/** How a webhook is, since when, and what to do. */
export const whyWebhook = async (session: Session, webhookId: string, span: Window): Promise<WebhookWhy> => {
  const within = [{ webhookId }, ...conditionsOf(span, 'createdAt')]
  const facts = await session.graphql<Facts>(FACTS, {
    webhook: { selector: { id: webhookId } },
    // Those that were delivered may be millions, and nothing depends on their number.
    all: { $and: [...within, { status: { $in: ['pending', ...NOT_ACKNOWLEDGED] } }] },
    tried: {
      selector: { $and: [...within, { attemptCount: { $gt: 0 } }] },
      sort: [{ createdAt: 'desc' }],
      limit: LOOKED_AT,
    },
  })
  const [webhook] = facts.webhooks
  if (!webhook) {
    throw new CliError(
      exitCodes.notFound,
      'NOT_FOUND',
      `No webhook ${cellText(webhookId)} is visible to this access token; a deleted one is in no list.`,
      'List the visible ones with: tidings webhooks list',
    )
  }
  const counts = countsOf(facts)
  const nextAttemptAt = await nextAttemptOf(session, counts.pending ?? 0, within)
  const latest = isIdle(facts) ? await latestEvent(session, span) : undefined
  return {
    webhookId,
    name: webhook.name,
    url: webhook.url,
    ...verdictOf(webhook, { ...facts, nextAttemptAt, latest }, await lostOf(session, webhook, { counts, within })),
    counts,
    nextAttemptAt,
  }
}

/** Of more deliveries the earliest attempt is not looked for. */
const MOST_WAITING = 10_000

const nextAttemptOf = async (session: Session, pending: number, within: object[]): Promise<string | null> => {
  if (pending === 0 || pending > MOST_WAITING) return null
  const selector = { $and: [...within, { status: 'pending' }, { nextAttemptAt: { $exists: true, $ne: null } }] }
  const { soonest } = await session.graphql<{ soonest: { nextAttemptAt: string | null }[] }>(
    'query ($soonest: MangoQuery) { soonest: deliveries(query: $soonest) { nextAttemptAt } }',
    { soonest: { selector, sort: [{ nextAttemptAt: 'asc' }], limit: 1 } },
  )
  return soonest[0]?.nextAttemptAt ?? null
}

type Counts = Partial<Record<DeliveryStatus, number>>

const countsOf = ({ counts }: Pick<Facts, 'counts'>): Counts =>
  Object.fromEntries(counts.map(({ key, count }) => [key.status, count]))

type Verdict = Pick<WebhookWhy, 'verdict' | 'reasons' | 'next'>

const verdictOf = (
  webhook: Facts['webhooks'][number],
  facts: Facts & { nextAttemptAt: string | null; latest: Latest | undefined },
  { reasons: lost, mend }: Lost,
): Verdict => {
  const { id, status, statusReason, updatedAt, transport, clients } = webhook
  const { tried, latest, nextAttemptAt } = facts
  const run = runOf(tried)
  const pending = countsOf(facts).pending ?? 0
  const waiting = [
    ...waitingOf(pending, nextAttemptAt, transport),
    ...(transport === 'pull' ? [clientsReason(clients)] : []),
  ]
  if (status !== 'active') {
    const message =
      status === 'inactive'
        ? `It is inactive: ${statusReason ?? 'its endpoint answered 429 without a time'}.`
        : 'It is disabled: somebody has set that.'
    const cause = {
      code: `webhook_${status}`,
      message: `${message} Nothing is sent to it, and events are kept.`,
      at: updatedAt,
    }
    return { verdict: status, reasons: [cause, ...run.reasons, ...lost], next: `tidings webhooks enable ${id}` }
  }
  if (run.kind === 'throttled') {
    return { verdict: 'throttled', reasons: [...run.reasons, ...waiting, ...lost], next: null }
  }
  if (run.kind === 'failing') {
    // What waits is sent by itself; what was dropped is not, unless the webhook heals itself.
    const next = mend ?? `tidings webhooks ping ${id}`
    return { verdict: 'failing', reasons: [...run.reasons, ...waiting, ...lost], next }
  }
  if (run.kind === 'refusing')
    return { verdict: 'refusing', reasons: [...run.reasons, ...waiting, ...lost], next: mend }
  if (mend !== null) return { verdict: 'healthy', reasons: [...run.reasons, ...lost, ...waiting], next: mend }
  if (transport === 'pull' && pending > 0)
    return { verdict: 'waiting', reasons: waiting, next: `tidings deliveries take ${id}` }
  if (isIdle(facts)) return idle(id, { pending, waiting, hasPings: tried.length > 0, latest })
  return { verdict: 'healthy', reasons: [...run.reasons, ...lost, ...waiting], next: null }
}

/** Nothing but pings was sent: no event was queued for it, or none has been tried yet. */
const isIdle = ({ tried }: Facts): boolean => tried.every(({ eventType }) => eventType === 'ping')

const latestEvent = async (session: Session, span: Window): Promise<Latest | undefined> => {
  const { events } = await session.graphql<{ events: Latest[] }>(
    'query ($query: MangoQuery) { events(query: $query) { id type time } }',
    {
      query: {
        selector: { $and: [...conditionsOf(span, 'time'), { type: { $ne: 'ping' } }, { example: false }] },
        sort: [{ time: 'desc' }],
        limit: 1,
      },
    },
  )
  return events[0]
}

type Idle = { pending: number; waiting: Reason[]; hasPings: boolean; latest: Latest | undefined }

const idle = (id: string, { pending, waiting, hasPings, latest }: Idle): Verdict => {
  const ping = `tidings webhooks ping ${id}`
  if (pending > 0) {
    const nothing = { code: 'nothing_sent', message: 'Nothing has been tried yet.', at: null }
    return { verdict: 'idle', reasons: [nothing, ...waiting], next: ping }
  }
  const message = `${hasPings ? 'Only pings were' : 'Nothing was'} queued for it in this time.`
  const nothing = { code: hasPings ? 'only_pings' : 'nothing_sent', message, at: null }
  if (latest === undefined) {
    const none = { code: 'no_events', message: 'No event that you see happened in this time.', at: null }
    return { verdict: 'idle', reasons: [nothing, none], next: ping }
  }
  const happened = `The latest event that you see is ${latest.type}, and did not go to it:`
  const reasons = [nothing, { code: 'latest_event', message: happened, at: latest.time }]
  return { verdict: 'idle', reasons, next: `tidings why ${id} ${latest.id}` }
}

type Run = { kind: 'healthy' | 'failing' | 'refusing' | 'throttled' | 'none'; reasons: Reason[] }

/** The newest attempts with the same kind of answer: what it is, since when, and how it was before. */
const runOf = (tried: Seen[]): Run => {
  const newest = tried
    .flatMap(({ attempts: [last], first: [first] }) => (last ? [{ ...last, begunAt: (first ?? last).startedAt }] : []))
    .toSorted((a, b) => (a.startedAt < b.startedAt ? 1 : -1))
  const [first] = newest
  if (first === undefined) return { kind: 'none', reasons: [] }
  const kind = kindOf(first)
  const end = newest.findIndex(each => kindOf(each) !== kind)
  const run = end === -1 ? newest : newest.slice(0, end)
  const before = end === -1 ? undefined : newest[end]
  // Not before it answered otherwise: a delivery may have failed then too, and been alone.
  const begins = run.map(({ begunAt, startedAt }) => (before && begunAt < before.startedAt ? startedAt : begunAt))
  const since = begins.reduce((one, other) => (one < other ? one : other))
  if (kind === 'healthy') {
    return { kind, reasons: [{ code: 'answers', message: `It answers ${first.statusCode}.`, at: first.startedAt }] }
  }
  const alike = run.filter(each => answer(each) === answer(first)).length
  const detail = first.failureDetail ? ` (${cellText(first.failureDetail)})` : ''
  const many = `${alike} of the last ${count(run.length, 'delivery', 'deliveries')}`
  const message = `It ${answer(first)}${detail}, ${many}, since:`
  const was =
    before === undefined
      ? `None of the ${run.length === LOOKED_AT ? 'last ' : ''}${run.length} was acknowledged.`
      : kindOf(before) === 'healthy'
        ? 'Before, it was healthy, the last time:'
        : `Before, it ${answer(before)}, the last time:`
  const codes = { failing: 'failing', refusing: 'refused', throttled: 'throttled' } as const
  return {
    kind,
    reasons: [
      { code: codes[kind], message, at: since },
      { code: 'before', message: was, at: before?.startedAt ?? null },
    ],
  }
}

const kindOf = ({ statusCode }: Last): 'healthy' | 'failing' | 'refusing' | 'throttled' => {
  if (statusCode === null || statusCode >= 500 || (statusCode >= 300 && statusCode < 400)) return 'failing'
  if (statusCode === 429) return 'throttled'
  return statusCode < 300 ? 'healthy' : 'refusing'
}

const answer = ({ statusCode, failure }: Last): string =>
  statusCode === null
    ? `gives no answer: ${cellText(failure).replaceAll('_', ' ')}`
    : `answers ${statusCode}${statusCode >= 300 && statusCode < 400 ? ' (redirects are not followed)' : ''}`

const waitingOf = (pending: number, nextAttemptAt: string | null, transport: string): Reason[] => {
  if (pending === 0) return []
  const many = count(pending, 'delivery waits', 'deliveries wait')
  const message =
    transport === 'pull'
      ? `${many} for a client to take them.`
      : `${many} and ${pending === 1 ? 'is' : 'are'} not lost${nextAttemptAt === null ? '.' : '; the next attempt:'}`
  return [{ code: 'waits', message, at: transport === 'pull' ? null : nextAttemptAt }]
}

const clientsReason = (clients: Clients): Reason => ({
  code: clients.waiting === 0 ? 'nobody_pulls' : 'pulled',
  message: `${whoWaits(clients).replace(/^n/, 'N')}.`,
  at: null,
})

/** What was not acknowledged, what becomes of it, and the command that mends it. */
type Lost = { reasons: Reason[]; mend: string | null }

const MISSED_FIELDS = `fragment missed on Delivery { id status createdAt event { id
  deliveries(query: { selector: $webhook, sort: [{ createdAt: "asc" }, { id: "asc" }] }) { id } } }`
/** So many of each status that ended first are looked at, and as many that ended last: one range of an index each. */
const A_PAGE = 100

/** Those that are the last of their event to the webhook: one that was recovered or sent again since is not lost. */
const stillMissed = (page: Missed[]): Missed[] =>
  page.filter(({ id, event }) => event === null || event.deliveries.at(-1)?.id === id)

/** The deliveries that were not acknowledged and not sent again, oldest first; `areMore` if not all were looked at. */
const lastMissed = async (
  session: Session,
  webhookId: string,
  { counts, within }: { counts: Counts; within: object[] },
): Promise<{ missed: Missed[]; areMore: boolean }> => {
  const pages = NOT_ACKNOWLEDGED.flatMap(status => {
    const number = counts[status] ?? 0
    const selector = { $and: [...within, { status }, { handledBefore: false }, { eventType: { $ne: 'ping' } }] }
    const page = (order: 'asc' | 'desc') => ({
      name: `${status}_${order}`,
      query: { selector, sort: [{ finishedAt: order }], limit: A_PAGE },
    })
    return number === 0 ? [] : number <= A_PAGE ? [page('asc')] : [page('asc'), page('desc')]
  })
  if (pages.length === 0) return { missed: [], areMore: false }
  const declared = pages.map(({ name }) => `$${name}: MangoQuery`).join(', ')
  const asked = pages.map(({ name }) => `${name}: deliveries(query: $${name}) { ...missed }`).join(' ')
  const found = await session.graphql<Record<string, Missed[]>>(
    `query ($webhook: MangoSelector, ${declared}) { ${asked} } ${MISSED_FIELDS}`,
    { webhook: { webhookId }, ...Object.fromEntries(pages.map(({ name, query }) => [name, query])) },
  )
  const looked = new Map(Object.values(found).flatMap(page => page.map(each => [each.id, each] as const)))
  const sorted = [...looked.values()].toSorted((one, other) => (one.createdAt < other.createdAt ? -1 : 1))
  return { missed: stillMissed(sorted), areMore: NOT_ACKNOWLEDGED.some(status => (counts[status] ?? 0) > 2 * A_PAGE) }
}

const lostOf = async (
  session: Session,
  webhook: Facts['webhooks'][number],
  of: { counts: Counts; within: object[] },
): Promise<Lost> => {
  const { missed, areMore } = await lastMissed(session, webhook.id, of)
  const healing = await healingReasons(session, webhook, missed.at(-1)?.event?.id)
  const [oldest] = missed
  if (oldest === undefined) return { reasons: healing, mend: null }
  const lost = NOT_ACKNOWLEDGED.flatMap(status => {
    const number = missed.filter(each => each.status === status).length
    return number === 0 ? [] : [`${number} ${status}`]
  })
  const heals = healing.some(({ code }) => code === 'heals')
  const number = areMore ? `of the first and last ${A_PAGE} alone ${lost.join(', ')}` : lost.join(', ')
  const message = `${heals ? 'Not acknowledged' : 'Not sent again by themselves'}: ${number}, since:`
  return {
    reasons: [{ code: 'not_acknowledged', message, at: oldest.createdAt }, ...healing],
    mend: heals
      ? `tidings webhooks ping ${webhook.id}`
      : `tidings webhooks recover ${webhook.id} --since ${oldest.createdAt.replace('+00:00', 'Z')}`,
  }
}

const VERDICTS: Record<WebhookVerdict, [text: string, colour: 'green' | 'yellow' | 'red' | 'dim']> = {
  healthy: ['works', 'green'],
  idle: ['has nothing to do', 'dim'],
  failing: ['fails', 'red'],
  refusing: ['refuses what is sent', 'red'],
  throttled: ['has asked to wait', 'yellow'],
  waiting: ['waits for a client', 'yellow'],
  inactive: ['is inactive', 'red'],
  disabled: ['is disabled', 'red'],
  deleted: ['is deleted', 'red'],
}

export const describeWebhookWhy = (why: WebhookWhy, nowMs: number, colours: Colours): string => {
  const [text, colour] = VERDICTS[why.verdict]
  const called = calledWebhook({ name: why.name, url: why.url ?? '' }, why.webhookId)
  const evidence = [`Evidence: tidings deliveries list --webhook ${cellText(why.webhookId)}`]
  return verdictLine(
    `${called} ${colours[colour](text)}.`,
    reasonLines(why.reasons, nowMs, colours),
    evidence,
    why.next,
    colours,
  )
}
