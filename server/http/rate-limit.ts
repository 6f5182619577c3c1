import { setTimeout as sleep } from 'node:timers/promises'
import type { Middleware } from 'koa'
import { TidingsError } from '../../shared/errors.ts'
import type { Clock } from '../clock.ts'
import type { Database } from '../database/connect.ts'
import { patiently } from '../database/patience.ts'
import { giveBackRequests, takeRequests, wantedBack } from '../domain/rate-limits.ts'
import { type Log, logSeldom } from '../log.ts'
import type { Authenticated } from './authenticate.ts'
import { answerError } from './request-id.ts'

const WINDOW_MS = 60_000
/**
 * A process takes requests from the shared count in portions of a hundredth of the limit: one statement for many
 * requests.
 */
const SHARES = 100
/** Beyond this part of the limit it takes only what it needs. */
const STOCKED_PART = 0.9
/** How often a process with unused requests looks whether another wants them. */
const LOOK_MS = 400
/** How long a process that finds none left waits for others to give some back before it refuses. */
const PATIENCE_MS = 1_000
const ASK_AGAIN_MS = 100
/** How long it then refuses without asking again. */
const REFUSE_MS = 1_000

type Tools = { database: Database; clock: Clock; limit: number; log: Log }

/**
 * Limits each access token to a number of requests a minute over all processes, and reports the rest in `RateLimit`
 * headers (draft-ietf-httpapi-ratelimit-headers). The limit is never exceeded, and no request is refused while a living
 * process has one left.
 *
 * @param limit requests a minute for each token; 0 for no limit
 */
export const rateLimit = ({ database, clock, limit, log }: Tools): Middleware<Authenticated> => {
  if (limit === 0) return (_ctx, next) => next()
  const shares = new Shares({ database, clock, limit, log })
  return async (ctx, next) => {
    const now = clock.now()
    const windowStart = now - (now % WINDOW_MS)
    const resetS = Math.ceil((windowStart + WINDOW_MS - now) / 1000)
    const { isLet, remaining } = await shares.use(ctx.state.token.id, windowStart, ctx.state.giveUpAt)
    ctx.set('RateLimit-Policy', `"default";q=${limit};w=${WINDOW_MS / 1000}`)
    ctx.set('RateLimit', `"default";r=${remaining};t=${resetS}`)
    if (isLet) return next()
    ctx.set('Retry-After', String(resetS))
    const message = `This access token has used its ${limit} requests of this minute. Try again in ${resetS} s.`
    answerError(ctx, 429, new TidingsError('RATE_LIMITED', message, { limit, retryAfterSeconds: resetS }))
    return undefined
  }
}

/** What this process has taken of a token's window. */
type Share = {
  windowStart: number
  /** Taken, and not used yet. */
  left: number
  /** The rest of the shared count, as last seen. */
  taken: number
  /** Requests that wait for the answer. */
  waiting: number
  asking: Promise<void> | undefined
  /** Since when none has been left, by `performance.now()`. */
  emptySince: number | undefined
  askedAt: number
}

class Shares {
  readonly #database: Database
  readonly #clock: Clock
  readonly #limit: number
  readonly #portion: number
  readonly #log: Log
  readonly #byToken = new Map<string, Share>()
  #sweptAt = 0
  #looking: NodeJS.Timeout | undefined

  constructor({ database, clock, limit, log }: Tools) {
    this.#database = database
    this.#clock = clock
    this.#limit = limit
    this.#portion = Math.max(1, Math.floor(limit / SHARES))
    this.#log = log
  }

  /** Uses one request of a token's window if any process has one left. */
  async use(tokenId: string, windowStart: number, giveUpAt: number) {
    const share = this.#shareOf(tokenId, windowStart)
    const told = (isLet: boolean) => ({ isLet, remaining: this.#limit - share.taken + share.left })
    for (;;) {
      // Checked and taken in one turn, because others could take it across an await.
      if (share.left > 0) {
        share.left -= 1
        return told(true)
      }
      if (this.#isEmpty(share)) return told(false)
      share.waiting += 1
      try {
        share.asking ??= this.#ask(tokenId, share, giveUpAt).finally(() => {
          share.asking = undefined
        })
        await share.asking
      } finally {
        share.waiting -= 1
      }
    }
  }

  /** Whether none is left in any process, as of a moment ago. */
  #isEmpty({ emptySince, askedAt }: Share): boolean {
    if (emptySince === undefined || performance.now() - askedAt >= REFUSE_MS) return false
    // With portions of one, no process has unused requests.
    return this.#portion === 1 || askedAt - emptySince >= PATIENCE_MS
  }

  #shareOf(tokenId: string, windowStart: number): Share {
    if (this.#sweptAt !== windowStart) {
      this.#sweptAt = windowStart
      for (const [id, share] of this.#byToken) if (share.windowStart < windowStart) this.#byToken.delete(id)
    }
    const known = this.#byToken.get(tokenId)
    if (known) return known
    const share: Share = {
      windowStart,
      left: 0,
      taken: 0,
      waiting: 0,
      asking: undefined,
      emptySince: undefined,
      askedAt: 0,
    }
    this.#byToken.set(tokenId, share)
    return share
  }

  async #ask(tokenId: string, share: Share, giveUpAt: number): Promise<void> {
    // Includes requests that arrive in this turn.
    await (share.emptySince === undefined ? undefined : sleep(ASK_AGAIN_MS))
    const { windowStart } = share
    const limit = this.#limit
    const stock = share.taken < STOCKED_PART * limit && share.emptySince === undefined ? this.#portion : 1
    const wanted = Math.min(limit, Math.max(stock, share.waiting))
    const taken = await patiently(() => takeRequests(this.#database, tokenId, { windowStart, wanted, limit }), giveUpAt)
    share.windowStart = Math.max(windowStart, taken.windowStart)
    share.taken = taken.taken
    share.left += taken.got
    share.askedAt = performance.now()
    share.emptySince = taken.got > 0 ? undefined : (share.emptySince ?? share.askedAt)
    if (share.left > share.waiting) this.#lookOut()
  }

  /** Gives unused requests back while another process wants them. */
  #lookOut(): void {
    this.#looking ??= setTimeout(async () => {
      try {
        await this.#giveBack()
      } catch (error) {
        logSeldom(this.#log, 'warn', 'give back', { err: error }, 'requests that are not used cannot be given back')
      }
      this.#looking = undefined
      if (this.#holders().length > 0) this.#lookOut()
    }, LOOK_MS).unref()
  }

  #holders(): string[] {
    const now = this.#clock.now()
    const isHolding = ({ left, windowStart }: Share) => left > 0 && windowStart + WINDOW_MS > now
    return [...this.#byToken].flatMap(([id, share]) => (isHolding(share) ? [id] : []))
  }

  async #giveBack(): Promise<void> {
    const holders = this.#holders()
    if (holders.length === 0) return
    for (const tokenId of await wantedBack(this.#database, holders, this.#limit)) {
      const share = this.#byToken.get(tokenId)
      if (!share || share.left === 0) continue
      const { windowStart, left: count } = share
      // From here on this process no longer has them.
      share.left = 0
      share.taken = this.#limit
      await giveBackRequests(this.#database, tokenId, { windowStart, count, limit: this.#limit })
    }
  }
}
