import type { CheckName } from '../shared/delivery-token.ts'

/** The answer to a request, which an adapter sends as it is. */
export interface Answer {
  status: number
  headers: Record<string, string>
  body: string
  /** Why the answer is not 200; the body has the same code. */
  fault?: FaultCode
}

/** The checks of the token, each with its own code and the status of the answer if it fails. */
const checks = {
  format: 401,
  algorithm: 401,
  key: 401,
  signature: 401,
  issuer: 401,
  audience: 401,
  expiry: 401,
  jti: 401,
  body_digest: 401,
  webhook: 401,
  replay: 401,
  issued_at: 401,
} satisfies Record<CheckName, number>

/** The status of every fault. A 4XX ends the delivery; a 5XX has it sent again. */
const statuses = {
  ...checks,
  /** The method is not POST. */
  method: 405,
  /** There is no `Authorization: Bearer …`. */
  token_missing: 401,
  /** Longer than MAX_BODY_BYTES. */
  body_too_large: 413,
  /** The connection was closed before the body's end. */
  body_incomplete: 503,
  /** The body is signed but is no event: this receiver is older than its sender. */
  body: 500,
  /** The same delivery is being handled right now. */
  in_progress: 503,
  /** The handler asked for a pause (RetryLater). */
  retry_later: 429,
  /** The handler threw. */
  handler_failed: 500,
  /** The answer was not ready in time; the handler may still be working. */
  timeout: 503,
  /** A body parser has read the body before the receiver could. */
  body_already_read: 500,
  /** The issuer's keys could not be fetched. */
  keys_unavailable: 503,
  /** The replay store failed. */
  replay_store_unavailable: 503,
  /** A function among the options threw, or returned a wrong value. */
  option_failed: 500,
}

export type FaultCode = keyof typeof statuses

/** What is known of a refused request. The sender chose all of it except `expected`. */
export interface FaultDetails {
  /** The body's `eventId`, once its signature is verified. */
  eventId?: string
  /** The `kid` in the token's header. */
  kid?: string
  /** What the failed check expected and what it found: safe to print, and for the receiver's owner alone. */
  expected?: string
  found?: string
}

/**
 * Why a request is not answered 200. The answer has the code alone: the message may name what the receiver accepts,
 * such as its webhook's id, and is for the receiver's own log.
 */
export class Fault extends Error {
  readonly code: FaultCode
  /** The status to answer with. */
  readonly status: number
  readonly headers: Record<string, string>
  readonly details: FaultDetails

  constructor(
    code: FaultCode,
    message: string,
    more: { headers?: Record<string, string>; details?: FaultDetails; cause?: unknown } = {},
  ) {
    super(message, { cause: more.cause })
    this.name = 'Fault'
    this.code = code
    this.status = statuses[code]
    this.headers = { 'content-type': 'application/json', ...challenge(code), ...more.headers }
    this.details = more.details ?? {}
  }

  /** This fault as an answer, in the form that `Response` takes. */
  get answer(): Answer {
    const { status, headers, code } = this
    return { status, headers: { ...headers }, body: JSON.stringify({ error: code }), fault: code }
  }
}

/**
 * The WWW-Authenticate header (RFC 6750 section 3): a 401 names the scheme, and an error only if a token was sent.
 * Tidings looks for `replay` in it.
 */
const challenge = (code: FaultCode): Record<string, string> => {
  if (statuses[code] !== 401) return {}
  if (code === 'token_missing') return { 'www-authenticate': 'Bearer' }
  return { 'www-authenticate': `Bearer error="invalid_token", error_description="${code}"` }
}
