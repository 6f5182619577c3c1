import { readFileSync } from 'node:fs'
import { cpus } from 'node:os'
import { setTimeout } from 'node:timers/promises'

/**
 * Seconds that each test file took, and processor seconds, by its path. `npm test -- --times` writes them.
 *
 * @typedef {Record<string, [wallS: number, cpuS: number]>} Times
 */

/** For a file that has not been measured. */
const UNKNOWN = /** @type {const} */ ([4, 3])
/** Slots for each core: most files wait for something most of the time. */
const SLOTS_A_CORE = 4
/** Beyond this share of the cores, another file makes all of them slower: what waits looks more often than it would. */
const BUSY = 0.9
const LOOK_MS = 1_000

/** Returns the share of the machine's processor time that was used since it was last called, by anyone. */
const createMeter = () => {
  const read = () => {
    const times = cpus().map(({ times }) => times)
    const idle = times.reduce((sum, { idle }) => sum + idle, 0)
    return { idle, all: times.reduce((sum, { user, nice, sys, irq }) => sum + user + nice + sys + irq, idle) }
  }
  let last = read()
  return () => {
    const before = last
    last = read()
    return last.all > before.all ? 1 - (last.idle - before.idle) / (last.all - before.all) : 1
  }
}

/** @returns {Times} */
export const readTimes = (/** @type {string} */ file) => {
  try {
    return JSON.parse(readFileSync(file, 'utf8'))
  } catch {
    return {}
  }
}

/**
 * Runs `work` on each file, those that take longest first. As many run at once as there are cores, because most files
 * wait, and more as long as they did not need all cores together when they were measured, or the machine has processor
 * time left.
 *
 * @param {string[]} files
 * @param {object} how
 * @param {Times} how.times
 * @param {number} how.cores
 * @param {number} [how.slots] how many files run at the same time at most
 * @param {AbortSignal} how.stopping
 * @param {(file: string) => Promise<void>} how.work
 * @param {() => number} [how.busyShare] of the processor time since it was last called
 * @param {number} [how.lookMs] how often another file may begin beyond one for each core
 */
export const runEach = async (
  files,
  { times, cores, slots = cores * SLOTS_A_CORE, stopping, work, busyShare = createMeter(), lookMs = LOOK_MS },
) => {
  const wallOf = (/** @type {string} */ file) => (times[file] ?? UNKNOWN)[0]
  /** The cores that a file keeps busy. */
  const needOf = (/** @type {string} */ file) => {
    const [wallS, cpuS] = times[file] ?? UNKNOWN
    return wallS > 0 ? cpuS / wallS : 1
  }
  const waiting = files.toSorted((a, b) => wallOf(b) - wallOf(a))
  /** @type {Map<Promise<void>, number>} */
  const running = new Map()
  const begin = () => {
    const file = waiting.shift()
    if (file === undefined) return
    const run = work(file).finally(() => running.delete(run))
    running.set(run, needOf(file))
  }
  const isFree = () => !stopping.aborted && waiting.length > 0 && running.size < slots
  const needed = () => [...running.values()].reduce((sum, need) => sum + need, needOf(waiting[0] ?? ''))
  const hasRoom = () => running.size < cores || needed() <= cores
  let look = setTimeout(lookMs, undefined, { ref: false })
  while (running.size > 0 || isFree()) {
    while (isFree() && hasRoom()) begin()
    const isLook = await Promise.race([...[...running.keys()].map(run => run.then(() => false)), look.then(() => true)])
    if (!isLook) continue
    look = setTimeout(lookMs, undefined, { ref: false })
    if (busyShare() < BUSY && isFree()) begin()
  }
}

/**
 * How long the rest takes, by the table of times and by how it went so far; undefined as long as little is known.
 *
 * @param {Times} times
 * @param {object} progress
 * @param {string[]} progress.done
 * @param {ReadonlyMap<string, number>} progress.running for how many seconds
 * @param {string[]} progress.waiting
 * @param {number} progress.elapsedS
 */
export const secondsLeft = (times, { done, running, waiting, elapsedS }) => {
  const worthOf = (/** @type {string} */ file) => (times[file] ?? UNKNOWN).reduce((a, b) => a + b)
  const worth = (/** @type {string[]} */ files) => files.reduce((sum, file) => sum + worthOf(file), 0)
  const begun = [...running].reduce((sum, [file, seconds]) => {
    const [wallS] = times[file] ?? UNKNOWN
    return sum + worthOf(file) * Math.min(MOST_OF_RUNNING, seconds / wallS)
  }, 0)
  const doneWorth = worth(done) + begun
  const leftWorth = worth([...running.keys(), ...waiting]) - begun
  return doneWorth < leftWorth / 10 ? undefined : (elapsedS * leftWorth) / doneWorth
}

/** A file that runs is not done, however long it has taken. */
const MOST_OF_RUNNING = 0.95
