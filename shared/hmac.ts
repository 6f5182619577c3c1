import { createHmac, createSecretKey, hash, timingSafeEqual } from 'node:crypto'
import { parseHttpDate, parsePythonClientDate } from './http-date.ts'
import { parseIso } from './time.ts'

/**
 * Signing of API requests: `Authorization: HMAC-SHA256 Credential=<key>&SignedHeaders=<names>&Signature=<base64>`.
 *
 * The scheme is that of Azure App Configuration. Its clients work unchanged, although they differ from one another:
 * .NET signs `date`, JavaScript and Python `x-ms-date`, Java `Host;Date;…` in mixed case, the documented Go and Java
 * samples separate parameters with `, `, and Python has its own date format. Clients of Communication Services compute
 * the same signature but send no `Credential`, which names the key to check against; their header is malformed until
 * `Credential=<api key>&` is put in front.
 */

/** The credentials of a caller: a public API key, and its secret in base64. */
export type Credentials = { apiKey: string; apiSecret: string }

/** The three parameters of the `Authorization` header; the header names are in lower case, in the order of signing. */
export type Authorization = { credential: string; signedHeaders: string[]; signature: string }

/** A sentence that says what is wrong with a request and what would be right. */
export type Fault = { fault: string }

/** Request headers as Node presents them, with names in lower case. */
export type RequestHeaders = Readonly<Record<string, string | readonly string[] | undefined>>

/** Headers that may hold the request's date; the first one present counts. */
export const DATE_HEADERS = ['x-date', 'x-ms-date', 'date'] as const
/** Headers that may hold the body hash; the first one present counts. */
export const HASH_HEADERS = ['x-content-sha256', 'x-ms-content-sha256'] as const

export type DateHeader = (typeof DATE_HEADERS)[number]
export type HashHeader = (typeof HASH_HEADERS)[number]

const SCHEME = 'HMAC-SHA256'
const EXPECTED = `${SCHEME} Credential=<api key>&SignedHeaders=x-date;host;x-content-sha256&Signature=<base64>`
const PARAMETERS = ['Credential', 'SignedHeaders', 'Signature'] as const
/** A header name, RFC 9110 section 5.6.2 (token). */
const HEADER_NAME = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/
const BASE64 = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/

/**
 * The headers that sign a request. `body` is '' for a request without one. A `nonce` distinguishes two otherwise equal
 * requests of one second; without it the second of two equal mutations is a replay.
 *
 * @throws TypeError, with `code` `INVALID_API_SECRET`, if the secret is not base64.
 */
export const signRequest = (request: {
  method: string
  url: URL
  body: string | Uint8Array
  credentials: Credentials
  at: Date
  nonce?: string
  /** The key under which a repeated mutation is done once. */
  idempotencyKey?: string | undefined
}): Record<string, string> => {
  const { method, url, body, credentials, at, nonce, idempotencyKey } = request
  if (credentials.apiSecret === '' || !BASE64.test(credentials.apiSecret)) {
    throw Object.assign(
      new TypeError('The API secret is not base64: give it as it was shown when the token was made.'),
      {
        code: 'INVALID_API_SECRET',
      },
    )
  }
  const signed: Record<string, string> = {
    host: url.host,
    'x-date': at.toUTCString(),
    'x-content-sha256': bodyHash(body),
    ...(nonce === undefined ? {} : { 'x-nonce': nonce }),
    ...(idempotencyKey === undefined ? {} : { 'idempotency-key': idempotencyKey }),
  }
  const text = stringToSign({ method, pathAndQuery: url.pathname + url.search, signedValues: Object.values(signed) })
  const parameters = [
    `Credential=${credentials.apiKey}`,
    `SignedHeaders=${Object.keys(signed).join(';')}`,
    `Signature=${signature(credentials.apiSecret, text)}`,
  ]
  return { ...signed, authorization: `${SCHEME} ${parameters.join('&')}` }
}

/** `METHOD \n path-and-query \n value;value;…`, with the values in the order of `SignedHeaders`. */
export const stringToSign = (request: {
  method: string
  pathAndQuery: string
  signedValues: readonly string[]
}): string => `${request.method.toUpperCase()}\n${request.pathAndQuery}\n${request.signedValues.join(';')}`

/** Base64 of HMAC-SHA256 over the UTF-8 of `text`, with the base64-decoded secret as key. */
export const signature = (secretBase64: string, text: string): string =>
  // A key object, because Node takes six times as long to recognise raw bytes as a key.
  createHmac('sha256', createSecretKey(secretBase64, 'base64')).update(text, 'utf8').digest('base64')

/** Base64 of SHA-256 over the raw body, for an empty body too. */
export const bodyHash = (body: string | Uint8Array): string => hash('sha256', body, 'base64')

/**
 * Whether two signatures (or body hashes) are the same text, compared in constant time. Compares text instead of
 * decoded bytes, because base64 has several spellings of the same bytes and a replay must not pass under another
 * spelling.
 */
export const signaturesMatch = (a: string, b: string): boolean => {
  const [left, right] = [Buffer.from(a), Buffer.from(b)]
  return left.length === right.length && timingSafeEqual(left, right)
}

/**
 * Parses an `Authorization` header: parameters separated by `&` or `, `, scheme and names in any case (RFC 9110 section
 * 11). Returns a Fault if it cannot be read.
 */
export const parseAuthorization = (header: string): Authorization | Fault => {
  const [, scheme = '', rest = ''] = /^\s*(\S*)\s*(.*?)\s*$/s.exec(header) ?? []
  if (scheme.toUpperCase() !== SCHEME) {
    return fault(`The Authorization scheme must be ${SCHEME}, as in: ${EXPECTED}`)
  }

  const found = new Map<string, string>()
  for (const part of rest.split(/&|,[ \t]*/)) {
    const equals = part.indexOf('=')
    const name = PARAMETERS.find(it => it.toLowerCase() === part.slice(0, Math.max(equals, 0)).toLowerCase())
    if (name === undefined) {
      return fault(
        `${part === '' ? 'A parameter is empty' : `${quote(part)} is not a parameter`}; expected: ${EXPECTED}`,
      )
    }
    if (found.has(name)) return fault(`${name} is given twice; give it once.`)
    if (equals === part.length - 1) return fault(`${name} is empty; expected: ${EXPECTED}`)
    found.set(name, part.slice(equals + 1))
  }
  const missing = PARAMETERS.filter(name => !found.has(name))
  if (missing.length > 0) return fault(`${missing.join(' and ')} missing; expected: ${EXPECTED}`)

  const signedHeaders = found.get('SignedHeaders')!.toLowerCase().split(';')
  const odd = signedHeaders.find(name => !HEADER_NAME.test(name))
  if (odd !== undefined) {
    return fault(
      `SignedHeaders has ${quote(odd)}; expected header names joined by ";", as in x-date;host;x-content-sha256`,
    )
  }
  const seen = new Set<string>()
  const twice = signedHeaders.find(name => seen.has(name) || !seen.add(name))
  if (twice !== undefined) return fault(`SignedHeaders names ${quote(twice)} twice; name it once.`)

  return { credential: found.get('Credential')!, signedHeaders, signature: found.get('Signature')! }
}

/**
 * Checks that `host`, the date and the body hash are signed, and that every signed header is present. Returns the
 * headers that count and the signed values in order for `stringToSign`, or a Fault.
 */
export const checkSignedHeaders = (
  signedHeaders: readonly string[],
  headers: RequestHeaders,
): { dateHeader: DateHeader; hashHeader: HashHeader; signedValues: string[] } | Fault => {
  // `constructor` is no header, although every object has one.
  const absent = signedHeaders.find(name => !Object.hasOwn(headers, name))
  if (absent !== undefined) return fault(`SignedHeaders names ${quote(absent)}, but the request has no such header.`)

  const dateHeader = DATE_HEADERS.find(name => headers[name] !== undefined)
  if (dateHeader === undefined)
    return fault(`The request has no date; send and sign one of ${DATE_HEADERS.join(', ')}.`)
  const hashHeader = HASH_HEADERS.find(name => headers[name] !== undefined)
  if (hashHeader === undefined) {
    return fault(
      `The request has no body hash; send and sign ${HASH_HEADERS[0]}, ` +
        "base64 of the body's SHA-256 (for an empty body too).",
    )
  }
  for (const name of ['host', dateHeader, hashHeader]) {
    if (!signedHeaders.includes(name)) {
      return fault(`SignedHeaders must include ${name}, as in ${dateHeader};host;${hashHeader}`)
    }
  }
  return { dateHeader, hashHeader, signedValues: signedHeaders.map(name => [headers[name]].flat().join(', ')) }
}

/**
 * Epoch milliseconds of a request's date: an HTTP-date, ISO 8601, or the form that App Configuration's Python client
 * sends, `Nov, 21 2026 00:40:01.123456 GMT`. Undefined if `text` is none of them.
 */
export const parseRequestDate = (text: string): number | undefined =>
  parseHttpDate(text) ?? parseIso(text) ?? parsePythonClientDate(text)

const fault = (text: string): Fault => ({ fault: text })
/** Untrusted text, shortened and safe to print. */
const quote = (text: string): string => JSON.stringify(text.length > 60 ? `${text.slice(0, 60)}…` : text)
