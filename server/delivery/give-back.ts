import { setTimeout as sleep } from 'node:timers/promises'
import type { Clock } from '../clock.ts'
import { type Database, isOutage } from '../database/connect.ts'
import { type Log, logSeldom } from '../log.ts'
import { LEASE_MS } from './leases.ts'
import { type Job, putBack } from './queue.ts'
import { OUTAGE_MS } from './recorder.ts'

/**
 * Gives back claims that were not sent: they are due again, for any process. What cannot be given back now is given
 * back when the database returns, or its lease runs out.
 */
export class GiveBack {
  readonly #tools: { database: Database; clock: Clock; log: Log }
  readonly #isStopping: () => boolean
  readonly #onLate: () => void

  /** @param onLate called when claims have been given back after an outage */
  constructor(
    tools: { database: Database; clock: Clock; log: Log },
    given: { isStopping: () => boolean; onLate: () => void },
  ) {
    this.#tools = tools
    this.#isStopping = given.isStopping
    this.#onLate = given.onLate
  }

  async now(jobs: Job[], dueAt: number): Promise<void> {
    const { database, clock, log } = this.#tools
    try {
      await putBack(database, jobs, { dueAt, now: clock.now() })
    } catch (error) {
      logSeldom(log, 'warn', 'give back claims', { err: error }, 'claims cannot be given back; their lease runs out')
      if (isOutage(error)) void this.later(jobs, dueAt)
    }
  }

  /**
   * Claims that were not sent, or whose commit is in doubt, need not wait for their lease, because no other process
   * knows of them. They are given back when the database returns, before this process claims again.
   */
  async later(jobs: Job[], dueAt: number): Promise<void> {
    const { database, clock } = this.#tools
    for (const until = clock.now() + LEASE_MS; !this.#isStopping() && clock.now() < until; ) {
      await sleep(OUTAGE_MS)
      const isDone = await putBack(database, jobs, { dueAt, now: clock.now() }).then(
        () => true,
        () => false,
      )
      if (isDone) return this.#onLate()
    }
  }
}
