import type { Check, Verification } from '../../shared/delivery-token.ts'
import { toIso } from '../../shared/time.ts'
import { neutralise } from '../output/neutralise.ts'
import { duration, relativeTime } from '../output/time.ts'
import { jwksUrl } from './jwks.ts'

/** What is known of a verification besides the token. */
export interface Circumstances {
  /** URL or file of the keys. */
  keySource: string
  issuer: string | undefined
  /** The issuer was not named: the server's URL was taken. */
  issuerAssumed: boolean
  audience: string | undefined
  /** When `--at` was given. */
  at: Date | undefined
}

/** Two clocks that differ by less are as good as equal: a `Date` header tells whole seconds. */
const SAME_CLOCK_MS = 5_000
const TIMEOUT_MS = 5_000

/**
 * The checks, with advice on those that failed as far as the circumstances allow: what differs in an address, which
 * keys there are, and whose clock is off. Asks the issuer for its time, unless the keys are in a file.
 */
export const withAdvice = async ({ checks, claims }: Verification, circumstances: Circumstances): Promise<Check[]> => {
  const failed = (name: Check['name']) => checks.some(check => check.name === name && check.status === 'failed')
  const isRemote = /^https?:\/\//.test(circumstances.keySource)
  const mayBeClock = failed('expiry') || failed('issued_at')
  const aheadMs = mayBeClock && isRemote ? await clockAhead(circumstances.keySource) : undefined
  return checks.map(check => {
    if (check.status !== 'failed') return check
    const advice = adviceOn(check, claims ?? {}, circumstances, aheadMs)
    return advice === undefined ? check : { ...check, advice }
  })
}

const adviceOn = (
  check: Check,
  claims: Record<string, unknown>,
  circumstances: Circumstances,
  aheadMs: number | undefined,
): string | undefined => {
  const { issuer, issuerAssumed, audience } = circumstances
  switch (check.name) {
    case 'key':
      return check.found === 'nothing' ? undefined : onKey(claims, circumstances)
    case 'issuer': {
      const assumed = issuerAssumed
        ? 'The server’s URL was taken as the issuer; where it is another, give --issuer. '
        : ''
      return `${difference(issuer, claims.iss)}${assumed}${check.advice ?? ''}`
    }
    case 'audience':
      return `${difference(audience, claims.aud)}${check.advice ?? ''}`
    case 'expiry':
    case 'issued_at':
      return onTime(check, claims, circumstances, aheadMs)
    default:
      return undefined
  }
}

const onKey = ({ iss }: Record<string, unknown>, { keySource, issuer }: Circumstances): string => {
  if (typeof iss === 'string' && issuer !== undefined && iss !== issuer) {
    return (
      `The token says that ${neutralise(iss)} made it, and these are not its keys. If that is the sender that you ` +
      `mean: --issuer ${neutralise(iss)}`
    )
  }
  if (/^https?:\/\//.test(keySource)) {
    return (
      `Those are the keys at ${keySource} now. A key that is withdrawn leaves them when its last token has ` +
      'expired; a token by any other is to be rejected.'
    )
  }
  const fetch = issuer === undefined ? 'the issuer’s /.well-known/jwks.json' : jwksUrl(issuer)
  return (
    `Those are the keys in ${keySource}, which may be old, since keys rotate. Fetch ${fetch} again; ` +
    'if the kid is not there either, reject the token.'
  )
}

const PARTS = ['protocol', 'hostname', 'port', 'pathname', 'search', 'hash'] as const
const NAMES = {
  protocol: 'scheme',
  hostname: 'host',
  port: 'port',
  pathname: 'path',
  search: 'query',
  hash: 'fragment',
}

/** `They differ in port and path. `; empty where that says nothing. */
const difference = (expected: string | undefined, found: unknown): string => {
  const [one, other] = [expected, found].map(value => (typeof value === 'string' ? URL.parse(value) : null))
  if (!one || !other) return ''
  const names = PARTS.filter(part => one[part] !== other[part]).map(part => NAMES[part])
  if (names.length === 0) return ''
  const last = names.pop()
  return `They differ in ${names.length === 0 ? last : `${names.join(', ')} and ${last}`}. `
}

const FRESH = 'every attempt carries a fresh token, good for 5 minutes'

const onTime = (
  { name, advice }: Check,
  { exp, iat }: Record<string, unknown>,
  { at }: Circumstances,
  aheadMs: number | undefined,
): string | undefined => {
  if (typeof exp !== 'number' || typeof iat !== 'number') return advice
  const nowMs = at?.getTime() ?? Date.now()
  const expired = name === 'expiry' && nowMs >= exp * 1000
  if (name === 'expiry' && !expired) return advice
  if (at !== undefined) {
    return expired
      ? `By the time of --at it had expired ${ago(exp * 1000, nowMs)}.`
      : `By the time of --at it had not been made yet: ${FRESH}.`
  }
  const when = expired ? `It expired ${ago(exp * 1000, nowMs)}.` : `It is from ${ahead(iat * 1000, nowMs)} ahead.`
  const asOf = expired ? ` To check it as of when it was made: --at ${toIso(iat * 1000).replace('.000', '')}` : ''
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

/**
 * How far this machine's clock is ahead of the one that answers at a URL, in milliseconds; undefined if it does not
 * tell.
 */
const clockAhead = async (url: string): Promise<number | undefined> => {
  const startedAt = Date.now()
  try {
    const response = await fetch(url, {
      method: 'HEAD',
      redirect: 'error',
      cache: 'no-store',
      signal: AbortSignal.timeout(TIMEOUT_MS),
    })
    // A cache tells the time at which it was filled, and how long ago that was.
    const age = Number(response.headers.get('age') ?? 0) * 1000
    const theirs = Date.parse(response.headers.get('date') ?? '')
    const off = (startedAt + Date.now()) / 2 - (theirs + age)
    return Number.isNaN(off) ? undefined : off
  } catch {
    return undefined
  }
}
