import type { Clock } from '../clock.ts'
import { rows, type Sql } from '../database/connect.ts'
import type { Rider } from '../delivery/rider.ts'

/** The delay after which another process's change is seen. */
const LOOK_MS = 1_000
/** The delivery loop queries its queue about once a second. MISSED_MS after the last time, signs are queried apart. */
const CARRIED_MS = 0.9 * LOOK_MS
const MISSED_MS = 1.5 * LOOK_MS

/** The values that were read, and a time before the read, in epoch milliseconds. */
export type Sign = { ends: string; at: number }
type Ends = { newest_delivery: string | null; newest_entry: string | null }

const COLUMNS = `(SELECT id FROM deliveries ORDER BY id DESC LIMIT 1) AS newest_delivery,
  (SELECT id FROM audit_log ORDER BY id DESC LIMIT 1) AS newest_entry`

/**
 * Signs that something has happened: the newest delivery, and the newest row of the audit log, which has a row for
 * each mutation. A process that delivers reads them along with its query of the queue, without an extra statement.
 */
export const createSigns = (sql: Sql, clock: Clock) => {
  let onBrought: (() => void) | undefined
  let brought: Sign | undefined
  let asking = 0
  /** By `performance.now()`. */
  let askedAt = Number.NEGATIVE_INFINITY
  let carriedAt = Number.NEGATIVE_INFINITY

  const begin = (): void => {
    askedAt = performance.now()
    asking = clock.now()
  }
  const signOf = ({ newest_delivery, newest_entry }: Ends): Sign => ({
    ends: `${newest_delivery} ${newest_entry}`,
    at: asking,
  })

  const rider: Rider = {
    columns() {
      carriedAt = performance.now()
      if (!onBrought || carriedAt - askedAt < CARRIED_MS) return undefined
      begin()
      return COLUMNS
    },
    brought(row) {
      brought = signOf(row as Ends)
      onBrought?.()
    },
  }

  return {
    rider,
    /** Reads signs along with the queue from now on, and calls `told` for each. Without `told`, stops doing so. */
    bring(told?: () => void): void {
      onBrought = told
      brought = undefined
    },
    /** Milliseconds until a sign is to be queried, if none comes with the queue. */
    dueInMs: (): number => {
      const isCarried = performance.now() - carriedAt < 2 * MISSED_MS
      return Math.max(0, askedAt + (isCarried ? MISSED_MS : LOOK_MS) - performance.now())
    },
    /** The sign that came with the queue; else, if it is due, queries one. */
    async take(): Promise<Sign | undefined> {
      const carried = brought
      brought = undefined
      if (carried || this.dueInMs() > 0) return carried
      begin()
      const [row] = await rows<Ends>(sql, `SELECT ${COLUMNS}`)
      return signOf(row!)
    },
  }
}

export type Signs = ReturnType<typeof createSigns>
