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
import { type AccessToken, endOf } from '../domain/permissions.ts'

/** How far a request's date may be off the server's time, in either direction. */
export const CLOCK_WINDOW_MS = 5 * 60_000

/** Why a request is refused with 401. */
export type Refusal = { reason: RefusalReason; message: string; serverTime?: string }

/** The parts of a request that a signature covers besides the named headers. */
export type Covered = { method: string; pathAndQuery: string }

/** The signature data of a request. */
export type Signed = {
  apiKey: string
  signature: string
  /** The signed values, in the order of signing. */
  values: readonly string[]
  date: number
  bodyHash: string
  /** The header that carried `bodyHash`. */
  hashHeader: string
}

/**
 * The token and secret of an API key. An unknown key has a dummy secret, so that it takes as long as a wrong signature.
 */
export type Found = { token: AccessToken | undefined; apiSecret: string }

/** Reads the signature data of a request, or returns why it is malformed. */
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
 * Why a request is refused, from its signature data, the token of its API key, and the time; undefined if it is
 * accepted. The body is not needed, because the signature covers its hash.
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
        'The signature does not match this request and the secret of this API key. ' +
        '`tidings sign --verbose` shows the string to sign.',
    }
  }
  if (Math.abs(now - signed.date) > CLOCK_WINDOW_MS) return clockSkew(signed.date, now)
  return endOf(token, now)
}

/** Why the body differs from the signed hash; undefined if it matches. */
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
