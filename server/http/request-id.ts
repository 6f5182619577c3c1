import { isIP } from 'node:net'
import type { Middleware, ParameterizedContext } from 'koa'
import { v7 as uuid } from 'uuid'
import { extensionsOf, internalError, TidingsError } from '../../shared/errors.ts'
import { type Log, logSeldom } from '../log.ts'
import type { AnsweredRequest } from '../metrics/metrics.ts'

/** What every request carries through the middleware. */
export type RequestState = {
  requestId: string
  /** When it was first seen, by `performance.now()`. */
  arrivedAt: number
  /** Whose request it is, once that is known. */
  token?: { id: string }
  /** The API key that it names, whether there is one or not. */
  apiKey?: string
  /** The field that it asks of the API, or `several`. */
  operation?: string | undefined
  /** The trace that it belongs to. */
  traceId?: string | undefined
  /** What its answer says, where that is an error. */
  told?: { code: string; reason?: string | undefined }
}

/** What a caller's own id of a request may be: it goes into headers and logs as it came. */
const TAKEN_OVER = /^[\w.:/+=@~-]{1,128}$/

/** Asked all the time by machines, which nobody wants to read of. */
const PROBES = ['/livez', '/readyz', '/metrics']

/**
 * Gives each request an id, the caller's own if it sends one, in its answer and in its log line, and turns what is
 * thrown below into an answer.
 *
 * @param given.onAnswered told of each request to the API
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
    const startedMs = performance.now()
    const own = ctx.get('X-Request-Id')
    ctx.state.requestId = TAKEN_OVER.test(own) ? own : uuid()
    ctx.state.arrivedAt = startedMs
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
    const { operation = 'none', told } = ctx.state
    if (ctx.path === '/graphql') {
      onAnswered?.({ operation, code: told?.code ?? 'OK', reason: told?.reason ?? '', durationMs })
    }
    if (!PROBES.includes(ctx.path)) logRequest(log, ctx, durationMs, behindProxy)
  }
}

type Asked = ParameterizedContext<RequestState>

/** One line of one request: who asked for what, and what came of it. */
const logRequest = (log: Log, ctx: Asked, durationMs: number, behindProxy: boolean): void => {
  const { requestId, token, apiKey, operation, told, traceId } = ctx.state
  const line = {
    requestId,
    method: ctx.method,
    path: shortened(ctx.path),
    status: ctx.status,
    durationMs,
    ...(token && { tokenId: token.id }),
    ...(operation && { operation }),
    ...(told && { code: told.code }),
    ...(told?.reason && { reason: told.reason }),
    ...(traceId && { traceId }),
  }
  // Whose request it is is not known where it was refused for want of a signature, or asked for what is not there.
  if (!token && ctx.status >= 400 && ctx.status < 500) {
    const key = told?.code === 'UNAUTHENTICATED' && apiKey
    const from = { ...line, ...(key && { apiKey: shortened(key) }), address: addressOf(ctx, behindProxy) }
    logSeldom(log, 'info', `request ${ctx.status} ${told?.reason ?? ''}`, from, 'request')
    // In an outage, every request.
  } else if (told?.code === 'UNAVAILABLE') logSeldom(log, 'warn', 'request 503', line, 'request')
  else if (told?.code === 'INTERNAL_SERVER_ERROR') log.error(line, 'request')
  else log.info(line, 'request')
}

/** Characters that are logged of what anybody can send. */
const LONGEST = 200

const shortened = (text: string): string => (text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text)

/** Where a request came from; by way of a proxy, which that says: it adds to what it was told, which may be made up. */
const addressOf = (ctx: Asked, behindProxy: boolean): string | undefined => {
  const told = behindProxy ? ctx.get('X-Forwarded-For').split(',').at(-1)!.trim() : ''
  return isIP(told) ? told : ctx.req.socket.remoteAddress
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

/** The media type that a client would have an answer of the API in, by its weights; undefined if neither will do. */
export const mediaTypeFor = (ctx: Pick<Answerable, 'accepts'>): string | undefined =>
  [ctx.accepts(JSON_TYPE, GRAPHQL_RESPONSE) || undefined].flat()[0]

/** Answers that nothing was done, and when to try again. */
export const answerUnavailable = (ctx: Answerable, error: TidingsError<'UNAVAILABLE'>): void => {
  ctx.set('Retry-After', String(error.details.retryAfterSeconds))
  answerError(ctx, 503, error)
}

/** Answers with one error in the shape of a GraphQL result. */
export const answerError = (ctx: Answerable, status: number, error: TidingsError): void => {
  ctx.status = status
  const { reason } = error.details as { reason?: string }
  ctx.state.told = { code: error.code, reason }
  ctx.body = { errors: [{ message: error.message, extensions: extensionsOf(error, ctx.state.requestId) }] }
  ctx.set('Content-Type', mediaTypeFor(ctx) ?? JSON_TYPE)
}
