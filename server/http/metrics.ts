import { setTimeout as sleep } from 'node:timers/promises'
import Router from '@koa/router'
import type { Metrics } from '../metrics/metrics.ts'
import { createExposition } from '../processes.ts'
import type { RequestState } from './request-id.ts'

/** The shortest time from one exposition to the next, which is computed for all who wait for it. */
const PAUSE_MS = 100

/** Serves the metrics of this process, or of all that share its port, in Prometheus' text format. */
export const metricsRoute = ({ registry, shared }: Metrics) => {
  const exposition = createExposition(registry, shared)
  let beganAt = Number.NEGATIVE_INFINITY
  let next: Promise<string> | undefined
  const begin = async (): Promise<string> => {
    await sleep(Math.max(0, beganAt + PAUSE_MS - performance.now()))
    next = undefined
    beganAt = performance.now()
    return exposition()
  }
  const router = new Router<RequestState>()
  router.get('/metrics', async ctx => {
    ctx.type = registry.contentType
    next ??= begin()
    ctx.body = await next
  })
  return router.routes()
}
