import { readFileSync } from 'node:fs'
import { loadavg } from 'node:os'

/**
 * Seconds that each test file took, and processor seconds, by its path. `npm test -- --times` writes them.
 *
 * @typedef {Record<string, [wallS: number, cpuS: number]>} Times
 */

/** For a file that has not been measured. */
const UNKNOWN = /** @type {const} */ ([4, 3])
/** Slots for each core: most files wait for something most of the time. */
const SLOTS_A_CORE = 4
/** How many cores' worth of work is begun for each core. */
const LOAD = 1.3
/** Where more processes than this want each core, others have work too: no more files run than there are cores. */
const CROWDED = 6

/** @returns {Times} */
export const readTimes = (/** @type {string} */ file) => {
  try {
    return JSON.parse(readFileSync(file, 'utf8'))
  } catch {
    return {}
  }
}

/**
 * Runs `work` on each file: those that take longest first, and beside those that compute, those that wait.
 *
 * @param {string[]} files
 * @param {object} how
 * @param {Times} how.times
 * @param {number} how.cores
 * @param {number} [how.slots] how many files run at the same time at most
 * @param {AbortSignal} how.stopping
 * @param {(file: string) => Promise<void>} how.work
 */
export const runEach = async (files, { times, cores, slots = cores * SLOTS_A_CORE, stopping, work }) => {
  const wallOf = (/** @type {string} */ file) => (times[file] ?? UNKNOWN)[0]
  const loadOf = (/** @type {string} */ file) => {
    const [wallS, cpuS] = times[file] ?? UNKNOWN
    return Math.min(cores, cpuS / Math.max(wallS, 0.1))
  }
  const waiting = files.toSorted((a, b) => wallOf(b) - wallOf(a))
  /** @type {Map<string, Promise<void>>} */
  const running = new Map()
  const next = () => {
    if (stopping.aborted || running.size >= slots) return undefined
    if (running.size < Math.min(cores, slots)) return waiting[0]
    if ((loadavg()[0] ?? 0) > cores * CROWDED) return undefined
    const load = [...running.keys()].reduce((sum, file) => sum + loadOf(file), 0)
    return waiting.find(file => load + loadOf(file) <= cores * LOAD)
  }
  for (;;) {
    for (let file = next(); file !== undefined; file = next()) {
      const begun = file
      waiting.splice(waiting.indexOf(begun), 1)
      running.set(
        begun,
        work(begun).finally(() => running.delete(begun)),
      )
    }
    if (running.size === 0) return
    await Promise.race(running.values())
  }
}

/**
 * How long the rest takes, by the table of times and by how it went so far; undefined as long as little is known.
 *
 * @param {Times} times
 * @param {{ done: string[], left: string[], elapsedS: number }} progress
 */
export const secondsLeft = (times, { done, left, elapsedS }) => {
  const worth = (/** @type {string[]} */ files) =>
    files.reduce((sum, file) => sum + (times[file] ?? UNKNOWN).reduce((a, b) => a + b), 0)
  const doneWorth = worth(done)
  return doneWorth < worth(left) / 10 ? undefined : (elapsedS * worth(left)) / doneWorth
}
