import type { Clock } from '../../server/clock.ts'

export type TestClock = Clock & {
  /** Moves the clock forward. */
  advance(ms: number): void
  /** Puts the clock to a time in epoch milliseconds. */
  set(ms: number): void
}

/** A clock that stands still until a test moves it. It starts at the real time unless told otherwise. */
export const testClock = (startMs: number = Date.now()): TestClock => {
  let nowMs = startMs
  return {
    now: () => nowMs,
    advance: ms => {
      nowMs += ms
    },
    set: ms => {
      nowMs = ms
    },
  }
}
