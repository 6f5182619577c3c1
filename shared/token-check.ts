import { compactVerify, importJWK } from 'jose'
import { fromBase64url, isBase64url, sha256, toBytes, toText } from './bytes.ts'
import { show } from './show.ts'
import { type Content, CUT_OR_CHANGED, type FormatFault, isObject, read } from './token-format.ts'

// The checks of a delivery token, one function each; `delivery-token.ts` makes them all. Part of the receiver kit:
// nothing here, nor in what it imports, is Node's own.

/** Seconds from `iat` to `exp` of a delivery token. */
export const TOKEN_LIFETIME_SECONDS = 300
/** How far ahead of the receiver's clock a token's `iat` may be, in seconds, because two correct clocks may differ. */
const CLOCK_TOLERANCE_SECONDS = 60

/** A public key as `/.well-known/jwks.json` has it (RFC 7517, RFC 8037): keys of other kinds are kept as they are. */
export interface Jwk {
  /** `OKP` */
  kty?: string
  /** `Ed25519` */
  crv?: string
  /** The key's 32 bytes in base64url. */
  x?: string
  /** The RFC 7638 thumbprint, by which a token's header names the key. */
  kid?: string
  use?: string
  alg?: string
  [member: string]: unknown
}

export type CheckName =
  | 'format'
  | 'algorithm'
  | 'key'
  | 'signature'
  | 'issuer'
  | 'audience'
  | 'expiry'
  | 'jti'
  | 'body_digest'
  | 'webhook'
  | 'replay'
  | 'issued_at'

/**
 * One check of a token. `expected` and `found` are safe to print, whatever the token contains. `skipped` means that the
 * check could not be made, because an input was not given or an earlier check failed (`advice` says which).
 */
export type Check = {
  name: CheckName
  status: 'passed' | 'failed' | 'skipped'
  expected?: string
  found?: string
  advice?: string
}

export const checkFormat = (fault: FormatFault | undefined): Check =>
  fault === undefined ? { name: 'format', status: 'passed' } : { name: 'format', status: 'failed', ...fault }

export const checkAlgorithm = (header: Content): Check => {
  if (header === undefined) return unread('algorithm', 'header')
  const alg = read(header, 'alg')
  if (alg === 'EdDSA') return { name: 'algorithm', status: 'passed', expected: 'EdDSA', found: 'EdDSA' }
  const advice = 'Reject it: a token that chooses its own algorithm is a known attack.'
  return { name: 'algorithm', status: 'failed', expected: 'EdDSA', found: show(alg), advice }
}

export const findKey = (header: Content, keys: readonly Jwk[]): { key?: Jwk; check: Check } => {
  if (header === undefined) return { check: unread('key', 'header') }
  const kid = read(header, 'kid')
  const published = keys.filter(key => isObject(key))
  const named = published.filter(it => typeof kid === 'string' && it.kid === kid)
  // Keys of different kinds may share a kid (RFC 7517 section 4.5).
  const key = named.find(isEd25519) ?? named[0]
  const expected = published.length === 0 ? 'a published key' : `one of ${published.map(it => show(it.kid)).join(', ')}`
  const found = show(kid)
  const failed = (advice: string) => ({ check: { name: 'key', status: 'failed', expected, found, advice } as const })

  if (published.length === 0) return failed('No keys were given: fetch the issuer’s /.well-known/jwks.json.')
  if (key === undefined) {
    return failed(
      'Fetch the issuer’s /.well-known/jwks.json again: keys rotate. If the kid is still not there, reject the token.',
    )
  }
  if (!isEd25519(key)) {
    const advice = 'Delivery tokens are signed with Ed25519: reject it.'
    const kind = `${show(key.kty)} ${show(key.crv)}`
    return { check: { name: 'key', status: 'failed', expected: 'an Ed25519 key', found: kind, advice } }
  }
  return { key, check: { name: 'key', status: 'passed', expected, found } }
}

const isEd25519 = (key: Jwk): boolean => key.kty === 'OKP' && key.crv === 'Ed25519'

export const checkSignature = async (token: string, key: Jwk | undefined, before: Check[]): Promise<Check> => {
  const blocking = before.find(check => check.status === 'failed')
  if (blocking !== undefined || key === undefined) {
    const advice = `Not checked: ${blocking?.name ?? 'key'} comes first.`
    return { name: 'signature', status: 'skipped', advice }
  }
  const expected = `a signature by key ${show(key.kid)}`
  const failed = (found: string, advice: string) =>
    ({ name: 'signature', status: 'failed', expected, found, advice }) as const

  const signature = token.split('.')[2]!
  const bytes = fromBase64url(signature).length
  if (bytes !== SIGNATURE_BYTES || !isBase64url(signature)) {
    return failed(
      bytes === SIGNATURE_BYTES ? 'stray bits at its end' : `${bytes} bytes of ${SIGNATURE_BYTES}`,
      CUT_OR_CHANGED,
    )
  }
  let publicKey: Awaited<ReturnType<typeof importJWK>>
  try {
    // Only the key itself counts: the other members of a JWK (alg, use, key_ops) must not decide how it is used.
    const { kty, crv, x } = key as { kty: string; crv: string; x: string }
    publicKey = await importJWK({ kty, crv, x }, 'EdDSA')
  } catch {
    return failed(
      'a published key that is not valid',
      'Fetch the keys again, and reject the token if that changes nothing.',
    )
  }
  try {
    await compactVerify(token, publicKey, { algorithms: ['EdDSA'] })
    return { name: 'signature', status: 'passed', expected }
  } catch {
    const advice = 'Header or claims were changed, or the key is not the one that signed: reject it.'
    return failed('a signature that does not match', advice)
  }
}

/** RFC 8032 section 5.1.6. */
const SIGNATURE_BYTES = 64

export const checkEqual = (
  name: 'issuer' | 'audience',
  claim: string,
  claims: Content,
  given: string | readonly string[] | undefined,
): Check => {
  if (claims === undefined) return unread(name, 'claims')
  const value = read(claims, claim)
  const found = show(value)
  if (given === undefined) return { name, status: 'skipped', found, advice: `Give the ${name} that you expect.` }
  const allowed = typeof given === 'string' ? [given] : given
  const expected = oneOf(allowed)
  if (allowed.some(it => it === value)) return { name, status: 'passed', expected, found }
  const whose = name === 'issuer' ? 'the sender’s issuer address' : 'the endpoint’s URL as it was registered'
  const advice = allowed.some(it => sameAddress(value, it))
    ? `The same address, spelled differently: compare with ${whose}, character by character.`
    : `Compare with ${whose}; if that is what was expected, the token was made for somebody else: reject it.`
  return { name, status: 'failed', expected, found, advice }
}

const oneOf = (values: readonly string[]): string =>
  values.length === 1 ? show(values[0]) : `one of ${values.map(show).join(', ')}`

const sameAddress = (a: unknown, b: string): boolean => {
  if (typeof a !== 'string' || !URL.canParse(a) || !URL.canParse(b)) return false
  return new URL(a).href.replace(/\/$/, '') === new URL(b).href.replace(/\/$/, '')
}

/** RFC 7519 section 4.1.4: not accepted on or after `exp`. */
export const checkExpiry = (claims: Content, nowSeconds: number): Check => {
  if (claims === undefined) return unread('expiry', 'claims')
  const exp = read(claims, 'exp')
  const iat = read(claims, 'iat')
  if (!isTime(exp)) return { name: 'expiry', status: 'failed', expected: 'exp, in epoch seconds', found: show(exp) }
  const found = showTime(exp)
  const expected = `later than ${showTime(nowSeconds)}`
  if (nowSeconds >= exp) {
    const advice =
      `Expired ${Math.ceil(nowSeconds - exp)} s ago. Every attempt carries a fresh token: ` +
      'check the receiver’s clock, and that it verifies on arrival.'
    return { name: 'expiry', status: 'failed', expected, found, advice }
  }
  if (isTime(iat) && (exp <= iat || exp - iat > TOKEN_LIFETIME_SECONDS)) {
    const advice = 'Tokens are valid for 5 minutes: this one was not made by the service. Reject it.'
    const allowed = `at most ${TOKEN_LIFETIME_SECONDS} s after iat, ${showTime(iat)}`
    return { name: 'expiry', status: 'failed', expected: allowed, found, advice }
  }
  return { name: 'expiry', status: 'passed', expected, found }
}

export const checkJti = (claims: Content, body: Body | undefined): Check => {
  if (claims === undefined) return unread('jti', 'claims')
  const jti = read(claims, 'jti')
  if (typeof jti !== 'string' || jti === '') {
    return { name: 'jti', status: 'failed', expected: 'the eventId', found: show(jti), advice: 'Reject it.' }
  }
  if (body === undefined) {
    return { name: 'jti', status: 'skipped', found: show(jti), advice: 'Give the body, to compare with its eventId.' }
  }
  const eventId = read(body.content, 'eventId')
  const expected = eventId === undefined ? 'a JSON body with an eventId' : show(eventId)
  if (jti === eventId) return { name: 'jti', status: 'passed', expected, found: show(jti) }
  const advice = 'The token belongs to another body, or the body was changed: reject it.'
  return { name: 'jti', status: 'failed', expected, found: show(jti), advice }
}

export type Body = { bytes: Uint8Array<ArrayBuffer>; content: Content }

export const readBody = (body: string | Uint8Array | undefined): Body | undefined => {
  if (body === undefined) return undefined
  const bytes = typeof body === 'string' ? toBytes(body) : (body as Uint8Array<ArrayBuffer>)
  try {
    const content: unknown = JSON.parse(toText(bytes))
    return { bytes, content: isObject(content) ? content : undefined }
  } catch {
    return { bytes, content: undefined }
  }
}

/**
 * Checks the claim that binds the whole body to the token. A token without it is from a server older than the claim.
 */
export const checkDigest = async (claims: Content, body: Body | undefined): Promise<Check> => {
  const name = 'body_digest'
  if (claims === undefined) return unread(name, 'claims')
  const claimed = read(claims, 'body_sha256')
  const found = show(claimed)
  if (claimed === undefined) {
    return { name, status: 'skipped', advice: 'The token has no claim body_sha256: it is from an older server.' }
  }
  if (body === undefined) return { name, status: 'skipped', found, advice: 'Give the body, to compare its SHA-256.' }
  const digest = await sha256(body.bytes)
  if (claimed === digest) return { name, status: 'passed', expected: show(digest), found }
  const advice =
    'The body is not the one that was sent, byte for byte: reject it, unless something on the way rewrote it.'
  return { name, status: 'failed', expected: `${show(digest)}, the body’s SHA-256`, found, advice }
}

/**
 * Checks whose webhook it is: others can register a webhook for this endpoint's URL, and its deliveries are signed as
 * well.
 */
export const checkWebhook = (body: Body | undefined, own: readonly string[] | undefined): Check => {
  const name = 'webhook'
  const webhookId = read(body?.content, 'webhookId')
  const found = show(webhookId)
  if (own === undefined) return { name, status: 'skipped', found, advice: 'Give the ids of your own webhooks.' }
  const expected = oneOf(own)
  if (body === undefined) return { name, status: 'skipped', expected, advice: 'Give the body, for its webhookId.' }
  if (own.some(it => it === webhookId)) return { name, status: 'passed', expected, found }
  const advice = 'Somebody else’s webhook leads to this endpoint, or one that you have not named: reject it.'
  return { name, status: 'failed', expected, found, advice }
}

export const checkReplay = (claims: Content, seen: ((jti: string) => boolean) | undefined): Check => {
  if (claims === undefined) return unread('replay', 'claims')
  const jti = read(claims, 'jti')
  if (typeof jti !== 'string') return { name: 'replay', status: 'skipped', advice: 'There is no jti to look up.' }
  const expected = 'a jti that was not handled before'
  if (seen === undefined) {
    return {
      name: 'replay',
      status: 'skipped',
      expected,
      advice: 'Keep each jti for which the event has been handled.',
    }
  }
  if (!seen(jti)) return { name: 'replay', status: 'passed', expected, found: show(jti) }
  const advice =
    'Handled before: answer 401. Record a jti only once its event is handled, so that a retry is not taken for a ' +
    'replay.'
  return { name: 'replay', status: 'failed', expected, found: show(jti), advice }
}

export const checkIssuedAt = (claims: Content, nowSeconds: number): Check => {
  if (claims === undefined) return unread('issued_at', 'claims')
  const iat = read(claims, 'iat')
  if (!isTime(iat)) return { name: 'issued_at', status: 'failed', expected: 'iat, in epoch seconds', found: show(iat) }
  const expected = `no later than ${showTime(nowSeconds)}, give or take ${CLOCK_TOLERANCE_SECONDS} s`
  const latest = nowSeconds + CLOCK_TOLERANCE_SECONDS
  if (iat > latest) {
    const advice = 'Created in the future: check the receiver’s clock.'
    return { name: 'issued_at', status: 'failed', expected, found: showTime(iat), advice }
  }
  // Delivery tokens have no nbf; if a token has one, it counts (RFC 7519 section 4.1.5).
  const nbf = read(claims, 'nbf')
  if (nbf !== undefined && !(isTime(nbf) && nbf <= latest)) {
    const found = `nbf ${isTime(nbf) ? showTime(nbf) : show(nbf)}`
    return { name: 'issued_at', status: 'failed', expected, found, advice: 'Not valid yet: reject it.' }
  }
  return { name: 'issued_at', status: 'passed', expected, found: showTime(iat) }
}

const unread = (name: CheckName, part: string): Check => ({
  name,
  status: 'skipped',
  advice: `The token’s ${part} can’t be read.`,
})

/** Whether a value is a NumericDate (RFC 7519 section 2) within the range of Date. */
const isTime = (value: unknown): value is number => typeof value === 'number' && Math.abs(value) <= 8.64e12

const showTime = (seconds: number): string => `${new Date(seconds * 1000).toISOString().replace('Z', '+00:00')}`
