import type { Check, Verification } from '../../shared/delivery-token.ts'
import { neutralise } from '../output/neutralise.ts'
import { jwksUrl } from './jwks.ts'
import { clockAhead, onTime } from './time-advice.ts'

/** The circumstances of a verification, apart from the token. */
export interface Circumstances {
  token: string
  /** URL or file of the keys. */
  keySource: string
  issuer: string | undefined
  /** Whether the issuer was not named and the server's URL was taken. */
  issuerAssumed: boolean
  audience: string | undefined
  /** When `--at` was given. */
  at: Date | undefined
}

/**
 * Adds advice to failed checks as far as possible: what differs in an address, which keys exist, and whose clock is
 * off. Asks the issuer for its time, unless the keys are in a file.
 */
export const withAdvice = async ({ checks, claims }: Verification, circumstances: Circumstances): Promise<Check[]> => {
  const failed = (name: Check['name']) => checks.some(check => check.name === name && check.status === 'failed')
  const isRemote = /^https?:\/\//.test(circumstances.keySource)
  const mayBeClock = failed('expiry') || failed('issued_at')
  const aheadMs = mayBeClock && isRemote ? await clockAhead(circumstances.keySource) : undefined
  return checks.map(check => {
    if (check.status !== 'failed') return check
    if (check.name === 'format') return { ...check, ...onFormat(circumstances.token) }
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
      return onKey(check, claims, circumstances)
    case 'issuer': {
      const assumed = issuerAssumed ? 'The server’s URL was taken as the issuer; if it is another, give --issuer. ' : ''
      return `${difference(issuer, claims.iss)}${assumed}${check.advice ?? ''}`
    }
    case 'audience':
      return `${difference(audience, claims.aud)}${check.advice ?? ''}`
    case 'expiry':
    case 'issued_at':
      return onTime(check, claims, circumstances.at, aheadMs)
    default:
      return undefined
  }
}

/** Recognises text that is not a token: another kind of credential, or a token damaged by copying. */
const onFormat = (token: string): Partial<Check> => {
  const [, scheme] = /^(?:authorization:\s*)?["']?(HMAC-SHA256|Basic|Digest)\s/i.exec(token) ?? []
  if (scheme?.toUpperCase() === 'HMAC-SHA256') {
    return {
      found: 'an API signature, HMAC-SHA256 …',
      advice:
        'That is the signature of a request to the API. A delivery comes with ' +
        '“Authorization: Bearer …”: take the token from that.',
    }
  }
  if (scheme !== undefined) {
    return {
      found: `credentials, ${scheme} …`,
      advice:
        'Those are a user’s credentials. A delivery comes with “Authorization: Bearer …”: take the token from that.',
    }
  }
  if (/["'“”‘’`]/.test(token)) {
    return { advice: 'There are quotes in it, from a log or a script: give the token without them.' }
  }
  if (/\s/.test(token)) {
    const what = /[\r\n]/.test(token) ? 'line breaks' : 'spaces'
    return { advice: `There are ${what} in it, as where a terminal or a mail has wrapped it: give it in one piece.` }
  }
  return {}
}

const onKey = (
  { found, expected, advice }: Check,
  { iss }: Record<string, unknown>,
  { keySource, issuer }: Circumstances,
): string | undefined => {
  if (found === 'nothing') {
    return 'The header has no kid. Each delivery token names its key: the service did not make it, so reject it.'
  }
  if (expected === 'a published key') {
    return `There is no key in ${keySource}. Fetch the issuer’s /.well-known/jwks.json, or name it with --jwks.`
  }
  if (expected === 'an Ed25519 key') {
    return (
      `The kid names a key of another kind in ${keySource}, and delivery tokens are signed with Ed25519. ` +
      'If those are the issuer’s keys, reject it; if not, name its own with --issuer or --jwks.'
    )
  }
  if (advice === undefined) return undefined
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

/** `They differ in port and path. `; empty if the two cannot be compared. */
const difference = (expected: string | undefined, found: unknown): string => {
  const [one, other] = [expected, found].map(value => (typeof value === 'string' ? URL.parse(value) : null))
  if (!one || !other) return ''
  const names = PARTS.filter(part => one[part] !== other[part]).map(part => NAMES[part])
  if (names.length === 0) return ''
  const last = names.pop()
  return `They differ in ${names.length === 0 ? last : `${names.join(', ')} and ${last}`}. `
}
