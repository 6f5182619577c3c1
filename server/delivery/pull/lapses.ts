import type { EventType } from '../../../shared/vocabulary.ts'
import { eachBeat } from '../../beat.ts'
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

type Given = {
  database: Database
  clock: Clock
  log: Log
  retryScheduleMs: readonly number[]
  record: (settlement: Settlement) => Promise<void>
}

/**
 * Ends the attempts of clients that did not answer in time, about a second after their leases.
 *
 * @param given.record has a settlement recorded, with its effects
 */
export class Lapses {
  readonly #clock: Given['clock']
  readonly #database: Given['database']
  readonly #retryScheduleMs: Given['retryScheduleMs']
  readonly #record: Given['record']
  readonly #log: Given['log']
  #isStopped = false
  #askedAt = performance.now()
  #looking: Promise<void> | undefined
  readonly #stopBeating

  constructor(given: Given) {
    this.#clock = given.clock
    this.#database = given.database
    this.#retryScheduleMs = given.retryScheduleMs
    this.#record = given.record
    this.#log = given.log
    this.#stopBeating = eachBeat(EVERY_MS, () => {
      if (performance.now() - this.#askedAt > MISSED_MS) this.#lookNow()
    })
  }

  async look(): Promise<void> {
    for (let isMore = true; isMore && !this.#isStopped; ) {
      const nowMs = this.#clock.now()
      const lapsed = await lapsedRows(this.#database.knex, nowMs, AT_ONCE)
      const about = await aboutThem(this.#database, lapsed)
      const known = lapsed.filter(row => about.has(row.delivery_id))
      const terms = { nowMs, scheduleMs: this.#retryScheduleMs }
      await Promise.all(known.map(row => this.#record(lapseOf(row, about.get(row.delivery_id)!, terms))))
      isMore = lapsed.length === AT_ONCE
    }
  }

  /** Reports whether leases have ended, as the loop has just found. */
  noticed(hasLapsed: boolean): void {
    this.#askedAt = performance.now()
    if (hasLapsed && !this.#isStopped) this.#lookNow()
  }

  async stop(): Promise<void> {
    this.#isStopped = true
    this.#stopBeating()
    await this.#looking
  }

  #lookNow(): void {
    this.#askedAt = performance.now()
    this.#looking ??= this.look()
      .catch(error =>
        logSeldom(this.#log, 'warn', 'lapses', { err: error }, 'ended leases of clients cannot be looked at'),
      )
      .finally(() => {
        this.#looking = undefined
      })
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
