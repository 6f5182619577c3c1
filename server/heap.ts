import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'

/** Of the event loop's time: some five events a second. */
const REST_UTILIZATION = 0.05

/**
 * Gives back to the system what loading the program, or a load that is over, has used and no longer needs, which V8
 * would keep. Blocks for some 50 ms, or 200 ms after a load, so it is done before a process is ready, and at rest.
 */
export const compactHeap = (): void => {
  setFlagsFromString('--expose-gc')
  const collect: NodeJS.GCFunction = runInNewContext('gc')
  collect({ type: 'major', execution: 'sync', flavor: 'last-resort' })
}

/**
 * Compacts the heap once after a load, when the event loop has been at rest for a whole interval. V8 throws compiled
 * code away with the memory, and the next seconds of load cost up to twice their CPU: so this is not done in each pause
 * between two bursts, as V8 would (see `bin/tidings.js`).
 */
export const compactHeapAtRest = (restMs = 60_000): void => {
  let isCompact = true
  let last = performance.eventLoopUtilization()
  const look = (): void => {
    const now = performance.eventLoopUtilization()
    const { utilization } = performance.eventLoopUtilization(now, last)
    last = now
    const isAtRest = utilization < REST_UTILIZATION
    if (isAtRest && !isCompact) compactHeap()
    isCompact = isAtRest
  }
  setInterval(look, restMs).unref()
}
