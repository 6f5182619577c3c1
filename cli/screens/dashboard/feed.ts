import { CliError, exitCodes } from '../../errors.ts'
import { type Delivery, type DeliveryAtAGlance, deliveryFields, glanceFields } from '../../timeline.ts'
import { type Webhook, webhookFields } from '../../webhook.ts'

/** Sends a query or mutation and answers with its data. Throws a CliError. */
export type Ask = <Data>(document: string, variables?: object) => Promise<Data>

/** What the screen shows of deliveries, and so what a look asks for. */
export interface Wanted {
  /** Of the list; undefined if nothing can match. */
  selector: Record<string, unknown> | undefined
  /** Rows of the list that are shown, and may have changed while the list is held. */
  refresh: string[]
  /** The delivery whose story is shown. */
  storyId: string | undefined
}

export interface Look {
  /** The newest that match, the newest first. */
  newest: DeliveryAtAGlance[]
  refreshed: DeliveryAtAGlance[]
  /** Undefined if it is not there, or none was asked for. */
  story: Delivery | undefined
}

/** Rows of the list that one request asks for: more than most screens show, so that one request a look is enough at any rate. */
export const PAGE = 100
/** A screen of more webhooks than these would have no use. */
export const MOST_WEBHOOKS = 500

/** Everything that the screen shows of deliveries, in one request. */
export const lookAtDeliveries = async (ask: Ask, { selector, refresh, storyId }: Wanted): Promise<Look> => {
  const parts = [
    selector && `newest: deliveries(query: $newest) { ${glanceFields} }`,
    refresh.length > 0 && `refreshed: deliveries(query: $refreshed) { ${glanceFields} }`,
    storyId && `story: deliveries(query: $story) { ${deliveryFields} }`,
  ].filter(part => typeof part === 'string')
  if (parts.length === 0) return { newest: [], refreshed: [], story: undefined }
  const variables = {
    ...(selector && { newest: { selector, sort: [{ id: 'desc' }], limit: PAGE } }),
    ...(refresh.length > 0 && { refreshed: { selector: { id: { $in: refresh } }, limit: refresh.length } }),
    ...(storyId && { story: { selector: { id: storyId }, limit: 1 } }),
  }
  const declared = Object.keys(variables).map(name => `$${name}: MangoQuery`)
  const answer = await ask<{ newest?: DeliveryAtAGlance[]; refreshed?: DeliveryAtAGlance[]; story?: Delivery[] }>(
    `query (${declared.join(', ')}) { ${parts.join('\n')} }`,
    variables,
  )
  return { newest: answer.newest ?? [], refreshed: answer.refreshed ?? [], story: answer.story?.[0] }
}

/** The page of the list behind a row. */
export const olderDeliveries = async (
  ask: Ask,
  selector: Record<string, unknown>,
  after: string,
): Promise<DeliveryAtAGlance[]> => {
  const { deliveries } = await ask<{ deliveries: DeliveryAtAGlance[] }>(
    `query ($query: MangoQuery) { deliveries(query: $query) { ${glanceFields} } }`,
    { query: { selector, sort: [{ id: 'desc' }], limit: PAGE, after } },
  )
  return deliveries
}

export const lookAtWebhooks = async (ask: Ask): Promise<Webhook[]> => {
  const { webhooks } = await ask<{ webhooks: Webhook[] }>(
    `query ($query: MangoQuery) { webhooks(query: $query) { ${webhookFields} } }`,
    { query: { sort: [{ id: 'desc' }], limit: MOST_WEBHOOKS } },
  )
  return webhooks
}

/** How the last look went. */
export type Link =
  | { kind: 'live' }
  /** The server was not reached; it is tried again. */
  | { kind: 'away'; message: string }
  /** The access token has used up its requests of this minute. */
  | { kind: 'limited'; everyMs: number }
  /** The server refuses to answer, for instance a token that has been revoked. */
  | { kind: 'refused'; message: string }

const SLOWEST_MS = 60_000
const LIMITED_WAIT_MS = 15_000
const AWAY_MOST_MS = 15_000
/** A server that needs long for an answer is left alone for this many times as long. */
const REST = 4
/** So long after it was slowed by a rate limit, a poll is tried at twice the pace. */
const RECOVERY_MS = 10 * 60_000

/**
 * Looks again and again, one look at a time, at a pace that the server bears: slower when it is slow, slower for good when it
 * answers RATE_LIMITED (half the pace each time), and less and less often while it is away.
 */
export class Poll {
  readonly #look: () => Promise<void>
  readonly #intervalMs: () => number
  readonly #tell: (link: Link) => void
  #timer: NodeJS.Timeout | undefined
  #looking = false
  #again = false
  #stopped = false
  #slowdown = 1
  #limitedAt = 0
  #failures = 0

  constructor(options: { look: () => Promise<void>; intervalMs: () => number; tell: (link: Link) => void }) {
    this.#look = options.look
    this.#intervalMs = options.intervalMs
    this.#tell = options.tell
  }

  /** Looks at once, or right after the look that is under way; not while the server has asked for rest. */
  now(): void {
    if (this.#looking) this.#again = true
    else if (this.#failures === 0) void this.#run()
  }

  stop(): void {
    this.#stopped = true
    clearTimeout(this.#timer)
  }

  async #run(): Promise<void> {
    clearTimeout(this.#timer)
    this.#looking = true
    this.#again = false
    const startedAt = performance.now()
    let waitMs: number
    try {
      await this.#look()
      this.#failures = 0
      if (this.#slowdown > 1 && Date.now() - this.#limitedAt > RECOVERY_MS) {
        this.#slowdown /= 2
        this.#limitedAt = Date.now()
      }
      const everyMs = this.#everyMs()
      waitMs = this.#again ? 0 : Math.max(everyMs, REST * (performance.now() - startedAt))
      if (!this.#stopped) this.#tell(this.#slowdown > 1 ? { kind: 'limited', everyMs } : { kind: 'live' })
    } catch (error) {
      waitMs = this.#afterFailure(error)
    }
    this.#looking = false
    if (!this.#stopped) this.#timer = setTimeout(() => void this.#run(), waitMs)
  }

  #everyMs(): number {
    return Math.min(SLOWEST_MS, this.#intervalMs() * this.#slowdown)
  }

  /** Tells what went wrong, and answers how long to wait. */
  #afterFailure(error: unknown): number {
    if (!(error instanceof CliError)) throw error
    this.#failures += 1
    const { code, exitCode, message, hint } = error
    if (code === 'RATE_LIMITED') {
      this.#slowdown = Math.min(64, this.#slowdown * 2)
      this.#limitedAt = Date.now()
      if (!this.#stopped) this.#tell({ kind: 'limited', everyMs: this.#everyMs() })
      return Math.max(LIMITED_WAIT_MS, this.#everyMs())
    }
    const away = exitCode === exitCodes.unreachable
    if (!this.#stopped) {
      this.#tell(away ? { kind: 'away', message } : { kind: 'refused', message: hint ? `${message} ${hint}` : message })
    }
    return away ? Math.min(AWAY_MOST_MS, 1000 * 2 ** (this.#failures - 1)) : AWAY_MOST_MS
  }
}
