import type { ErrorCode, RefusalReason } from './vocabulary.ts'

// The meaning of each code and what to do about it, for the reference in docs/.

/** `status` is the HTTP status of the answer, unless it is 200 with `errors` beside `data`. */
type Meaning = { status?: number; means: string; doThis: string }

export const errorMeanings: Record<ErrorCode, Meaning> = {
  UNAUTHENTICATED: {
    status: 401,
    means: 'The request is not signed by a valid access token. `extensions.reason` says why.',
    doThis: 'See the reasons below.',
  },
  FORBIDDEN: {
    means: 'The access token lacks a permission, which `extensions.permission` names, or sees too little for it.',
    doThis: 'Use a token that has it: `tidings whoami` shows what one may do.',
  },
  NOT_FOUND: {
    means: 'The access token sees no such object. `extensions.ids` has the requested ids.',
    doThis: 'Check the id. For a token, an object that it does not see does not exist.',
  },
  BAD_USER_INPUT: {
    means: 'An argument is wrong. `extensions.argument` names it, the message says what would be right.',
    doThis: 'Correct the argument.',
  },
  PING_FAILED: {
    means: 'The endpoint did not answer the ping with exactly 200. Nothing was stored.',
    doThis: '`extensions` has its answer, or why there was none: `tidings server doctor --endpoint URL`.',
  },
  CONFLICT: {
    means: 'The request does not fit the present state, or the same request is under way.',
    doThis: 'Check the state. With `extensions.retryAfterSeconds`, send the request again after that time.',
  },
  RESULT_TOO_LARGE: {
    means: 'The result is larger than one answer may be. `extensions.limit` and `budget` say which limit.',
    doThis: 'Page: `limit`, and `after` the last row seen.',
  },
  QUERY_TOO_COMPLEX: {
    means: 'The document or its execution exceeds a limit. `extensions.limit` and `budget` say which.',
    doThis: 'Ask for less at once.',
  },
  RATE_LIMITED: {
    status: 429,
    means: 'The access token has used up its requests of this minute, or has too many pings in flight.',
    doThis: 'Send it again after `extensions.retryAfterSeconds`.',
  },
  UNAVAILABLE: {
    status: 503,
    means: 'The database or a row was not available in time. Nothing was done, unless the message says what.',
    doThis: 'Send it again after `Retry-After`. If it lasts: [not ready](../runbooks/not-ready.md).',
  },
  INTERNAL_SERVER_ERROR: {
    status: 500,
    means: 'A fault of the server. Its log has the details under the request id.',
    doThis: 'Look for `extensions.requestId` in the log.',
  },
}

export const refusalMeanings: Record<RefusalReason, string> = {
  missing: 'There is no `Authorization` header.',
  malformed: 'The header, or one that it names, is unreadable.',
  unknown_key: 'No access token has this API key.',
  bad_signature: 'The signature does not match the request: see [signing](../signing.md), and `tidings sign`.',
  body_hash_mismatch: 'The received body does not have the signed hash.',
  clock_skew: 'The date is more than five minutes off the server’s time, which is in `extensions.serverTime`.',
  replayed: 'The signature was already used for a mutation: sign again, with a nonce.',
  expired: 'The access token has expired.',
  revoked: 'The access token was revoked.',
}
