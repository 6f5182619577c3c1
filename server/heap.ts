import { channel } from 'node:diagnostics_channel'
import { PerformanceObserver } from 'node:perf_hooks'
import { getHeapSpaceStatistics, setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'

/** Of the event loop's time: some five events a second. */
const REST_UTILIZATION = 0.05

/** Whoever wants to keep code that V8 has compiled, which it throws away with the memory, does so now. */
const compacting = channel('tidings:heap-compacting')

/**
 * Gives back to the system what loading the program, or a load that is over, has used and no longer needs, which V8
 * would keep. Blocks for some 50 ms, or 200 ms after a load, so it is done at rest, or before a process is ready.
 */
export const compactHeap = (): void => {
  compacting.publish(undefined)
  setFlagsFromString('--expose-gc')
  const collect: NodeJS.GCFunction = runInNewContext('gc')
  collect({ type: 'major', execution: 'sync', flavor: 'last-resort' })
}

/**
 * Where the space of young objects ends to grow: beyond it, an event costs no less CPU. V8's own limit is 128 MB, which
 * garbage fills before it is collected, and --max-semi-space-size is read before a program can set it.
 */
const YOUNG_BYTES = 32 * 2 ** 20

/** Bounds the space of young objects while it grows, and lets it grow again after it was compacted. */
export const boundYoungSpace = (): void => {
  let isBound = false
  new PerformanceObserver(() => {
    const young = getHeapSpaceStatistics().find(({ space_name }) => space_name === 'new_space')!
    if (young.space_size >= YOUNG_BYTES === isBound) return
    isBound = !isBound
    setFlagsFromString(`--semi-space-growth-factor=${isBound ? 1 : 2}`)
  }).observe({ entryTypes: ['gc'] })
}

/**
 * Compacts the heap soon after a start, and once after a load, when the event loop has been at rest for a whole
 * interval. V8 throws compiled code away with the memory, and the next seconds of load cost up to twice their CPU: so
 * this is not done in each pause between two bursts, as V8 would (see `bin/tidings.js`).
 */
export const compactHeapAtRest = ({ firstMs = 10_000, restMs = 60_000 } = {}): void => {
  let isCompact = false
  let last = performance.eventLoopUtilization()
  const look = (): void => {
    const now = performance.eventLoopUtilization()
    const { utilization } = performance.eventLoopUtilization(now, last)
    last = now
    const isAtRest = utilization < REST_UTILIZATION
    if (isAtRest && !isCompact) compactHeap()
    isCompact = isAtRest
    setTimeout(look, restMs).unref()
  }
  setTimeout(look, firstMs).unref()
}
