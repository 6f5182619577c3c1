import { fromBase64url, fromCanonicalBase64url, sha256, toBytes, toText } from './bytes.ts'
import { verifierOf } from './ed25519.ts'
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
export type Check = { name: CheckName; status: Status } & Details

type Status = 'passed' | 'failed' | 'skipped'
type Details = { expected?: string; found?: string; advice?: string }

/** A check that was made. Its words cost more than the check itself, and are made only when they are asked for. */
export type Outcome = { name: CheckName; status: Status; details?: () => Details }

export const explained = ({ name, status, details }: Outcome): Check => ({ name, status, ...details?.() })

export const checkFormat = (fault: FormatFault | undefined): Outcome =>
  fault === undefined
    ? { name: 'format', status: 'passed' }
    : { name: 'format', status: 'failed', details: () => ({ ...fault }) }

export const checkAlgorithm = (header: Content): Outcome => {
  if (header === undefined) return unread('algorithm', 'header')
  const alg = read(header, 'alg')
  const isEdDsa = alg === 'EdDSA'
  return {
    name: 'algorithm',
    status: isEdDsa ? 'passed' : 'failed',
    details: () => ({
      expected: 'EdDSA',
      found: isEdDsa ? 'EdDSA' : show(alg),
      ...(!isEdDsa && { advice: 'Reject it: a token that chooses its own algorithm is a known attack.' }),
    }),
  }
}

export const findKey = (header: Content, keys: readonly Jwk[]): { key?: Jwk; outcome: Outcome } => {
  if (header === undefined) return { outcome: unread('key', 'header') }
  const kid = read(header, 'kid')
  const named = typeof kid === 'string' ? keys.filter(key => isObject(key) && key.kid === kid) : []
  // Keys of different kinds may share a kid (RFC 7517 section 4.5).
  const key = named.find(isEd25519) ?? named[0]
  if (key !== undefined && isEd25519(key)) {
    const outcome = {
      name: 'key',
      status: 'passed',
      details: () => ({ expected: listed(keys), found: show(kid) }),
    } as const
    return { key, outcome }
  }
  return { outcome: { name: 'key', status: 'failed', details: () => noKey(kid, key, keys) } }
}

const noKey = (kid: unknown, key: Jwk | undefined, keys: readonly Jwk[]): Details => {
  if (key !== undefined) {
    const found = `${show(key.kty)} ${show(key.crv)}`
    return { expected: 'an Ed25519 key', found, advice: 'Delivery tokens are signed with Ed25519: reject it.' }
  }
  const again =
    'Fetch the issuer’s /.well-known/jwks.json again: keys rotate. If the kid is still not there, reject the token.'
  const advice = keys.some(isObject) ? again : 'No keys were given: fetch the issuer’s /.well-known/jwks.json.'
  return { expected: listed(keys), found: show(kid), advice }
}

const listed = (keys: readonly Jwk[]): string => {
  const published = keys.filter(isObject)
  return published.length === 0 ? 'a published key' : `one of ${published.map(it => show(it.kid)).join(', ')}`
}

const isEd25519 = (key: Jwk): boolean => key.kty === 'OKP' && key.crv === 'Ed25519'

export const checkSignature = (
  token: string,
  key: Jwk | undefined,
  before: readonly Outcome[],
): Outcome | Promise<Outcome> => {
  const blocking = before.find(check => check.status === 'failed')
  if (blocking !== undefined || key === undefined) {
    const advice = `Not checked: ${blocking?.name ?? 'key'} comes first.`
    return { name: 'signature', status: 'skipped', details: () => ({ advice }) }
  }
  const dot = token.lastIndexOf('.')
  const part = token.slice(dot + 1)
  const signature = fromCanonicalBase64url(part)
  if (signature?.length !== SIGNATURE_BYTES) {
    const length = fromBase64url(part).length
    const found = length === SIGNATURE_BYTES ? 'stray bits at its end' : `${length} bytes of ${SIGNATURE_BYTES}`
    return signatureBy(key, { found, advice: CUT_OR_CHANGED })
  }
  const judged = (isValid: boolean): Outcome => signatureBy(key, isValid ? undefined : NO_MATCH)
  const unusable = (): Outcome => signatureBy(key, INVALID_KEY)
  const data = toBytes(token.slice(0, dot))
  try {
    const verify = verifierOf(key)
    if (verify instanceof Promise) {
      return verify.then(it => Promise.resolve(it(data, signature)).then(judged, () => judged(false)), unusable)
    }
    const isValid = verify(data, signature)
    return isValid instanceof Promise ? isValid.then(judged, () => judged(false)) : judged(isValid)
  } catch {
    return unusable()
  }
}

const signatureBy = (key: Jwk, failure: Details | undefined): Outcome => ({
  name: 'signature',
  status: failure === undefined ? 'passed' : 'failed',
  details: () => ({ expected: `a signature by key ${show(key.kid)}`, ...failure }),
})

const NO_MATCH = {
  found: 'a signature that does not match',
  advice: 'Header or claims were changed, or the key is not the one that signed: reject it.',
}
const INVALID_KEY = {
  found: 'a published key that is not valid',
  advice: 'Fetch the keys again, and reject the token if that changes nothing.',
}

/** RFC 8032 section 5.1.6. */
const SIGNATURE_BYTES = 64

export const checkEqual = (
  name: 'issuer' | 'audience',
  claim: string,
  claims: Content,
  given: string | readonly string[] | undefined,
): Outcome => {
  if (claims === undefined) return unread(name, 'claims')
  const value = read(claims, claim)
  if (given === undefined) {
    return {
      name,
      status: 'skipped',
      details: () => ({ found: show(value), advice: `Give the ${name} that you expect.` }),
    }
  }
  const allowed = typeof given === 'string' ? [given] : given
  const isAllowed = allowed.some(it => it === value)
  return {
    name,
    status: isAllowed ? 'passed' : 'failed',
    details: () => ({
      expected: oneOf(allowed),
      found: show(value),
      ...(!isAllowed && { advice: adviceOfAddress(name, allowed, value) }),
    }),
  }
}

const adviceOfAddress = (name: 'issuer' | 'audience', allowed: readonly string[], value: unknown): string => {
  const whose = name === 'issuer' ? 'the sender’s issuer address' : 'the endpoint’s URL as it was registered'
  return allowed.some(it => sameAddress(value, it))
    ? `The same address, spelled differently: compare with ${whose}, character by character.`
    : `Compare with ${whose}; if that is what was expected, the token was made for somebody else: reject it.`
}

const oneOf = (values: readonly string[]): string =>
  values.length === 1 ? show(values[0]) : `one of ${values.map(show).join(', ')}`

const sameAddress = (a: unknown, b: string): boolean => {
  if (typeof a !== 'string' || !URL.canParse(a) || !URL.canParse(b)) return false
  return new URL(a).href.replace(/\/$/, '') === new URL(b).href.replace(/\/$/, '')
}

/** RFC 7519 section 4.1.4: not accepted on or after `exp`. */
export const checkExpiry = (claims: Content, nowSeconds: number): Outcome => {
  const name = 'expiry'
  if (claims === undefined) return unread(name, 'claims')
  const exp = read(claims, 'exp')
  const iat = read(claims, 'iat')
  if (!isTime(exp)) return failed(name, () => ({ expected: 'exp, in epoch seconds', found: show(exp) }))
  const expected = () => `later than ${showTime(nowSeconds)}`
  if (nowSeconds >= exp) {
    return failed(name, () => ({
      expected: expected(),
      found: showTime(exp),
      advice:
        `Expired ${Math.ceil(nowSeconds - exp)} s ago. Every attempt carries a fresh token: ` +
        'check the receiver’s clock, and that it verifies on arrival.',
    }))
  }
  if (isTime(iat) && (exp <= iat || exp - iat > TOKEN_LIFETIME_SECONDS)) {
    return failed(name, () => ({
      expected: `at most ${TOKEN_LIFETIME_SECONDS} s after iat, ${showTime(iat)}`,
      found: showTime(exp),
      advice: 'Tokens are valid for 5 minutes: this one was not made by the service. Reject it.',
    }))
  }
  return passed(name, () => ({ expected: expected(), found: showTime(exp) }))
}

export const checkJti = (claims: Content, body: Body | undefined): Outcome => {
  const name = 'jti'
  if (claims === undefined) return unread(name, 'claims')
  const jti = read(claims, 'jti')
  if (typeof jti !== 'string' || jti === '') {
    return failed(name, () => ({ expected: 'the eventId', found: show(jti), advice: 'Reject it.' }))
  }
  if (body === undefined) {
    return skipped(name, () => ({ found: show(jti), advice: 'Give the body, to compare with its eventId.' }))
  }
  const eventId = read(body.content, 'eventId')
  const expected = () => (eventId === undefined ? 'a JSON body with an eventId' : show(eventId))
  if (jti === eventId) return passed(name, () => ({ expected: expected(), found: show(jti) }))
  const advice = 'The token belongs to another body, or the body was changed: reject it.'
  return failed(name, () => ({ expected: expected(), found: show(jti), advice }))
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
export const checkDigest = (claims: Content, body: Body | undefined): Outcome | Promise<Outcome> => {
  const name = 'body_digest'
  if (claims === undefined) return unread(name, 'claims')
  const claimed = read(claims, 'body_sha256')
  if (claimed === undefined) {
    return skipped(name, () => ({ advice: 'The token has no claim body_sha256: it is from an older server.' }))
  }
  if (body === undefined) {
    return skipped(name, () => ({ found: show(claimed), advice: 'Give the body, to compare its SHA-256.' }))
  }
  const judged = (digest: string): Outcome => {
    if (claimed === digest) return passed(name, () => ({ expected: show(digest), found: show(claimed) }))
    const advice =
      'The body is not the one that was sent, byte for byte: reject it, unless something on the way rewrote it.'
    return failed(name, () => ({ expected: `${show(digest)}, the body’s SHA-256`, found: show(claimed), advice }))
  }
  const digest = sha256(body.bytes)
  return typeof digest === 'string' ? judged(digest) : digest.then(judged)
}

/**
 * Checks whose webhook it is: others can register a webhook for this endpoint's URL, and its deliveries are signed as
 * well.
 */
export const checkWebhook = (body: Body | undefined, own: readonly string[] | undefined): Outcome => {
  const name = 'webhook'
  const webhookId = read(body?.content, 'webhookId')
  if (own === undefined) {
    return skipped(name, () => ({ found: show(webhookId), advice: 'Give the ids of your own webhooks.' }))
  }
  if (body === undefined) {
    return skipped(name, () => ({ expected: oneOf(own), advice: 'Give the body, for its webhookId.' }))
  }
  const details = () => ({ expected: oneOf(own), found: show(webhookId) })
  if (own.some(it => it === webhookId)) return passed(name, details)
  const advice = 'Somebody else’s webhook leads to this endpoint, or one that you have not named: reject it.'
  return failed(name, () => ({ ...details(), advice }))
}

export const checkReplay = (claims: Content, seen: ((jti: string) => boolean) | undefined): Outcome => {
  const name = 'replay'
  if (claims === undefined) return unread(name, 'claims')
  const jti = read(claims, 'jti')
  if (typeof jti !== 'string') return skipped(name, () => ({ advice: 'There is no jti to look up.' }))
  const expected = 'a jti that was not handled before'
  if (seen === undefined) {
    return skipped(name, () => ({ expected, advice: 'Keep each jti for which the event has been handled.' }))
  }
  if (!seen(jti)) return passed(name, () => ({ expected, found: show(jti) }))
  const advice =
    'Handled before: answer 401. Record a jti only once its event is handled, so that a retry is not taken for a ' +
    'replay.'
  return failed(name, () => ({ expected, found: show(jti), advice }))
}

export const checkIssuedAt = (claims: Content, nowSeconds: number): Outcome => {
  const name = 'issued_at'
  if (claims === undefined) return unread(name, 'claims')
  const iat = read(claims, 'iat')
  if (!isTime(iat)) return failed(name, () => ({ expected: 'iat, in epoch seconds', found: show(iat) }))
  const expected = () => `no later than ${showTime(nowSeconds)}, give or take ${CLOCK_TOLERANCE_SECONDS} s`
  const latest = nowSeconds + CLOCK_TOLERANCE_SECONDS
  if (iat > latest) {
    const advice = 'Created in the future: check the receiver’s clock.'
    return failed(name, () => ({ expected: expected(), found: showTime(iat), advice }))
  }
  // Delivery tokens have no nbf; if a token has one, it counts (RFC 7519 section 4.1.5).
  const nbf = read(claims, 'nbf')
  if (nbf !== undefined && !(isTime(nbf) && nbf <= latest)) {
    const found = () => `nbf ${isTime(nbf) ? showTime(nbf) : show(nbf)}`
    return failed(name, () => ({ expected: expected(), found: found(), advice: 'Not valid yet: reject it.' }))
  }
  return passed(name, () => ({ expected: expected(), found: showTime(iat) }))
}

const passed = (name: CheckName, details: () => Details): Outcome => ({ name, status: 'passed', details })
const failed = (name: CheckName, details: () => Details): Outcome => ({ name, status: 'failed', details })
const skipped = (name: CheckName, details: () => Details): Outcome => ({ name, status: 'skipped', details })

const unread = (name: CheckName, part: string): Outcome =>
  skipped(name, () => ({ advice: `The token’s ${part} can’t be read.` }))

/** Whether a value is a NumericDate (RFC 7519 section 2) within the range of Date. */
const isTime = (value: unknown): value is number => typeof value === 'number' && Math.abs(value) <= 8.64e12

const showTime = (seconds: number): string => `${new Date(seconds * 1000).toISOString().replace('Z', '+00:00')}`
