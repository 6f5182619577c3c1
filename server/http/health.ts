import type { Context } from 'koa'
import type { Readiness } from '../readiness.ts'
import { answerJson } from './json.ts'
import type { RequestState } from './request-id.ts'
import { Router } from './router.ts'

/**
 * Serves health checks. Live: the process answers. Ready: the database can be written, its schema is current, and the
 * process is not shutting down.
 */
export const health = (readiness: Readiness) => {
  const router = new Router<RequestState>()

  router.get('/livez', ctx => {
    answerJson(ctx, { status: 'live' })
  })

  router.get('/readyz', async ctx => {
    const fault = await readiness.fault()
    if (fault) return notReady(ctx, fault)
    answerJson(ctx, { status: 'ready' })
  })

  return router.routes()
}

export const notReady = (ctx: Pick<Context, 'status' | 'type' | 'body'>, reason: string): void => {
  ctx.status = 503
  answerJson(ctx, { status: 'not ready', reason })
}
