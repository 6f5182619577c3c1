import { atBeat, BEAT_MS } from '../beat.ts'

export type Alarm = {
  /** Rings in `ms` at the latest. */
  setIn(ms: number): void
  clear(): void
  /** Stops the alarm for good. */
  stop(): void
}

/** A timer that rings once, at the earliest of the times it is set to. */
export const createAlarm = (ring: () => void): Alarm => {
  let cancel = (): void => {}
  let ringsAt = Number.POSITIVE_INFINITY

  const clear = (): void => {
    cancel()
    ringsAt = Number.POSITIVE_INFINITY
  }

  return {
    setIn(ms) {
      const at = performance.now() + ms
      if (ringsAt <= at) return
      cancel()
      ringsAt = at
      cancel = after(ms, () => {
        ringsAt = Number.POSITIVE_INFINITY
        ring()
      })
    },
    clear,
    stop() {
      clear()
      ringsAt = Number.NEGATIVE_INFINITY
    },
  }
}

const after = (ms: number, work: () => void): (() => void) => {
  if (ms >= BEAT_MS) return atBeat(ms, work)
  const timer = setTimeout(work, ms)
  return () => clearTimeout(timer)
}
