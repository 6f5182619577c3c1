import { parseIso } from '../../shared/time.ts'
import {
  type DeliveryStatus,
  deliveryStatuses,
  type FailureReason,
  type LOST,
  type WebhookRecovery,
  type WebhookStatus,
} from '../../shared/vocabulary.ts'
import { usageError } from '../errors.ts'
import { neutralise } from '../output/neutralise.ts'
import { type Colours, cellText, describeFields } from '../output/output.ts'
import { asStarted } from '../output/program.ts'
import { count, dateAndTime, duration, relativeIso, relativeTime, zoneAt, zoneName } from '../output/time.ts'
import { entryFor } from '../output/words.ts'
import { calledWebhook, statusCell } from './cells.ts'

export interface Attempt {
  number: number
  startedAt: string
  durationMs: number | null
  statusCode: number | null
  failure: FailureReason | typeof LOST | null
  failureDetail: string | null
  response: string | null
  retryAfter: string | null
  remoteAddress?: string | null
  /** The access token of the client that took it, if the webhook is pulled. */
  pulledBy?: { name: string } | null
  httpVersion?: string | null
  phases?: { [phase in 'lookupMs' | 'connectMs' | 'tlsMs' | 'firstByteMs']: number | null } | null
  requestHeaders?: Record<string, string> | null
  responseHeaders?: Record<string, string> | null
  keyId?: string | null
}

export interface Delivery {
  id: string
  webhookId: string
  webhook: {
    id: string
    url: string
    name?: string | null
    status: WebhookStatus
    statusReason: string | null
    deletedAt?: string | null
    recovery?: WebhookRecovery
  } | null
  eventType: string
  event: { id: string; payload: unknown; example?: boolean } | null
  status: DeliveryStatus
  /** Whether the receiver had handled it at an earlier attempt, whose answer was late or lost. */
  handledBefore?: boolean
  attemptCount: number
  nextAttemptAt: string | null
  /** The delivery of the same project that it waits for, if its webhook keeps the order. */
  waitsFor?: { id: string; attemptCount: number; nextAttemptAt: string | null } | null
  createdAt: string
  finishedAt: string | null
  attempts: Attempt[]
  /** Another delivery to the same webhook, whose 429 holds this one. */
  heldBy?: { id: string; until: string } | undefined
}

/** The outcome of each status; two statuses are failures. */
export const outcomes: Record<DeliveryStatus, 'waiting' | 'failed' | 'delivered' | 'cancelled'> = {
  pending: 'waiting',
  rejected: 'failed',
  dropped: 'failed',
  delivered: 'delivered',
  cancelled: 'cancelled',
}

export const hasFailed = (status: DeliveryStatus): boolean => entryFor(outcomes, status) === 'failed'

/** The statuses of an option. Throws a CliError, exit code 2, for an unknown one. */
export const knownStatuses = (given: string[] | undefined): DeliveryStatus[] | undefined =>
  given?.map(status => {
    const known = deliveryStatuses.find(each => each === status)
    if (known) return known
    throw usageError(
      `${JSON.stringify(status)} is not a status of a delivery.`,
      `There are ${deliveryStatuses.join(', ')}.`,
    )
  })

/** The GraphQL selection for a delivery's timeline. */
export const deliveryFields = `id webhookId webhook { id url name status statusReason deletedAt recovery }
  eventType event { id payload example } status handledBefore attemptCount nextAttemptAt
  waitsFor { id attemptCount nextAttemptAt } createdAt finishedAt
  attempts { number startedAt durationMs statusCode failure failureDetail response retryAfter
    remoteAddress pulledBy httpVersion phases { lookupMs connectMs tlsMs firstByteMs }
    requestHeaders responseHeaders keyId }`

/** One attempt on one line: the answer and its duration. */
export const describeAttempt = (attempt: Attempt, colours: Colours): string => {
  const took = attempt.durationMs === null ? '' : colours.dim(`  after ${duration(attempt.durationMs)}`)
  return `${describeAnswer(attempt, colours)}${took}`
}

const describeAnswer = (attempt: Attempt, colours: Colours): string => {
  const { statusCode, failure, failureDetail, retryAfter, startedAt, durationMs } = attempt
  if (statusCode === null) {
    if (failure === null) return colours.yellow('under way')
    const detail = failureDetail ? `: ${cellText(failureDetail)}` : ''
    return colours.red(`no answer, ${cellText(failure).replaceAll('_', ' ')}${detail}`)
  }
  const colour = statusCode < 300 ? colours.green : statusCode === 429 ? colours.yellow : colours.red
  const until = retryAfter === null ? undefined : parseIso(retryAfter)
  const answeredAt = (parseIso(startedAt) ?? 0) + (durationMs ?? 0)
  const asked = until === undefined ? '' : `, asked to wait ${duration(Math.max(0, until - answeredAt))}`
  return colour(`answered ${cellText(statusCode)}${asked}`)
}

/** The data for a line about a delivery, with its last attempt. */
export type DeliveryAtAGlance = Pick<
  Delivery,
  | 'id'
  | 'webhookId'
  | 'eventType'
  | 'status'
  | 'handledBefore'
  | 'attemptCount'
  | 'nextAttemptAt'
  | 'createdAt'
  | 'finishedAt'
> & {
  webhook: { url: string; name?: string | null } | null
  attempts: Pick<Attempt, 'number' | 'startedAt' | 'durationMs' | 'statusCode' | 'failure' | 'retryAfter'>[]
}

/** Reduces a delivery to that. */
export const atAGlance = (delivery: Delivery): DeliveryAtAGlance => ({
  ...delivery,
  attempts: delivery.attempts.slice(-1),
})

/** The GraphQL selection of DeliveryAtAGlance. */
export const glanceFields = `id webhookId webhook { url name } eventType
  status handledBefore attemptCount nextAttemptAt createdAt finishedAt
  attempts(query: { sort: [{ number: "desc" }], limit: 1 }) {
    number startedAt durationMs statusCode failure retryAfter }`

/** A sign for its state, distinct without colour too. */
export const statusMark = ({ status, attempts }: DeliveryAtAGlance, colours: Colours): string => {
  switch (entryFor(outcomes, status)) {
    case 'delivered':
      return colours.green('✓')
    case 'failed':
      return colours.red('✗')
    case 'cancelled':
      return colours.dim('–')
    default:
      return attempts.length === 0 ? colours.dim('·') : colours.yellow('!')
  }
}

/** The state of a delivery in a few words: `delivered (200, 12 ms)`, `again in 5 s (500)`, `queued`. */
export const describeState = (
  { status, handledBefore, attempts, nextAttemptAt }: DeliveryAtAGlance,
  nowMs: number,
): string => {
  if (handledBefore) return 'handled before'
  const [attempt] = attempts
  const answer =
    attempt === undefined
      ? undefined
      : attempt.statusCode === null
        ? (attempt.failure?.replaceAll('_', ' ') ?? 'under way')
        : String(attempt.statusCode)
  if (status !== 'pending') {
    const took = status === 'delivered' && attempt?.durationMs ? `, ${duration(attempt.durationMs)}` : ''
    return cellText(answer === undefined || status === 'cancelled' ? status : `${status} (${answer}${took})`)
  }
  if (answer === undefined) return nextAttemptAt === null ? 'waits for its turn' : 'queued'
  return cellText(nextAttemptAt === null ? answer : `again ${relativeIso(nextAttemptAt, nowMs)} (${answer})`)
}

/**
 * The timeline of a delivery for people: each attempt with its answer, the waits between, and what happens next and
 * when. Times are in this machine's zone, which the timeline names.
 *
 * @param options.full shows the headers and the whole kept answer of each attempt
 */
export const describeDelivery = (
  delivery: Delivery,
  nowMs: number,
  colours: Colours,
  { full = false }: { full?: boolean } = {},
): string => {
  const { webhook, event } = delivery
  const queuedAt = parseIso(delivery.createdAt)
  const zone = zoneAt(queuedAt ?? nowMs)
  const state = webhook?.deletedAt ? colours.dim('deleted') : webhook ? statusCell(webhook.status, colours) : ''
  const head = describeFields(
    [
      ['Delivery', `${cellText(delivery.id)}  ${statusCell(delivery.status, colours)}`],
      ['Event', `${cellText(delivery.eventType)}${event?.example ? `  ${colours.dim('example')}` : ''}`],
      ['Webhook', `${calledWebhook(webhook, delivery.webhookId)}${state && `  ${state}`}`],
      ...(webhook?.name ? [['', cellText(webhook.url)] as [string, string]] : []),
      ['', cellText(delivery.webhookId)],
      ['Times', `${zoneName(zone)}, as on this machine`],
    ],
    colours,
  )
  const line = (iso: string, text: string): string => `${colours.dim(clock(iso, zone).padEnd(INDENT - 2))}  ${text}`
  const lines = [line(delivery.createdAt, 'queued')]
  let settledAt = queuedAt
  for (const attempt of delivery.attempts) {
    const startedAt = parseIso(attempt.startedAt)
    if (attempt.number > 1 && settledAt !== undefined && startedAt !== undefined) {
      lines.push(colours.dim(`${' '.repeat(INDENT)}waited ${duration(Math.max(0, startedAt - settledAt))}`))
    }
    lines.push(line(attempt.startedAt, `attempt ${attempt.number}  ${describeAttempt(attempt, colours)}`))
    lines.push(...describeConnection(attempt).map(text => `${' '.repeat(INDENT)}${colours.dim(text)}`))
    if (full) lines.push(...describeHeaders(attempt, colours).map(text => `${' '.repeat(INDENT)}${text}`))
    if (attempt.response) {
      // The last answer is shown in full, because readers look for it.
      const said = full || attempt === delivery.attempts.at(-1) ? attempt.response : shorten(attempt.response)
      lines.push(`${' '.repeat(INDENT)}${colours.dim('it said:')} ${cellText(said)}`)
    }
    settledAt = startedAt === undefined ? undefined : startedAt + (attempt.durationMs ?? 0)
  }
  const payload = (JSON.stringify(event?.payload, null, 2) ?? '–').split('\n').map(each => neutralise(each))
  const next = asStarted(entryFor(NEXT, delivery.status)?.(delivery, nowMs, zone, colours) ?? '')
  return `${head}\n${lines.join('\n')}\n\n${next}\n\n${colours.dim('Payload')}\n${payload.join('\n')}\n`
}

const PHASES = [
  ['lookupMs', 'look-up'],
  ['connectMs', 'connection'],
  ['tlsMs', 'TLS'],
  ['firstByteMs', 'first byte'],
] as const

/** Who took a delivery; or where its request went, and where its time went. None if it had no connection. */
const describeConnection = ({ remoteAddress, httpVersion, phases, pulledBy }: Attempt): string[] => {
  if (pulledBy) {
    return [
      `taken by the access token ${cellText(pulledBy.name)}${remoteAddress ? ` from ${cellText(remoteAddress)}` : ''}`,
    ]
  }
  if (!httpVersion) return []
  const took = PHASES.flatMap(([name, title]) => {
    const ms = phases?.[name]
    return typeof ms === 'number' ? [`${title} ${duration(ms)}`] : []
  })
  const kept = typeof phases?.connectMs === 'number' ? '' : ' on a kept connection'
  const to = remoteAddress ? `to ${cellText(remoteAddress)}, ` : ''
  return [`${to}HTTP/${cellText(httpVersion)}${kept}${took.length > 0 ? `: ${took.join(', ')}` : ''}`]
}

const describeHeaders = ({ requestHeaders, responseHeaders, keyId }: Attempt, colours: Colours): string[] => [
  ...(keyId ? [`${colours.dim('signed by key')} ${cellText(keyId)}`] : []),
  ...headerLines('>', requestHeaders, colours),
  ...headerLines('<', responseHeaders, colours),
]

/** Headers as curl shows them. */
const headerLines = (mark: string, headers: Record<string, string> | null | undefined, colours: Colours): string[] =>
  Object.entries(headers ?? {}).map(
    ([name, value]) => `${colours.dim(`${mark} ${cellText(name)}:`)} ${cellText(value)}`,
  )

/** Why it is not attempted earlier, if the reason is not the schedule. */
const whyThen = ({ attempts, heldBy }: Delivery, at: number, zone: number): string => {
  const own = attempts.at(-1)
  if (own?.statusCode === 429 && own.retryAfter !== null) return ' The endpoint asked to wait until then (429).'
  if (!heldBy || (parseIso(heldBy.until) ?? 0) < at - HELD_TOLERANCE_MS) return ''
  return (
    ` It is held: the endpoint answered delivery ${cellText(heldBy.id)} with 429 and asked to wait until ` +
    `${clock(heldBy.until, zone)}; until then nothing is sent to this webhook.`
  )
}

/** The delivery that has the turn, if the webhook keeps the order of its projects. */
const whyItWaits = ({ waitsFor }: Delivery, zone: number): string => {
  if (!waitsFor) return ''
  const { id, attemptCount, nextAttemptAt } = waitsFor
  const next = nextAttemptAt === null ? '' : `, at ${clock(nextAttemptAt, zone)}`
  return (
    ` It waits for delivery ${cellText(id)}, which precedes it in the order of its project, to finish ` +
    `(its next is attempt ${attemptCount + 1}${next}). See: tidings deliveries show ${cellText(id)}`
  )
}

/** Held deliveries of one endpoint are spread a little in time. */
const HELD_TOLERANCE_MS = 60_000

/** What happens to a delivery next, and what a reader can do. */
const NEXT: Record<DeliveryStatus, (delivery: Delivery, nowMs: number, zone: number, colours: Colours) => string> = {
  pending: (delivery, nowMs, zone, colours) => {
    const number = delivery.attemptCount + 1
    const at = delivery.nextAttemptAt === null ? undefined : parseIso(delivery.nextAttemptAt)
    if (at === undefined) return `Next: attempt ${number}, when its turn comes.${whyItWaits(delivery, zone)}`
    if (at > nowMs) {
      const next = `Next: attempt ${number} ${relativeTime(at, nowMs)}, at ${clock(delivery.nextAttemptAt!, zone)}.`
      return `${next}${whyThen(delivery, at, zone)}`
    }
    const line = `Next: attempt ${number}, due ${relativeTime(at, nowMs)}.`
    return nowMs - at < 20_000
      ? line
      : `${line} ${colours.yellow('It is late: does a server with the role “delivery” run?')}`
  },
  delivered: ({ attemptCount }) => `Delivered after ${count(attemptCount, 'attempt')}. Nothing more is sent.`,
  rejected: delivery => {
    if (delivery.handledBefore) {
      return (
        'Handled before, acknowledged late: the receiver had handled it at an earlier attempt, whose answer did not ' +
        'come in time, and refused this one as a replay. There is nothing to do.'
      )
    }
    const statusCode = delivery.attempts.at(-1)?.statusCode
    const token = statusCode === 401 ? ' 401 means that it did not accept the token: check it with tidings verify.' : ''
    return (
      `The receiver answered ${statusCode ?? '4XX'}, which rejects the request as invalid: ` +
      `it is not sent again.${token} When the receiver works again: ${redeliver(delivery)}`
    )
  },
  dropped: delivery => {
    const { webhook, webhookId, event, eventType } = delivery
    if (webhook?.recovery === 'automatic' && event && !event.example && eventType !== 'ping') {
      return (
        'The last retry failed too. Its webhook heals itself: whether and when the event is sent again says ' +
        `tidings why ${cellText(webhookId)} ${cellText(event.id)}`
      )
    }
    const after = `When the endpoint works again: ${redeliver(delivery)}`
    return `The last retry failed too: it is not sent again by itself. ${after}`
  },
  cancelled: ({ webhook, webhookId, createdAt }) => {
    const reason = webhook?.statusReason ? ` (${cellText(webhook.statusReason)})` : ''
    return (
      `Cancelled because its webhook left the status active${reason}. Make it active again with: ` +
      `tidings webhooks enable ${cellText(webhookId)}. Send what it missed with: ` +
      `tidings webhooks recover ${cellText(webhookId)} --since ${cellText(createdAt)}`
    )
  },
}

const redeliver = ({ id }: Delivery): string => `tidings deliveries redeliver ${cellText(id)}`

const INDENT = 21

const clock = (iso: string, zone: number): string => {
  const ms = parseIso(iso)
  return ms === undefined ? cellText(iso) : dateAndTime(ms, zone)
}

const shorten = (text: string): string => (text.length > 200 ? `${text.slice(0, 200)}…` : text)
