import type { Middleware } from 'koa'
import { TidingsError } from '../../shared/errors.ts'
import type { Clock } from '../clock.ts'
import type { Database } from '../database/connect.ts'
import { patiently } from '../database/patience.ts'
import { takeRequests } from '../domain/rate-limits.ts'
import type { Authenticated } from './authenticate.ts'
import { answerError } from './request-id.ts'

const WINDOW_MS = 60_000
/** A process takes its requests from the shared count in hundredths of the limit: one statement for many requests. */
const SHARES = 100

/** What this process has taken of a token's window and not used yet. */
type Share = { windowStart: number; left: number; used: number }

/**
 * Limits each access token to so many requests a minute, over all server processes together, and tells how many are
 * left in `RateLimit` headers (draft-ietf-httpapi-ratelimit-headers). The limit is never exceeded; with several
 * processes up to a hundredth of it a process may go unused.
 *
 * @param limit requests a minute a token; 0 for no limit
 */
export const rateLimit = ({
  database,
  clock,
  limit,
}: {
  database: Database
  clock: Clock
  limit: number
}): Middleware<Authenticated> => {
  if (limit === 0) return (_ctx, next) => next()
  const portion = Math.max(1, Math.floor(limit / SHARES))
  const shares = new Map<string, Share>()
  let sweptAt = 0

  const take = async (tokenId: string, windowStart: number, giveUpAt: number): Promise<Share> => {
    if (sweptAt !== windowStart) {
      sweptAt = windowStart
      for (const [id, share] of shares) if (share.windowStart < windowStart) shares.delete(id)
    }
    const share = shares.get(tokenId) ?? { windowStart, left: 0, used: 0 }
    shares.set(tokenId, share)
    if (share.left > 0 || share.used >= limit) return share
    share.used = await patiently(() => takeRequests(database, tokenId, windowStart, portion), giveUpAt)
    share.left += Math.max(0, Math.min(portion, limit - (share.used - portion)))
    return share
  }

  return async (ctx, next) => {
    const now = clock.now()
    const windowStart = now - (now % WINDOW_MS)
    const resetS = Math.ceil((windowStart + WINDOW_MS - now) / 1000)
    const share = await take(ctx.state.token.id, windowStart, ctx.state.giveUpAt)
    const allowed = share.left > 0
    if (allowed) share.left -= 1
    const remaining = Math.max(0, limit - share.used) + share.left
    ctx.set('RateLimit-Policy', `"default";q=${limit};w=${WINDOW_MS / 1000}`)
    ctx.set('RateLimit', `"default";r=${remaining};t=${resetS}`)
    if (allowed) return next()
    ctx.set('Retry-After', String(resetS))
    const message = `This access token has made its ${limit} requests of this minute. Try again in ${resetS} s.`
    answerError(ctx, 429, new TidingsError('RATE_LIMITED', message, { limit, retryAfterSeconds: resetS }))
    return undefined
  }
}
