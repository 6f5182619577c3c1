import Router from '@koa/router'
import type { Metrics } from '../metrics/metrics.ts'
import { createExposition } from '../processes.ts'
import type { RequestState } from './request-id.ts'

/** Serves the metrics of this process, or of all that share its port, in Prometheus' text format. */
export const metricsRoute = ({ registry, shared }: Metrics) => {
  const exposition = createExposition(registry, shared)
  const router = new Router<RequestState>()
  router.get('/metrics', async ctx => {
    ctx.type = registry.contentType
    ctx.body = await exposition()
  })
  return router.routes()
}
