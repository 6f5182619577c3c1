import { isIP } from 'node:net'
import type { Middleware, ParameterizedContext } from 'koa'
import { extensionsOf, internalError, TidingsError } from '../../shared/errors.ts'
import { passingId } from '../ids.ts'
import { type Log, logSeldom } from '../log.ts'
import type { AnsweredRequest } from '../metrics/metrics.ts'
import { arrivalOf } from './slices.ts'

/** The state of every request in the middleware. */
export type RequestState = {
  requestId: string
  /** When it arrived, by `performance.now()`. */
  arrivedAt: number
  /** The access token, once it is known. */
  token?: { id: string }
  /** The API key that the request names, existing or not. */
  apiKey?: string
  /** The requested field of the API, or `several`. */
  operation?: string | undefined
  /** The address of the client, as far as it can be known. */
  address: string | undefined
  /** Once it was admitted: lets another request begin in its place, because from now on it only waits. */
  leavePlace?: () => void
  /** The trace of the request. */
  traceId?: string | undefined
  /** The error of its answer, if it is one. */
  error?: { code: string; reason?: string | undefined }
}

/** The form of a caller's own request id, which is copied into headers and logs. */
const TAKEN_OVER = /^[\w.:/+=@~-]{1,128}$/

/** Paths that machines request all the time; they are not logged. */
const PROBES = ['/livez', '/readyz', '/metrics']

/**
 * Gives each request an id, the caller's own if it sends one, in its answer and log line, and turns errors into
 * answers.
 *
 * @param given.onAnswered called for each request to the API
 */
export const requestId = ({
  log,
  behindProxy = false,
  onAnswered,
}: {
  log: Log
  behindProxy?: boolean
  onAnswered?: (request: AnsweredRequest) => void
}): Middleware<RequestState> => {
  return async (ctx, next) => {
    const startedMs = arrivalOf(ctx.req)
    const own = ctx.get('X-Request-Id')
    ctx.state.requestId = TAKEN_OVER.test(own) ? own : passingId()
    ctx.state.arrivedAt = startedMs
    // No function that finds it: with a closure over `ctx` here, V8 keeps each request until it collects old objects.
    ctx.state.address = addressOf(ctx, behindProxy)
    ctx.set('X-Request-Id', ctx.state.requestId)
    try {
      await next()
    } catch (error) {
      if (error instanceof TidingsError && error.code === 'UNAVAILABLE') {
        answerUnavailable(ctx, error as TidingsError<'UNAVAILABLE'>)
      } else {
        log.error({ err: error, requestId: ctx.state.requestId }, 'a request failed')
        answerError(ctx, 500, internalError())
      }
    }
    const durationMs = Math.round(performance.now() - startedMs)
    const { operation = 'none', error } = ctx.state
    if (ctx.path === '/graphql') {
      onAnswered?.({ operation, code: error?.code ?? 'OK', reason: error?.reason ?? '', durationMs })
    }
    if (!PROBES.includes(ctx.path)) logRequest(log, ctx, durationMs)
  }
}

type Asked = ParameterizedContext<RequestState>

/** Writes the log line of a request. */
const logRequest = (log: Log, ctx: Asked, durationMs: number): void => {
  const { requestId, token, apiKey, address, operation, error, traceId } = ctx.state
  const line = {
    requestId,
    method: ctx.method,
    path: shortened(ctx.path),
    status: ctx.status,
    durationMs,
    ...(token && { tokenId: token.id }),
    ...(operation && { operation }),
    ...(error && { code: error.code }),
    ...(error?.reason && { reason: error.reason }),
    ...(traceId && { traceId }),
  }
  // A request refused for its signature, or for an unknown path, has no known owner.
  if (!token && ctx.status >= 400 && ctx.status < 500) {
    const key = error?.code === 'UNAUTHENTICATED' && apiKey
    const from = { ...line, ...(key && { apiKey: shortened(key) }), address }
    logSeldom(log, 'info', `request ${ctx.status} ${error?.reason ?? ''}`, from, 'request')
    // In an outage this happens to every request.
  } else if (error?.code === 'UNAVAILABLE') logSeldom(log, 'warn', 'request 503', line, 'request')
  else if (error?.code === 'INTERNAL_SERVER_ERROR') log.error(line, 'request')
  else log.info(line, 'request')
}

/** The most logged characters of untrusted text. */
const LONGEST = 200

const shortened = (text: string): string => (text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text)

/**
 * The address of the client. Behind a proxy it is the last entry of X-Forwarded-For, which the proxy added; earlier
 * entries may be forged.
 */
const addressOf = (ctx: Asked, behindProxy: boolean): string | undefined => {
  const forwarded = behindProxy && ctx.get('X-Forwarded-For').split(',').at(-1)!.trim()
  return forwarded && isIP(forwarded) ? forwarded : ctx.req.socket.remoteAddress
}

export type Answerable = {
  status: number
  body: unknown
  state: RequestState
  set(name: string, value: string): void
  accepts(...types: string[]): string | string[] | false
}

export const GRAPHQL_RESPONSE = 'application/graphql-response+json; charset=utf-8'
const JSON_TYPE = 'application/json; charset=utf-8'

/** The preferred media type of a client for answers of the API, by its weights; undefined if it accepts neither. */
export const mediaTypeFor = (ctx: Pick<Answerable, 'accepts'>): string | undefined =>
  [ctx.accepts(JSON_TYPE, GRAPHQL_RESPONSE) || undefined].flat()[0]

/** Answers 503: nothing was done, and when to retry. */
export const answerUnavailable = (ctx: Answerable, error: TidingsError<'UNAVAILABLE'>): void => {
  ctx.set('Retry-After', String(error.details.retryAfterSeconds))
  answerError(ctx, 503, error)
}

/** Answers with one error in the form of a GraphQL result. */
export const answerError = (ctx: Answerable, status: number, error: TidingsError): void => {
  ctx.status = status
  const { reason } = error.details as { reason?: string }
  ctx.state.error = { code: error.code, reason }
  const extensions = extensionsOf(error, ctx.state.requestId)
  ctx.body = JSON.stringify({ errors: [{ message: error.message, extensions }] })
  ctx.set('Content-Type', mediaTypeFor(ctx) ?? JSON_TYPE)
}
