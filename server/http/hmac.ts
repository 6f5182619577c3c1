import {
  bodyHash,
  checkSignedHeaders,
  parseAuthorization,
  parseRequestDate,
  type RequestHeaders,
  signature,
  signaturesMatch,
  stringToSign,
} from '../../shared/hmac.ts'
import { toIso } from '../../shared/time.ts'
import type { RefusalReason } from '../../shared/vocabulary.ts'
import type { AccessToken } from '../domain/permissions.ts'

/** A request's date may be so far off the server's time, either way. */
export const CLOCK_WINDOW_MS = 5 * 60_000

/** Why a request is refused with 401. */
export type Refusal = { reason: RefusalReason; message: string; serverTime?: string }

/** What a signature covers besides the headers that it names. */
export type Covered = { method: string; pathAndQuery: string }

/** What a request says of its signature. */
export type Signed = {
  apiKey: string
  signature: string
  /** The values that are signed, in the order they were signed in. */
  values: readonly string[]
  date: number
  bodyHash: string
  /** The header that `bodyHash` was in. */
  hashHeader: string
}

/** What an API key names. Without a token, a secret all the same: an unknown key costs what a wrong signature costs. */
export type Found = { token: AccessToken | undefined; apiSecret: string }

/** Reads how a request is signed, or says why it cannot be one that is. */
export const readSigned = (headers: RequestHeaders): Signed | Refusal => {
  const header = headerOf(headers, 'authorization')
  if (header === '') return { reason: 'missing', message: 'The request is not signed: it has no Authorization header.' }
  const authorization = parseAuthorization(header)
  if ('fault' in authorization) return { reason: 'malformed', message: authorization.fault }
  const signed = checkSignedHeaders(authorization.signedHeaders, headers)
  if ('fault' in signed) return { reason: 'malformed', message: signed.fault }
  const date = parseRequestDate(headerOf(headers, signed.dateHeader))
  if (date === undefined) {
    return { reason: 'malformed', message: `${signed.dateHeader} is neither an HTTP-date nor an ISO 8601 time.` }
  }
  return {
    apiKey: authorization.credential,
    signature: authorization.signature,
    values: signed.signedValues,
    date,
    bodyHash: headerOf(headers, signed.hashHeader),
    hashHeader: signed.hashHeader,
  }
}

const headerOf = (headers: RequestHeaders, name: string): string => [headers[name] ?? ''].flat().join(', ')

/**
 * Why a request is refused, by how it is signed, what its API key was found to name, and the time; undefined if it is
 * not. Its body is not needed for it: what the signature covers is the body's hash.
 */
export const refusalOf = (
  { method, pathAndQuery }: Covered,
  signed: Signed,
  { token, apiSecret }: Found,
  now: number,
): Refusal | undefined => {
  const expected = signature(apiSecret, stringToSign({ method, pathAndQuery, signedValues: signed.values }))
  const matches = signaturesMatch(expected, signed.signature)
  if (!token) return { reason: 'unknown_key', message: 'No access token has this API key.' }
  if (!matches) {
    return {
      reason: 'bad_signature',
      message:
        'The signature is not that of this request with the secret of this API key. ' +
        '`tidings sign` shows the string to sign.',
    }
  }
  if (Math.abs(now - signed.date) > CLOCK_WINDOW_MS) return clockSkew(signed.date, now)
  if (token.revokedAt !== null) {
    return { reason: 'revoked', message: `The access token was revoked at ${toIso(token.revokedAt)}.` }
  }
  if (token.expiresAt !== null && token.expiresAt <= now) {
    return { reason: 'expired', message: `The access token expired at ${toIso(token.expiresAt)}.` }
  }
  return undefined
}

/** Why the body that has come with a request is not the one that was signed; undefined if it is. */
export const bodyRefusalOf = (body: Uint8Array, signed: Signed): Refusal | undefined =>
  signaturesMatch(bodyHash(body), signed.bodyHash)
    ? undefined
    : {
        reason: 'body_hash_mismatch',
        message: `${signed.hashHeader} is not the base64 SHA-256 of the body that arrived.`,
      }

const clockSkew = (date: number, now: number): Refusal => {
  const offS = Math.round(Math.abs(now - date) / 1000)
  const side = date < now ? 'before' : 'after'
  return {
    reason: 'clock_skew',
    message:
      `The request is dated ${offS} s ${side} the server's time, ${toIso(now)}; ` +
      '300 s are allowed. Check the clock.',
    serverTime: toIso(now),
  }
}
