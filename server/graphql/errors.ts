import { type ExecutionResult, GraphQLError } from 'graphql'
import { badInput, extensionsOf, internalError, TidingsError } from '../../shared/errors.ts'
import type { ErrorCode } from '../../shared/vocabulary.ts'
import { CommitInDoubt, isPassing, unavailable } from '../database/patience.ts'
import { type Log, logSeldom } from '../log.ts'
import { MangoError } from '../mango/error.ts'
import { argumentAt } from './argument-at.ts'

/**
 * The form of every error that a client sees: a code, its details, and the request's id. An error that the client did
 * not cause goes to the log, and the client learns only the request id.
 *
 * @param hasChanged whether the request has changed something; then no message may say that nothing was done
 */
export const presentError =
  (requestId: string, log: Log) =>
  (error: Readonly<Error>, hasChanged = false): GraphQLError => {
    // graphql-http throws plain errors only for a request that is no GraphQL request.
    const given = error instanceof GraphQLError ? error : new GraphQLError(`${error.message}. ${REQUEST_SHAPE}`)
    const present = (shown: TidingsError) =>
      new GraphQLError(shown.message, {
        nodes: given.nodes,
        source: given.source,
        positions: given.positions,
        path: given.path,
        extensions: extensionsOf(shown, requestId),
      })
    const cause = rootOf(given)
    if (cause instanceof TidingsError) {
      if (!isUnavailableError(cause) || !hasChanged) return present(cause)
      return present(new TidingsError('UNAVAILABLE', NOT_ALL, cause.details))
    }
    if (cause instanceof MangoError) {
      return present(new TidingsError(cause.code, cause.message, { argument: 'query', path: cause.path }))
    }
    // Without a cause, the document or its variables are at fault: the syntax, a name, a type.
    if (cause === undefined) {
      if (given.message === 'Validation aborted.') return present(tooManyRepetitions())
      const argument = argumentAt(given)
      if (argument) return present(badInput(argument, argument === 'secret' ? withoutValue(given) : given.message))
      const tooLong = /contains more than \d+ tokens/.test(given.message)
      return present(new TidingsError(tooLong ? 'QUERY_TOO_COMPLEX' : 'BAD_USER_INPUT', given.message))
    }
    if (isPassing(cause)) {
      logSeldom(log, 'warn', 'outage', { reason: (cause as Error).message, requestId }, UNAVAILABLE)
      return present(hasChanged ? new TidingsError('INTERNAL_SERVER_ERROR', UNTOLD) : unavailable(cause))
    }
    log.error({ err: cause, requestId }, 'a resolver failed')
    return present(
      cause instanceof CommitInDoubt ? new TidingsError('INTERNAL_SERVER_ERROR', IN_DOUBT) : internalError(),
    )
  }

const UNAVAILABLE = 'the database was not available in time'

const IN_DOUBT =
  'The connection to the database was lost during the commit: it is not known whether this was done. ' +
  'Check before you send it again, or send it again under its Idempotency-Key.'

const NOT_ALL =
  'The database or a row was not available in time, and this was not done. The earlier parts of the request ' +
  'are done. Check before you send it again, or send it again under its Idempotency-Key.'

const UNTOLD =
  'The database was lost before this could be answered. Changes made by then are done. ' +
  'Check before you send it again, or send it again under its Idempotency-Key.'

/** The error that another process has shown. */
export const errorShown = ({ message, extensions }: ErrorShown): TidingsError => {
  const { code, requestId: _, ...details } = extensions
  return new TidingsError(code, message, details)
}

type ErrorShown = {
  message: string
  extensions: ConstructorParameters<typeof TidingsError>[2] & { code: ErrorCode; requestId: string }
}

/** Whether a result consists only of UNAVAILABLE errors. */
export const isUnavailable = ({ data, errors }: ExecutionResult): boolean =>
  (data === null || data === undefined) &&
  errors !== undefined &&
  errors.every(error => {
    const cause = rootOf(error)
    return cause !== undefined && (isPassing(cause) || isUnavailableError(cause))
  })

const isUnavailableError = (error: Error): error is TidingsError<'UNAVAILABLE'> =>
  error instanceof TidingsError && error.code === 'UNAVAILABLE'

/** What is wrong with a secret. graphql's message ends with the value. */
const withoutValue = ({ message }: GraphQLError): string => message.replace(/(cannot represent [^:]*):.*/s, '$1')

const REQUEST_SHAPE =
  'A request is a JSON object such as {"query": "{ viewer { name } }", "variables": {}, "operationName": null}.'

const tooManyRepetitions = (): TidingsError =>
  new TidingsError(
    'QUERY_TOO_COMPLEX',
    'The document asks for the same fields so often that checking them would take too long: ask for each once.',
  )

/** The error that parsing or measuring a document has thrown. */
export const asGraphqlError = (error: unknown): GraphQLError => {
  if (error instanceof GraphQLError) return error
  if (error instanceof RangeError) {
    return asGraphqlError(
      new TidingsError('QUERY_TOO_COMPLEX', 'The document is nested too deeply to be read: ask for less at once.'),
    )
  }
  const thrown = error instanceof Error ? error : new Error(String(error))
  return new GraphQLError(thrown.message, { originalError: thrown })
}

/** The original error inside GraphQL errors. */
const rootOf = (error: GraphQLError): Error | undefined => {
  let cause: Error | undefined = error.originalError
  while (cause instanceof GraphQLError) cause = cause.originalError
  return cause
}
