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
  /** The sender closed the connection before the body's end. */
  body_incomplete: 400,
  /** No event, or not one of the form that its type has. */
  body: 400,
  /** The same delivery is being handled right now. */
  in_progress: 503,
  /** The handler asked for a pause. */
  retry_later: 429,
  /** The handler threw. */
  handler_failed: 500,
  /** A body parser has read the body before the receiver could. */
  body_already_read: 500,
  /** The issuer's keys could not be had. */
  keys_unavailable: 503,
  /** The replay store could not be asked. */
  replay_store_unavailable: 503,
}

export type FaultCode = keyof typeof statuses

/** Why a request is not answered 200. `message` goes to the sender: it holds no secret, and nothing unprintable. */
export class Fault extends Error {
  readonly code: FaultCode
  readonly headers: Record<string, string>

  constructor(code: FaultCode, message: string, headers: Record<string, string> = {}, cause?: unknown) {
    super(message, { cause })
    this.name = 'Fault'
    this.code = code
    this.headers = headers
  }

  get answer(): Answer {
    const status = statuses[this.code]
    return {
      status,
      headers: { 'content-type': 'application/json', ...challenge(this.code), ...this.headers },
      body: JSON.stringify({ error: this.code, message: this.message }),
      fault: this.code,
    }
  }
}

/** RFC 6750 section 3: a 401 names the scheme, and an error only where a token was sent. */
const challenge = (code: FaultCode): Record<string, string> => {
  if (statuses[code] !== 401) return {}
  return { 'www-authenticate': code === 'token_missing' ? 'Bearer' : 'Bearer error="invalid_token"' }
}
