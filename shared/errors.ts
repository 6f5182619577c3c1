import type { ErrorCode, FailureReason, Permission, RefusalReason, ReportStatus, WebhookStatus } from './vocabulary.ts'

/** The members of `extensions` besides code and request id, by code. */
export type ErrorDetails = {
  /** `serverTime` (ISO 8601) is given if the clocks differ. */
  UNAUTHENTICATED: { reason: RefusalReason; serverTime?: string }
  /** The missing permission, if it is one. */
  FORBIDDEN: { permission?: Permission }
  /** The ids that do not exist or are not visible, or the first of very many; absent for an unknown path. */
  NOT_FOUND: { ids?: readonly string[] }
  BAD_USER_INPUT: Place
  PING_FAILED: { url: string; durationMs: number } & PingResult
  /**
   * One of three: what the change collides with and its status; the limit that creating one more would exceed; or when
   * to send the request again, because the same Idempotency-Key is being worked on.
   */
  CONFLICT:
    | { webhookId: string; status: WebhookStatus }
    | { projectReportId: string; status: ReportStatus }
    | { limit: number }
    | { retryAfterSeconds: number }
  RESULT_TOO_LARGE: Place & Limited
  QUERY_TOO_COMPLEX: Place & Limited
  /** The limit (requests a minute, or pings in flight), and when there is room again. */
  RATE_LIMITED: { limit: number; retryAfterSeconds: number }
  /** When to try again. Nothing was changed. */
  UNAVAILABLE: { retryAfterSeconds: number }
  INTERNAL_SERVER_ERROR: Record<string, never>
}

/** The argument at fault, and the place in a query. */
type Place = { argument?: string; path?: string }
type Limited = {
  /** The limit that the message names. */
  limit?: number
  /** The part of the request's budget: `rows`, `values`, `bytes` or `timeMs`. */
  budget?: string
}
type PingResult = { statusCode: number; response: string } | { failure: FailureReason; detail: string }

/** Details are optional for a code whose details are all optional. */
type DetailsOf<Code extends ErrorCode> =
  Record<never, never> extends ErrorDetails[Code] ? [details?: ErrorDetails[Code]] : [details: ErrorDetails[Code]]

/**
 * An error that the caller sees: `message` says what was wrong and what would be right, `details` go into `extensions`.
 */
export class TidingsError<Code extends ErrorCode = ErrorCode> extends Error {
  readonly code: Code
  readonly details: ErrorDetails[Code]

  constructor(code: Code, message: string, ...[details = {} as ErrorDetails[Code]]: DetailsOf<Code>) {
    super(message)
    this.name = 'TidingsError'
    this.code = code
    this.details = details
  }
}

/** A BAD_USER_INPUT error that names the argument. */
export const badInput = (argument: string, message: string): TidingsError<'BAD_USER_INPUT'> =>
  new TidingsError('BAD_USER_INPUT', `${argument}: ${message}`, { argument })

/** The most ids that a message names. */
const IDS_NAMED = 10

export const notFound = (what: string, ids: readonly string[]): TidingsError<'NOT_FOUND'> => {
  const more = ids.length > IDS_NAMED ? `, … (${ids.length} in all)` : ''
  const named = ids.slice(0, IDS_NAMED).join(', ') + more
  return new TidingsError('NOT_FOUND', `No ${what} with id ${named} is visible to this access token.`, { ids })
}

/** The error for a fault of the server, with nothing about its cause. */
export const internalError = (): TidingsError<'INTERNAL_SERVER_ERROR'> =>
  new TidingsError(
    'INTERNAL_SERVER_ERROR',
    'Something went wrong on the server. If it persists, report the request id.',
  )

/** The `extensions` of a GraphQL error. */
export const extensionsOf = (error: TidingsError, requestId: string): Record<string, unknown> => ({
  code: error.code,
  ...error.details,
  requestId,
})

/** The `code` of any error: of Tidings, Node or a database. */
export const codeOf = (error: unknown): unknown =>
  typeof error === 'object' && error !== null && 'code' in error ? error.code : undefined
