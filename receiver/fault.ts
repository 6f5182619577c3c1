import type { CheckName } from '../shared/delivery-token.ts'

/** What a request is answered with: for an adapter to send as it is. */
export interface Answer {
  status: number
  headers: Record<string, string>
  body: string
  /** Why it was not answered 200; the same code is in the body. */
  fault?: FaultCode
}

/** Each check of the token has a code of its own, and with it the status of a token that is rejected. */
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

/** The status of every fault. A 4XX ends the delivery; after a 5XX it comes again. */
const statuses = {
  ...checks,
  /** Another method than POST. */
  method: 405,
  /** No `Authorization: Bearer …`. */
  token_missing: 401,
  /** Longer than MAX_BODY_BYTES. */
  body_too_large: 413,
  /** The connection was closed before the body's end. */
  body_incomplete: 503,
  /** A body that was signed, and is no event: this receiver is older than its sender. */
  body: 500,
  /** The same delivery is being handled right now. */
  in_progress: 503,
  /** The handler asked for a pause. */
  retry_later: 429,
  /** The handler threw. */
  handler_failed: 500,
  /** The answer was not ready in time; the handler may still be at it. */
  timeout: 503,
  /** A body parser has read the body before the receiver could. */
  body_already_read: 500,
  /** The issuer's keys could not be had. */
  keys_unavailable: 503,
  /** The replay store could not be asked. */
  replay_store_unavailable: 503,
  /** A function among the options threw, or returned what it should not. */
  option_failed: 500,
}

export type FaultCode = keyof typeof statuses

/** What is known of a request that is refused. All of it was chosen by the sender, but for `expected`. */
export interface FaultDetails {
  /** The body's `eventId`, once its signature is verified. */
  eventId?: string
  /** The `kid` in the token's header. */
  kid?: string
  /** Of a check that failed: what was expected, and what was found, in a form that is safe to print. */
  expected?: string
  found?: string
}

/** Why a request is not answered 200. `message` goes to the sender: it holds no secret, and nothing unprintable. */
export class Fault extends Error {
  readonly code: FaultCode
  /** The status that it is to be answered with. */
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

  /** This fault as an answer; `Response` takes it as it is. */
  get answer(): Answer {
    const { status, headers, code, message } = this
    return { status, headers: { ...headers }, body: JSON.stringify({ error: code, message }), fault: code }
  }
}

/**
 * RFC 6750 section 3: a 401 names the scheme, and an error only
 * where a token was sent. The service looks for `replay` in it.
 */
const challenge = (code: FaultCode): Record<string, string> => {
  if (statuses[code] !== 401) return {}
  if (code === 'token_missing') return { 'www-authenticate': 'Bearer' }
  return { 'www-authenticate': `Bearer error="invalid_token", error_description="${code}"` }
}
