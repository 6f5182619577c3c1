import type { EventType } from '../../../shared/vocabulary.ts'
import type { Clock } from '../../clock.ts'
import { type Database, marks, rows } from '../../database/connect.ts'
import { type Log, logSeldom } from '../../log.ts'
import type { Job, QueueRow, Settlement } from '../queue.ts'
import { lapseOf } from './answer.ts'
import { lapsedRows } from './take.ts'

/** A loop that is idle asks about once a second along with its own question. One that is not is not waited for. */
const EVERY_MS = 1_000
const MISSED_MS = 1_500
const AT_ONCE = 256

/**
 * Ends the attempts of clients that did not answer in time, about a second after their leases.
 *
 * @param given.record has a settlement recorded, with its effects
 */
export const watchLapses = (given: {
  database: Database
  clock: Clock
  log: Log
  retryScheduleMs: readonly number[]
  record: (settlement: Settlement) => Promise<void>
}) => {
  const { database, clock, log, retryScheduleMs, record } = given
  let isStopped = false
  let askedAt = performance.now()
  let looking: Promise<void> | undefined

  const look = async (): Promise<void> => {
    for (let isMore = true; isMore && !isStopped; ) {
      const nowMs = clock.now()
      const lapsed = await lapsedRows(database.knex, nowMs, AT_ONCE)
      const about = await aboutThem(database, lapsed)
      const known = lapsed.filter(row => about.has(row.delivery_id))
      const terms = { nowMs, scheduleMs: retryScheduleMs }
      await Promise.all(known.map(row => record(lapseOf(row, about.get(row.delivery_id)!, terms))))
      isMore = lapsed.length === AT_ONCE
    }
  }

  const lookNow = (): void => {
    askedAt = performance.now()
    looking ??= look()
      .catch(error => logSeldom(log, 'warn', 'lapses', { err: error }, 'ended leases of clients cannot be looked at'))
      .finally(() => {
        looking = undefined
      })
  }

  const timer = setInterval(() => {
    if (performance.now() - askedAt > MISSED_MS) lookNow()
  }, EVERY_MS)
  timer.unref()
  return {
    look,
    /** Reports whether leases have ended, as the loop has just found. */
    noticed(hasLapsed: boolean): void {
      askedAt = performance.now()
      if (hasLapsed && !isStopped) lookNow()
    },
    async stop(): Promise<void> {
      isStopped = true
      clearInterval(timer)
      await looking
    },
  }
}

type About = Job['webhook'] & { delivery_id: string; url: string; event_type: EventType }

const aboutThem = async (database: Database, lapsed: QueueRow[]): Promise<Map<string, About>> => {
  if (lapsed.length === 0) return new Map()
  const ids = lapsed.map(row => row.delivery_id)
  const found = await rows<About>(
    database.knex,
    `SELECT d.id AS delivery_id, d.event_type, w.url, w.epoch, w.transport, w.access_token_id, w.held_until
     FROM deliveries d JOIN webhooks w ON w.id = d.webhook_id WHERE d.id IN (${marks(ids)})`,
    ids,
  )
  return new Map(found.map(row => [row.delivery_id, row]))
}
