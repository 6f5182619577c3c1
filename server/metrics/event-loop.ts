import { Gauge, Histogram, type Registry } from 'prom-client'
import { atBeat, BEAT_MS } from '../beat.ts'

const LOOK_EACH_MS = 100
/** Of the event loop's time since the last look. */
const REST_UTILIZATION = 0.05
/** Turns since the last look, where only looks wake the process. On a slow machine they alone may exceed the part. */
const REST_TURNS = 2
const REST_ACTIVE_MS = REST_UTILIZATION * BEAT_MS
/** The most that a turn of an event loop takes that nothing blocks. */
const TURN_MS = 5

/**
 * Measures how late timers fire, and the utilisation of the event loop. A process at rest is not woken every 100 ms: it
 * is looked at each second, when it wakes anyway. The timers of that second would have been in time, except one for
 * which the loop was active for longer than its turns explain.
 */
export const watchEventLoop = (registry: Registry): { stop(): void } => {
  const lag = new Histogram({
    name: 'tidings_event_loop_lag_seconds',
    help: `How late a timer fires that is due every ${LOOK_EACH_MS} ms, which shows a blocked event loop.`,
    buckets: [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5],
    registers: [registry],
  })
  const present = () => ({
    utilization: performance.eventLoopUtilization(),
    turns: performance.nodeTiming.uvMetricsInfo.loopCount,
  })
  let before = present()
  let cancel = (): void => {}

  const look = (dueAt: number): void => {
    const now = present()
    const { active, utilization } = performance.eventLoopUtilization(now.utilization, before.utilization)
    const turns = now.turns - before.turns
    const blockedMs = active - TURN_MS * turns
    lag.observe(Math.max(0, performance.now() - dueAt, blockedMs) / 1000)
    before = now
    const isByLooks = turns <= REST_TURNS && active < REST_ACTIVE_MS
    cancel = utilization < REST_UTILIZATION || isByLooks ? lookAtRest() : lookSoon()
  }
  const lookSoon = (): (() => void) => {
    const timer = setTimeout(look, LOOK_EACH_MS, performance.now() + LOOK_EACH_MS).unref()
    return () => clearTimeout(timer)
  }
  const lookAtRest = (): (() => void) => {
    const restsSince = performance.now()
    const inTime = (dueAt: number): void => {
      for (let at = restsSince + LOOK_EACH_MS; at < dueAt - LOOK_EACH_MS / 2; at += LOOK_EACH_MS) lag.observe(0)
      look(dueAt)
    }
    return atBeat(BEAT_MS, inTime, false)
  }
  cancel = lookSoon()

  let last = before.utilization
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
  return { stop: () => cancel() }
}
