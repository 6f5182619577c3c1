import type { Middleware } from 'koa'
import { TidingsError } from '../../shared/errors.ts'
import { answerError, type RequestState } from './request-id.ts'

/** What routers report about known paths. */
type Matched = { matched?: { methods: string[] }[] }

/** Answers requests that nothing before it has: the path is unknown, or has other methods. */
export const nothingHere: Middleware<RequestState, Matched> = ctx => {
  const methods = new Set((ctx.matched ?? []).flatMap(route => route.methods))
  if (methods.size > 0 && !methods.has(ctx.method)) return refuseMethod(ctx, [...methods])
  const hint = 'the API is at POST /graphql, and GET / lists the rest.'
  answerError(ctx, 404, new TidingsError('NOT_FOUND', `There is nothing at ${ctx.method} ${ctx.path}; ${hint}`))
}

/** Passes some methods, and answers the others with 405 and `Allow`. */
export const onlyMethods =
  (...methods: string[]): Middleware<RequestState> =>
  (ctx, next) =>
    methods.includes(ctx.method) ? next() : refuseMethod(ctx, methods)

const refuseMethod = (ctx: Parameters<Middleware<RequestState>>[0], methods: string[]): void => {
  ctx.set('Allow', methods.join(', '))
  if (ctx.method === 'OPTIONS') {
    ctx.status = 204
    return
  }
  const message = `${ctx.path} takes ${methods.join(' and ')}, not ${ctx.method}.`
  answerError(ctx, 405, new TidingsError('BAD_USER_INPUT', message))
}
