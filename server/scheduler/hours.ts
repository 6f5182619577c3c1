import type { Database } from '../database/connect.ts'
import { countHour, forgetHours, hoursToCount } from '../domain/delivery-hours.ts'
import { liveProcesses } from '../keys/master-keys.ts'
import type { Step } from './step.ts'

/** The migration with which a process began to leave marks. */
const MARKS_SINCE = '0024_delivery_hours'

/** The databases of which this process has counted hours. */
const begun = new WeakSet<Database>()

/**
 * Counts the deliveries of hours that are over. A process of an earlier version leaves no marks of what it changes:
 * while one runs nothing is kept, and a process that starts, perhaps after one, begins anew.
 */
export const countHours: Step = {
  name: 'count hours',
  everyMs: 60_000,
  largestPart: 1 / 10,
  begin({ database, clock }) {
    let owed: number[] | undefined
    return async () => {
      if (owed === undefined) {
        const others = await liveProcesses(database.knex)
        const isEarlier = others.some(({ knows }) => knows === null || knows < MARKS_SINCE)
        if (isEarlier || !begun.has(database)) await forgetHours(database.knex)
        begun.add(database)
        owed = isEarlier ? [] : await hoursToCount(database.knex, clock.now())
      }
      const next = owed.shift()
      if (next !== undefined) await countHour(database, next)
      return owed.length > 0
    }
  },
}
