import type { Middleware } from 'koa'
import { inTrace, readTraceparent, startSpan } from '../tracing/tracing.ts'
import type { Authenticated } from './authenticate.ts'

/**
 * Continues the trace of an authenticated request (`traceparent`), with a span if tracing is on. Unauthenticated
 * requests begin none.
 */
export const traced = (): Middleware<Authenticated> => async (ctx, next) => {
  const { requestId, token, arrivedAt } = ctx.state
  const parent = readTraceparent(ctx.get('traceparent')) ?? null
  const about = { 'http.request.method': ctx.method, 'tidings.request.id': requestId, 'tidings.token.id': token.id }
  const startedAt = Date.now() - (performance.now() - arrivedAt)
  const span = startSpan('POST /graphql', 'server', about, { parent, startedAt })
  const trace = span?.traceparent ?? parent ?? undefined
  if (trace) ctx.state.traceId = trace.split('-')[1]
  let failure: string | undefined
  try {
    await inTrace(trace, next)
    const { error, operation } = ctx.state
    span?.tell({
      'http.response.status_code': ctx.status,
      ...(operation && { 'tidings.operation': operation }),
      ...(error && { 'tidings.error.code': error.code }),
    })
    failure = error?.code
  } catch (error) {
    failure = (error as Error).name
    throw error
  } finally {
    span?.end(failure)
  }
}
