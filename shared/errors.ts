import type { ErrorCode, FailureReason, Permission, RefusalReason, ReportStatus, WebhookStatus } from './vocabulary.ts'

/** What goes into `extensions` beside code and request id, by code. */
export type ErrorDetails = {
  /** `serverTime` (ISO 8601) where the clocks differ. */
  UNAUTHENTICATED: { reason: RefusalReason; serverTime?: string }
  /** The permission that is missing, where one is. */
  FORBIDDEN: { permission?: Permission }
  /** The ids that are not there, or not visible; none where there is nothing at a path. */
  NOT_FOUND: { ids?: readonly string[] }
  BAD_USER_INPUT: Place
  PING_FAILED: { url: string; durationMs: number } & PingResult
  /**
   * What it collides with, and the status that this is in; or the most that there may be of what is to be made; or when
   * to send it again, where the same request is being worked on under its Idempotency-Key.
   */
  CONFLICT:
    | { webhookId: string; status: WebhookStatus }
    | { projectReportId: string; status: ReportStatus }
    | { limit: number }
    | { retryAfterSeconds: number }
  RESULT_TOO_LARGE: Place & Limited
  QUERY_TOO_COMPLEX: Place & Limited
  /** Requests a minute, or pings in flight, and when there is room again. */
  RATE_LIMITED: { limit: number; retryAfterSeconds: number }
  /** When to try again. Nothing was done. */
  UNAVAILABLE: { retryAfterSeconds: number }
  INTERNAL_SERVER_ERROR: Record<string, never>
}

/** The argument at fault, and where in a query. */
type Place = { argument?: string; path?: string }
type Limited = {
  /** The most that is allowed, of what the message says. */
  limit?: number
  /** Which part of a request's budget it is: `rows`, `values`, `bytes`, `timeMs`. */
  budget?: string
}
type PingResult = { statusCode: number; response: string } | { failure: FailureReason; detail: string }

/** A code whose details can all be left out needs none. */
type DetailsOf<Code extends ErrorCode> =
  Record<never, never> extends ErrorDetails[Code] ? [details?: ErrorDetails[Code]] : [details: ErrorDetails[Code]]

/**
 * A fault that the caller is told of: `message` says what was
 * wrong and what would be right, `details` go into `extensions`.
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

/** Bad input, naming the argument. */
export const badInput = (argument: string, message: string): TidingsError<'BAD_USER_INPUT'> =>
  new TidingsError('BAD_USER_INPUT', `${argument}: ${message}`, { argument })

export const notFound = (what: string, ids: readonly string[]): TidingsError<'NOT_FOUND'> =>
  new TidingsError('NOT_FOUND', `No ${what} with id ${ids.join(', ')} is visible to this access token.`, { ids })

/** All that a client is told of a fault that is not its own. */
export const internalError = (): TidingsError<'INTERNAL_SERVER_ERROR'> =>
  new TidingsError('INTERNAL_SERVER_ERROR', 'Something went wrong on our side. If it stays, tell us the request id.')

/** What goes into the `extensions` of a GraphQL error. */
export const extensionsOf = (error: TidingsError, requestId: string): Record<string, unknown> => ({
  code: error.code,
  ...error.details,
  requestId,
})
