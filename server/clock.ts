import { type Database, rows } from './database/connect.ts'

/** Tells the time in epoch milliseconds. */
export type Clock = { now(): number }

const RESYNC_MS = 10_000

/**
 * The database's clock, which every process of an installation shares. Asked now and then, and carried on in between by
 * this process's monotonic clock, so that a wrong or jumping clock of one machine moves no due time and no token.
 */
export const databaseClock = async (database: Database): Promise<Clock & { stop(): void }> => {
  let offsetMs = 0
  const sync = async () => {
    const before = performance.now()
    const [found] = await rows<{ now: number }>(database.knex, `SELECT ${database.dialect.nowMs} AS now`)
    offsetMs = Number(found!.now) - (before + performance.now()) / 2
  }
  await sync()
  // A database that does not answer leaves the clock running on: the next answer corrects it.
  const timer = setInterval(() => sync().catch(() => {}), RESYNC_MS).unref()
  return { now: () => Math.round(performance.now() + offsetMs), stop: () => clearInterval(timer) }
}
