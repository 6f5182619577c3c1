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
 * A clock that stands still until a test moves it. By default it starts at the real time and soon falls behind, so
 * everything compared with it must use it too.
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
