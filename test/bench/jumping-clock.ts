import { readFileSync } from 'node:fs'
import { shiftDate } from '../support/shifted-date.ts'

// Preloaded into a process whose machine's clock jumps: `Date` is ahead by the milliseconds in the file CLOCK_FILE.

let aheadMs = 0
setInterval(() => {
  aheadMs = Number(readFileSync(process.env.CLOCK_FILE!, 'utf8'))
}, 200).unref()
shiftDate(() => aheadMs)
