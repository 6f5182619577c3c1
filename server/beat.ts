import { AsyncLocalStorage } from 'node:async_hooks'
import { setTimeout as sleep } from 'node:timers/promises'

// What may be done up to a second sooner is done when a second of the process begins: a beat. One timer wakes the
// process for all of it, so that a process at rest sleeps in between.

export const BEAT_MS = 1_000
/** A beat that is nearer than this has just been. A timer may fire a little before its time. */
const JUST_BEEN_MS = 20

type Beat = { dueAt: number; work: (dueAt: number) => void; isAwaited: boolean }

const beats = new Set<Beat>()
let timer: NodeJS.Timeout | undefined
let ringsAt = Number.POSITIVE_INFINITY
/** Work at a beat belongs to no request. */
const inNoContext = AsyncLocalStorage.snapshot()

const ring = (): void => {
  timer = undefined
  ringsAt = Number.POSITIVE_INFINITY
  const due = [...beats].filter(({ dueAt }) => dueAt <= performance.now() + JUST_BEEN_MS)
  for (const beat of due) beats.delete(beat)
  try {
    for (const { work, dueAt } of due) work(dueAt)
  } finally {
    set()
  }
}

/** Sets the timer for the next beat that has work. It keeps the process running only while someone waits for it. */
const set = (): void => {
  const next = Math.min(...[...beats].map(({ dueAt }) => dueAt))
  // One that is long overdue was lost, such as with the clock of a test.
  if (next !== ringsAt || performance.now() > ringsAt + BEAT_MS) {
    clearTimeout(timer)
    ringsAt = next
    timer = beats.size === 0 ? undefined : setTimeout(() => inNoContext(ring), Math.max(1, next - performance.now()))
  }
  if ([...beats].some(({ isAwaited }) => isAwaited)) timer?.ref()
  else timer?.unref()
}

/**
 * Calls `work` at the last beat before `ms` are over, or at the first one, with the time of the beat by
 * `performance.now()`.
 *
 * @param isAwaited whether the process goes on running until then
 * @returns a function that cancels it
 */
export const atBeat = (ms: number, work: (dueAt: number) => void, isAwaited = true): (() => void) => {
  const now = performance.now()
  const last = Math.floor((now + ms + JUST_BEEN_MS) / BEAT_MS) * BEAT_MS
  const beat = { dueAt: last > now + JUST_BEEN_MS ? last : last + BEAT_MS, work, isAwaited }
  beats.add(beat)
  set()
  return () => {
    if (beats.delete(beat)) set()
  }
}

/** Calls `work` at a beat about each `everyMs`, as `setInterval` does, while the process runs for another reason. */
export const eachBeat = (everyMs: number, work: () => void): (() => void) => {
  const again = (): (() => void) =>
    atBeat(
      everyMs,
      () => {
        cancel = again()
        work()
      },
      false,
    )
  let cancel = again()
  return () => cancel()
}

/** Waits for a time, of which whole seconds end at a beat, or for the signal. */
export const rest = (ms: number, signal: AbortSignal): Promise<void> => {
  if (ms < BEAT_MS) return sleep(ms, undefined, { signal }).catch(() => {})
  return new Promise(resolve => {
    if (signal.aborted) return resolve()
    const end = (): void => {
      cancel()
      signal.removeEventListener('abort', end)
      resolve()
    }
    const cancel = atBeat(ms, end)
    signal.addEventListener('abort', end)
  })
}
