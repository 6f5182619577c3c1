import { shiftDate } from '../../support/shifted-date.ts'

// Preloaded into a process whose machine has a wrong clock: `Date` is ahead by CLOCK_AHEAD_MS.

const aheadMs = Number(process.env.CLOCK_AHEAD_MS)
shiftDate(() => aheadMs)
