import type { Check } from '../../shared/delivery-token.ts'
import { toIso } from '../../shared/time.ts'
import { duration, relativeTime } from '../output/time.ts'

// Advice on a token that is not valid now, and whose clock or mistake that is.

/** Clocks that differ by less count as equal, because a `Date` header has whole seconds. */
const SAME_CLOCK_MS = 5_000
const TIMEOUT_MS = 5_000

const FRESH = 'every attempt carries a fresh token, valid for 5 minutes'

/** @param aheadMs how far this machine's clock is ahead of the issuer's, if that is known */
export const onTime = (
  { name, advice }: Check,
  claims: Record<string, unknown>,
  at: Date | undefined,
  aheadMs: number | undefined,
): string | undefined => {
  const { exp, iat } = claims
  const nowMs = at?.getTime() ?? Date.now()
  const own = name === 'expiry' ? exp : iat
  const fault = onNumber(name === 'expiry' ? 'exp' : 'iat', own)
  if (fault !== undefined) return fault
  if (name === 'issued_at' && (iat as number) * 1000 <= nowMs + TOLERANCE_MS) return onNotBefore(claims.nbf, nowMs)
  // The other claim has its own advice.
  if (typeof exp !== 'number' || typeof iat !== 'number' || isMilliseconds(iat)) return advice
  const expired = name === 'expiry' && nowMs >= exp * 1000
  if (name === 'expiry' && !expired) return advice
  if (at !== undefined) {
    return expired
      ? `By the time of --at it had expired ${ago(exp * 1000, nowMs)}.`
      : `By the time of --at it had not been made yet: ${FRESH}.`
  }
  const when = expired ? `It expired ${ago(exp * 1000, nowMs)}.` : `It is from ${ahead(iat * 1000, nowMs)} ahead.`
  const asOf = expired ? ` To check it at the time it was made: --at ${toIso(iat * 1000).replace('.000', '')}` : ''
  if (aheadMs === undefined) {
    return expired
      ? `${when} If it came just now, this machine’s clock is ahead, or the sender’s behind: ${FRESH}.${asOf}`
      : `${when} This machine’s clock is behind, or the sender’s ahead: switch network time on.`
  }
  if (Math.abs(aheadMs) < SAME_CLOCK_MS) {
    return expired
      ? `${when} This machine’s clock agrees with the issuer’s, so the token is old: ${FRESH}.${asOf}`
      : `${when} This machine’s clock agrees with the issuer’s, which did not make it then: reject it.`
  }
  const side = aheadMs > 0 ? 'ahead of' : 'behind'
  const off = `This machine’s clock is ${duration(Math.abs(aheadMs))} ${side} the issuer’s`
  const byIssuer = nowMs - aheadMs
  if (!expired) return `${when} ${off}: switch network time on.`
  return byIssuer < exp * 1000
    ? `${when} ${off}, by which it is still good: switch network time on.`
    : `${when} ${off}, by which it has expired too: the token is old, since ${FRESH}.${asOf}`
}

const ago = (thenMs: number, nowMs: number): string =>
  nowMs - thenMs < 3_600_000 ? `${duration(nowMs - thenMs)} ago` : relativeTime(thenMs, nowMs)
const ahead = (thenMs: number, nowMs: number): string => duration(thenMs - nowMs)

/** The tolerance between two correct clocks. */
const TOLERANCE_MS = 60_000

/** Seconds reach this in the year 5138, milliseconds did in 1973. */
const isMilliseconds = (value: number): boolean => Math.abs(value) > 1e11

const NOT_MADE = 'the service did not make it, so reject it'

/** The fault of a time that is not a number of seconds. */
const onNumber = (name: string, value: unknown): string | undefined => {
  if (value === undefined) return `There is no ${name}, which every delivery token has: ${NOT_MADE}.`
  if (typeof value === 'number' && isMilliseconds(value)) {
    return `${name} looks like milliseconds; it is a number of seconds since 1970 (RFC 7519): ${NOT_MADE}.`
  }
  if (typeof value === 'number') return undefined
  const kind = typeof value === 'string' ? 'a text' : 'no number'
  return `${name} is ${kind}; it is a number of seconds since 1970 (RFC 7519): ${NOT_MADE}.`
}

const onNotBefore = (nbf: unknown, nowMs: number): string => {
  const none = 'Delivery tokens have no nbf'
  const fault = onNumber('nbf', nbf)
  if (fault !== undefined) return `${none}. ${fault}`
  return `${none}; this one is not to be accepted for another ${ahead((nbf as number) * 1000, nowMs)}: ${NOT_MADE}.`
}

/**
 * How far this machine's clock is ahead of the server at a URL, in milliseconds; undefined if its answer has no time.
 */
export const clockAhead = async (url: string): Promise<number | undefined> => {
  const startedAt = Date.now()
  try {
    const response = await fetch(url, {
      method: 'HEAD',
      redirect: 'error',
      cache: 'no-store',
      signal: AbortSignal.timeout(TIMEOUT_MS),
    })
    // A cached answer has the time at which it was cached, and its age.
    const age = Number(response.headers.get('age') ?? 0) * 1000
    const theirs = Date.parse(response.headers.get('date') ?? '')
    const off = (startedAt + Date.now()) / 2 - (theirs + age)
    return Number.isNaN(off) ? undefined : off
  } catch {
    return undefined
  }
}
