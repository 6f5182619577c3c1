import type { DeliveryStatus, WebhookStatus } from '../../shared/vocabulary.ts'
import type { Ask } from '../connection/client.ts'
import { CliError, exitCodes } from '../errors.ts'
import { cellText } from '../output/output.ts'
import { count, relativeIso } from '../output/time.ts'
import type { Attempt } from '../resources/timeline.ts'

const INTERVAL_MS = 5_000
/** A running delivery loop takes due deliveries within about a second. */
const OVERDUE_MS = 20_000
/** Further ones add no information. */
const TOLD_AT_ONCE = 3

interface SentDelivery {
  id: string
  eventType: string
  status: DeliveryStatus
  attemptCount: number
  nextAttemptAt: string | null
  attempts: Pick<Attempt, 'number' | 'statusCode' | 'failure' | 'failureDetail'>[]
}

interface WebhookState {
  status: WebhookStatus
  statusReason: string | null
  deliveries: SentDelivery[]
}

const DOCUMENT = `query ($query: MangoQuery) {
  webhooks(query: $query) {
    status statusReason
    deliveries(query: { sort: [{ id: "desc" }], limit: 50 }) {
      id eventType status attemptCount nextAttemptAt
      attempts(query: { sort: [{ number: "desc" }], limit: 1 }) { number statusCode failure failureDetail }
    }
  }
}`

export interface ReachabilityOptions {
  ask: Ask
  webhookId: string
  /** The last delivery from before this run; empty if there was none. */
  after: string
  /** The registered URL, and the address of this receiver. */
  url: string
  receiverUrl: string
  /** The number of requests that arrived here for a delivery. */
  arrivals: (deliveryId: string) => number
  say: (text: string) => void
}

/**
 * Detects whether the server's deliveries arrive here by asking the server: an attempt that never arrived means that
 * something in between is wrong, which a waiting receiver would not notice.
 */
export class ReachabilityWatch {
  readonly #options: ReachabilityOptions
  /** The attempts of a delivery at the last look, and the arrivals that they explain. */
  readonly #known = new Map<string, { attempts: number; arrivals: number }>()
  #status: WebhookStatus | 'gone' = 'active'
  #away = false
  #overdueTold = false
  #advised = false
  #timer: NodeJS.Timeout | undefined

  constructor(options: ReachabilityOptions) {
    this.#options = options
  }

  /** Looks every few seconds from now on. */
  start(): void {
    this.#timer = setTimeout(async () => {
      await this.look()
      if (this.#timer) this.start()
    }, INTERVAL_MS).unref()
  }

  stop(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
  }

  /** Reports what is new since the last look. */
  async look(): Promise<void> {
    const { say, webhookId } = this.#options
    let state: WebhookState | undefined
    try {
      state = await this.#state()
      if (this.#away) say('The server is back.')
      this.#away = false
    } catch (error) {
      if (!(error instanceof CliError)) throw error
      if (!this.#away) {
        const wait = error.exitCode === exitCodes.unreachable ? ' Nothing arrives until it is back; still waiting.' : ''
        say(`${error.message}${wait}`)
      }
      this.#away = true
      return
    }
    if (!state) {
      if (this.#status !== 'gone')
        say(`The webhook ${webhookId} is gone from the server. Start again to register it anew.`)
      this.#status = 'gone'
      return
    }
    if (state.status !== this.#status && state.status !== 'active') {
      const reason = state.statusReason ? `: ${cellText(state.statusReason)}` : ''
      say(
        `The webhook is now ${cellText(state.status)}${reason}. Nothing more is sent. Make it active again with: ` +
          `tidings webhooks enable ${webhookId}`,
      )
    }
    this.#status = state.status
    this.#tellMissed(state.deliveries)
    this.#tellOverdue(state.deliveries)
  }

  #tellMissed(deliveries: SentDelivery[]): void {
    const { say } = this.#options
    const missed = deliveries.filter(delivery => isAnswered(delivery) && this.#isMissed(delivery))
    for (const { id, eventType, status, nextAttemptAt, attempts } of missed.slice(0, TOLD_AT_ONCE)) {
      const next =
        nextAttemptAt === null ? `It is ${status}.` : `Next attempt ${relativeIso(nextAttemptAt, Date.now())}.`
      say(
        `Not received: ${cellText(eventType)} ${cellText(id)} was sent and did not arrive here. ` +
          `The server found ${outcome(attempts[0]!)}. ${next}`,
      )
    }
    if (missed.length > TOLD_AT_ONCE) say(`And ${count(missed.length - TOLD_AT_ONCE, 'other', 'others')}.`)
    const [first] = missed
    if (first && !this.#advised) {
      say(this.#advice(first.attempts[0]!))
      this.#advised = true
    }
  }

  /** Attempts since the last look without an arrival. An arrival may come before its attempt is recorded. */
  #isMissed({ id, attemptCount }: SentDelivery): boolean {
    const known = this.#known.get(id) ?? { attempts: 0, arrivals: 0 }
    const made = attemptCount - known.attempts
    const arrived = Math.min(made, this.#options.arrivals(id) - known.arrivals)
    this.#known.set(id, { attempts: attemptCount, arrivals: known.arrivals + arrived })
    return made > 0 && arrived === 0
  }

  #tellOverdue(deliveries: SentDelivery[]): void {
    const late = deliveries.filter(
      ({ status, nextAttemptAt }) =>
        status === 'pending' && nextAttemptAt !== null && Date.parse(nextAttemptAt) < Date.now() - OVERDUE_MS,
    )
    if (late.length > 0 && !this.#overdueTold) {
      this.#options.say(
        `${count(late.length, 'delivery is', 'deliveries are')} due and not attempted. ` +
          'Does a server with the role “delivery” run? Whoever runs it can check: tidings server doctor',
      )
    }
    this.#overdueTold = late.length > 0
  }

  #advice({ statusCode, failure }: SentDelivery['attempts'][number]): string {
    const { url, receiverUrl } = this.#options
    if (failure === 'address_not_allowed' || failure === 'dns_error') {
      return (
        'The server sends to public addresses only. Use a tunnel and --public-url, ' +
        'or allow this address on the server with TIDINGS_ALLOW_NETWORKS.'
      )
    }
    if (url !== receiverUrl) return `Does ${cellText(url)} lead to ${receiverUrl}?`
    return statusCode === null
      ? `The server tries ${url} from its own machine. If that is not this one, use a tunnel and --public-url.`
      : `Something else answers at ${url} on the server’s machine. If that is not this one, ` +
          'use a tunnel and --public-url.'
  }

  async #state(): Promise<WebhookState | undefined> {
    const { ask, webhookId, after } = this.#options
    const { webhooks } = await ask<{ webhooks: WebhookState[] }>(DOCUMENT, { query: { selector: { id: webhookId } } })
    const [found] = webhooks
    return found && { ...found, deliveries: found.deliveries.filter(({ id }) => id > after) }
  }
}

/** Only ended attempts count; one under way may still arrive. */
const isAnswered = ({ attempts: [attempt] }: SentDelivery): boolean =>
  attempt !== undefined && (attempt.statusCode !== null || attempt.failure !== null)

const outcome = ({ statusCode, failure, failureDetail }: SentDelivery['attempts'][number]): string =>
  statusCode === null
    ? `no answer, ${cellText(failure?.replaceAll('_', ' '))}${failureDetail ? ` (${cellText(failureDetail)})` : ''}`
    : `the answer ${statusCode}`
