import type { Clock } from '../clock.ts'
import { rows, type Sql } from '../database/connect.ts'
import type { Rider } from '../delivery/rider.ts'

/** How late a change that another process made is seen. */
const LOOK_MS = 1_000
/** The delivery loop looks at its queue each second, more or less; after so long without, this process asks itself. */
const CARRIED_MS = 0.9 * LOOK_MS
const MISSED_MS = 1.5 * LOOK_MS

/** What was read, and a time before it was, in epoch milliseconds. */
export type Sign = { ends: string; at: number }
type Ends = { newest_delivery: string | null; newest_entry: string | null }

const COLUMNS = `(SELECT id FROM deliveries ORDER BY id DESC LIMIT 1) AS newest_delivery,
  (SELECT id FROM audit_log ORDER BY id DESC LIMIT 1) AS newest_entry`

/**
 * What tells that something has happened: the newest delivery, and the newest row of the audit log, which has one of
 * each mutation. In a process that delivers they come along with its look at the queue, and cost no statement.
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
    /** Has signs brought along from here on, and `told` called when there is one; not any more without. */
    bring(told?: () => void): void {
      onBrought = told
      brought = undefined
    },
    /** In how many milliseconds to take one, whether or not it was brought. */
    dueInMs: (): number => {
      const isCarried = performance.now() - carriedAt < 2 * MISSED_MS
      return Math.max(0, askedAt + (isCarried ? MISSED_MS : LOOK_MS) - performance.now())
    },
    /** The one that was brought, or one that is asked for if it is due. */
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
