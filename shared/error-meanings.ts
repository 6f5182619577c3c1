import type { ErrorCode, RefusalReason } from './vocabulary.ts'

// The meaning of each code and what to do about it, for the reference in docs/.

/** `status` is the HTTP status of the answer, unless it is 200 with `errors` beside `data`. */
type Meaning = { status?: number; means: string; doThis: string }

export const errorMeanings: Record<ErrorCode, Meaning> = {
  UNAUTHENTICATED: {
    status: 401,
    means: 'The request is not signed, or not by an access token that is good now. `extensions.reason` says why.',
    doThis: 'See the reasons below.',
  },
  FORBIDDEN: {
    means: 'The access token lacks a permission, which `extensions.permission` names, or sees too little for it.',
    doThis: 'Use a token that has it: `tidings whoami` shows what one may do.',
  },
  NOT_FOUND: {
    means: 'No such thing is visible to the access token. `extensions.ids` names what was asked for.',
    doThis: 'Check the id; what a token does not see does not exist for it.',
  },
  BAD_USER_INPUT: {
    means: 'An argument is wrong. `extensions.argument` names it, the message says what would be right.',
    doThis: 'Mend the argument.',
  },
  PING_FAILED: {
    means: 'The endpoint did not answer the ping with exactly 200. Nothing was stored.',
    doThis: '`extensions` has its answer, or why there was none: `tidings server doctor --endpoint URL`.',
  },
  CONFLICT: {
    means: 'It does not fit the state that things are in, or the same request is under way.',
    doThis: 'Look at the state; with `extensions.retryAfterSeconds`, send it again then.',
  },
  RESULT_TOO_LARGE: {
    means: 'More was asked for than one answer holds. `extensions.limit` and `budget` say of what.',
    doThis: 'Page: `limit`, and `after` the last row seen.',
  },
  QUERY_TOO_COMPLEX: {
    means: 'The document, or carrying it out, is past a limit. `extensions.limit` and `budget` say which.',
    doThis: 'Ask for less at once.',
  },
  RATE_LIMITED: {
    status: 429,
    means: 'The access token has made its requests of this minute, or has too many pings in flight.',
    doThis: 'Send it again after `extensions.retryAfterSeconds`.',
  },
  UNAVAILABLE: {
    status: 503,
    means: 'The database, or a row of it, could not be had in time. Nothing was done, unless the message says what.',
    doThis: 'Send it again after `Retry-After`. If it lasts: [not ready](../runbooks/not-ready.md).',
  },
  INTERNAL_SERVER_ERROR: {
    status: 500,
    means: 'A fault of the server. Its log has it, under the same request id.',
    doThis: 'Look for `extensions.requestId` in the log.',
  },
}

export const refusalMeanings: Record<RefusalReason, string> = {
  missing: 'There is no `Authorization` header.',
  malformed: 'The header, or one that it names, cannot be read.',
  unknown_key: 'No access token has this API key.',
  bad_signature: 'The signature is not that of this request: see [signing](../signing.md), and `tidings sign`.',
  body_hash_mismatch: 'The body that arrived is not the one whose hash was signed.',
  clock_skew: 'The date is more than five minutes off the server’s time, which `extensions.serverTime` has.',
  replayed: 'The signature has carried a mutation already: sign again, with a nonce.',
  expired: 'The access token has expired.',
  revoked: 'The access token was revoked.',
}
