import type { Middleware } from 'koa'
import { v7 as uuid } from 'uuid'
import { extensionsOf, internalError, TidingsError } from '../../shared/errors.ts'
import { type Log, logSeldom } from '../log.ts'

/** What every request carries through the middleware. */
export type RequestState = {
  requestId: string
  /** When it was first seen, by `performance.now()`. */
  arrivedAt: number
}

/** Gives each request an id, in its answer and in its log line, and turns what is thrown below into an answer. */
export const requestId =
  (log: Log): Middleware<RequestState> =>
  async (ctx, next) => {
    const startedMs = performance.now()
    ctx.state.requestId = uuid()
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
    const path = ctx.path.length > LONGEST_PATH ? `${ctx.path.slice(0, LONGEST_PATH)}…` : ctx.path
    const line = { requestId: ctx.state.requestId, method: ctx.method, path, status: ctx.status, durationMs }
    // Whose request it is is not known where it was refused for want of a signature, or asked for what is not there.
    if (isStrangers(ctx)) logSeldom(log, 'info', `request ${ctx.status}`, line, 'request')
    else log.info(line, 'request')
  }

/** Characters of a path that are logged. */
const LONGEST_PATH = 200

const isStrangers = ({ status, state }: { status: number; state: object }): boolean =>
  status >= 400 && status < 500 && !('token' in state)

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
  ctx.body = { errors: [{ message: error.message, extensions: extensionsOf(error, ctx.state.requestId) }] }
  ctx.set('Content-Type', mediaTypeFor(ctx) ?? JSON_TYPE)
}
