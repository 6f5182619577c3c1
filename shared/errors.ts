import type { ErrorCode } from './vocabulary.ts'

/** A fault that the caller is told of: `message` says what was wrong and what would be right, `details` go into `extensions`. */
export class TidingsError extends Error {
  readonly code: ErrorCode
  readonly details: Record<string, unknown>

  constructor(code: ErrorCode, message: string, details: Record<string, unknown> = {}) {
    super(message)
    this.name = 'TidingsError'
    this.code = code
    this.details = details
  }
}

/** Bad input, naming the argument. */
export const badInput = (argument: string, message: string): TidingsError =>
  new TidingsError('BAD_USER_INPUT', `${argument}: ${message}`, { argument })

export const notFound = (what: string, ids: string[]): TidingsError =>
  new TidingsError('NOT_FOUND', `No ${what} with id ${ids.join(', ')} is visible to this access token.`, { ids })

/** All that a client is told of a fault that is not its own. */
export const internalError = (): TidingsError =>
  new TidingsError('INTERNAL_SERVER_ERROR', 'Something went wrong on our side. If it stays, tell us the request id.')

/** What goes into the `extensions` of a GraphQL error. */
export const extensionsOf = (error: TidingsError, requestId: string): Record<string, unknown> => ({
  code: error.code,
  ...error.details,
  requestId,
})
