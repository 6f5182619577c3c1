import { type Database, rows } from './database/connect.ts'

/** Tells the time in epoch milliseconds. */
export type Clock = { now(): number }

const RESYNC_MS = 10_000
/** How far two honest clocks part in that time, at most. */
const DRIFT_MS = 2
const FIRST_ASKED = 5

/**
 * The database's clock, which every process of an installation shares. Asked now and then, and carried on in between by
 * this process's monotonic clock, so that a wrong or jumping clock of one machine moves no due time and no token.
 */
export const databaseClock = async (database: Database): Promise<Clock & { stop(): void }> => {
  let offsetMs = 0
  let toleranceMs = Number.POSITIVE_INFINITY
  const sync = async () => {
    const before = performance.now()
    const [found] = await rows<{ now: number }>(database.knex, `SELECT ${database.dialect.nowMs} AS now`)
    const halfMs = (performance.now() - before) / 2
    const offset = Number(found!.now) - before - halfMs
    // Asked in passing by a busy process, an answer says little: it is off by at most half of what it took. One that
    // says less than is known already counts only if what is known can't be right any more.
    toleranceMs += DRIFT_MS
    if (halfMs > toleranceMs && Math.abs(offset - offsetMs) <= halfMs + toleranceMs) return
    offsetMs = offset
    toleranceMs = halfMs
  }
  // Of a process that is starting, hardly one answer is prompt.
  for (let n = 0; n < FIRST_ASKED; n++) await sync()
  // A database that does not answer leaves the clock running on: the next answer corrects it.
  const timer = setInterval(() => sync().catch(() => {}), RESYNC_MS).unref()
  return { now: () => Math.round(performance.now() + offsetMs), stop: () => clearInterval(timer) }
}
