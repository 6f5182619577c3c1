import type { Middleware } from 'koa'
import { TidingsError } from '../../shared/errors.ts'
import type { Clock } from '../clock.ts'
import type { Database } from '../database/connect.ts'
import { patiently } from '../database/patience.ts'
import { takeRequests } from '../domain/rate-limits.ts'
import type { Authenticated } from './authenticate.ts'
import { answerError } from './request-id.ts'

const WINDOW_MS = 60_000
/** A process takes a hundredth of the limit at a time from the shared count: one statement for many requests. */
const SHARES = 100

type Tools = { database: Database; clock: Clock; limit: number }

/**
 * Limits each access token to a number of requests a minute over all processes, and reports the rest in `RateLimit`
 * headers (draft-ietf-httpapi-ratelimit-headers). The limit is never exceeded. What other processes have taken and not
 * used is missing from it: at most a hundredth for each of them.
 *
 * @param limit requests a minute for each token; 0 for no limit
 */
export const rateLimit = ({ database, clock, limit }: Tools): Middleware<Authenticated> => {
  if (limit === 0) return (_ctx, next) => next()
  const shares = new Shares(database, limit)
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
  /** The shared count, as last seen. */
  taken: number
  /** Requests that wait for the statement. */
  waiting: number
  taking: Promise<void> | undefined
}

class Shares {
  readonly #database: Database
  readonly #limit: number
  readonly #portion: number
  readonly #byToken = new Map<string, Share>()
  #sweptAt = 0

  constructor(database: Database, limit: number) {
    this.#database = database
    this.#limit = limit
    this.#portion = Math.max(1, Math.floor(limit / SHARES))
  }

  /** Uses one request of a token's window if one is left. */
  async use(tokenId: string, windowStart: number, giveUpAt: number) {
    const share = this.#shareOf(tokenId, windowStart)
    const answer = (isLet: boolean) => ({ isLet, remaining: this.#limit - share.taken + share.left })
    for (;;) {
      // Checked and used in one turn, because others could use it across an await.
      if (share.left > 0) {
        share.left -= 1
        return answer(true)
      }
      if (share.taken === this.#limit) return answer(false)
      share.waiting += 1
      try {
        share.taking ??= this.#take(tokenId, share, giveUpAt).finally(() => {
          share.taking = undefined
        })
        await share.taking
      } finally {
        share.waiting -= 1
      }
    }
  }

  #shareOf(tokenId: string, windowStart: number): Share {
    if (this.#sweptAt !== windowStart) {
      this.#sweptAt = windowStart
      for (const [id, share] of this.#byToken) if (share.windowStart < windowStart) this.#byToken.delete(id)
    }
    const known = this.#byToken.get(tokenId)
    if (known) return known
    const share: Share = { windowStart, left: 0, taken: 0, waiting: 0, taking: undefined }
    this.#byToken.set(tokenId, share)
    return share
  }

  async #take(tokenId: string, share: Share, giveUpAt: number): Promise<void> {
    // Includes requests that arrive in this turn.
    await undefined
    const wanted = Math.min(this.#limit, Math.max(this.#portion, share.waiting))
    const asked = { windowStart: share.windowStart, wanted, limit: this.#limit }
    const { got, windowStart, taken } = await patiently(() => takeRequests(this.#database, tokenId, asked), giveUpAt)
    share.windowStart = Math.max(share.windowStart, windowStart)
    share.taken = taken
    share.left += got
  }
}
