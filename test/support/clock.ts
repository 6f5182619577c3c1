import type { Clock } from '../../server/clock.ts'

export type TestClock = Clock & {
  /** Moves the clock forward. */
  advance(ms: number): void
  /** Puts the clock to a time in epoch milliseconds. */
  set(ms: number): void
}

/** This machine's. */
export const realClock: Clock = { now: () => Date.now() }

/**
 * A clock that stands still until a test moves it. It starts at the real time unless told otherwise, and is soon behind
 * it: what meets it goes by it as well.
 */
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
