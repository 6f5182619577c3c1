import { Gauge, Histogram, type Registry } from 'prom-client'

/** Rare enough for an idle process to sleep, frequent enough to detect a blocked event loop. */
const LOOK_EACH_MS = 100

/** Measures how late timers fire, and the utilisation of the event loop. */
export const watchEventLoop = (registry: Registry): { stop(): void } => {
  const lag = new Histogram({
    name: 'tidings_event_loop_lag_seconds',
    help: `How late a timer fires that is due every ${LOOK_EACH_MS} ms, which shows a blocked event loop.`,
    buckets: [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5],
    registers: [registry],
  })
  let dueAt = performance.now() + LOOK_EACH_MS
  const timer = setInterval(() => {
    const now = performance.now()
    lag.observe(Math.max(0, now - dueAt) / 1000)
    dueAt = now + LOOK_EACH_MS
  }, LOOK_EACH_MS).unref()
  let last = performance.eventLoopUtilization()
  new Gauge({
    name: 'tidings_event_loop_utilization',
    help: 'Utilisation of the event loop since the last scrape, 0 to 1.',
    registers: [registry],
    aggregator: 'max',
    collect() {
      const now = performance.eventLoopUtilization()
      this.set(performance.eventLoopUtilization(now, last).utilization)
      last = now
    },
  })
  return { stop: () => clearInterval(timer) }
}
