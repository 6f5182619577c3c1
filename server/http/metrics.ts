import Router from '@koa/router'
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'
import { type Clock, machineAheadMs } from '../clock.ts'
import type { Settlement } from '../delivery/queue.ts'
import { createExposition } from '../processes.ts'
import type { RequestState } from './request-id.ts'

export type Metrics = ReturnType<typeof createMetrics>

export const createMetrics = () => {
  const registry = new Registry()
  // The event loop's delay is sampled by a timer: one that is due every 10 ms would keep an idle process awake.
  collectDefaultMetrics({ register: registry, eventLoopMonitoringPrecision: 500 })
  const attempts = new Counter({
    name: 'tidings_attempts_total',
    help: 'Delivery attempts, by what became of the delivery.',
    labelNames: ['outcome'],
    registers: [registry],
  })
  const duration = new Histogram({
    name: 'tidings_attempt_duration_seconds',
    help: 'Time from sending a delivery to its answer.',
    buckets: [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15],
    registers: [registry],
  })
  return {
    registry,
    /** From now on the machine's own clock is compared with this one. */
    compareWith(clock: Clock): void {
      new Gauge({
        name: 'tidings_clock_offset_seconds',
        help: "How far this machine's clock is ahead of the database's, which Tidings goes by.",
        registers: [registry],
        aggregator: 'average',
        collect() {
          this.set(machineAheadMs(clock) / 1000)
        },
      })
    },
    settled({ outcome, durationMs }: Settlement): void {
      attempts.inc({ outcome: outcome.status })
      duration.observe(durationMs / 1000)
    },
  }
}

/** The metrics of this process, or of all that share its port, in Prometheus' text format. */
export const metricsRoute = ({ registry }: Metrics) => {
  const exposition = createExposition(registry)
  const router = new Router<RequestState>()
  router.get('/metrics', async ctx => {
    ctx.type = registry.contentType
    ctx.body = await exposition()
  })
  return router.routes()
}
