import { eachBeat } from './beat.ts'
import { type Database, rows } from './database/connect.ts'
import type { Log } from './log.ts'

/** A clock in epoch milliseconds. */
export type Clock = { now(): number }

const RESYNC_MS = 10_000
/** The most that two correct clocks drift apart in that time. */
const DRIFT_MS = 2
const FIRST_ASKED = 5

/**
 * The database's clock, which all processes of an installation share. It is read at intervals and continued by this
 * process's monotonic clock, so that a wrong or jumping clock of one machine changes no due time and no token.
 */
export const databaseClock = async (database: Database): Promise<Clock & { stop(): void }> => {
  let offsetMs = 0
  let toleranceMs = Number.POSITIVE_INFINITY
  const sync = async () => {
    const before = performance.now()
    const [found] = await rows<{ now: number }>(database.knex, `SELECT ${database.dialect.nowMs} AS now`)
    const halfMs = (performance.now() - before) / 2
    const offset = Number(found!.now) - before - halfMs
    // The answer to a busy process is imprecise: it is off by at most half of the round trip. A less precise answer
    // than the present one counts only if the present one cannot be right any more.
    toleranceMs += DRIFT_MS
    if (halfMs > toleranceMs && Math.abs(offset - offsetMs) <= halfMs + toleranceMs) return
    offsetMs = offset
    toleranceMs = halfMs
  }
  // While a process starts, hardly any answer is prompt.
  for (let n = 0; n < FIRST_ASKED; n++) await sync()
  // A database that does not answer leaves the clock running on: the next answer corrects it.
  const stop = eachBeat(RESYNC_MS, () => sync().catch(() => {}))
  return { now: () => Math.round(performance.now() + offsetMs), stop }
}

/** A machine with a time server stays far below this. */
const OFF_MS = 1_000
const LOOK_MS = 10_000
/** It is logged once an hour. */
const LOOKS_A_TELLING = 360

/** How far this machine's own clock is ahead of the shared one, in milliseconds. */
export const machineAheadMs = (clock: Clock): number => Date.now() - clock.now()

/** Logs when this machine's own clock is off. Only the times in the log depend on it. */
export const watchMachineClock = (clock: Clock, log: Pick<Log, 'warn'>): { stop(): void } => {
  let untilTold = 0
  const look = () => {
    const aheadMs = machineAheadMs(clock)
    untilTold = Math.max(0, untilTold - 1)
    if (Math.abs(aheadMs) < OFF_MS || untilTold > 0) return
    untilTold = LOOKS_A_TELLING
    const apart = `${Math.abs(aheadMs) / 1000} s ${aheadMs > 0 ? 'ahead of' : 'behind'}`
    log.warn(
      { clockAheadMs: aheadMs },
      `this machine's clock is ${apart} the database's, which Tidings goes by; set it`,
    )
  }
  look()
  const timer = setInterval(look, LOOK_MS).unref()
  return { stop: () => clearInterval(timer) }
}
