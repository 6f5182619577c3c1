import { rest } from '../beat.ts'
import type { Clock } from '../clock.ts'
import { type Database, rows } from '../database/connect.ts'
import { type Swept, sweepOnce } from '../domain/sweep.ts'
import type { Log } from '../log.ts'

/** How soon a process finds rows that another process left to be swept. It knows of its own at once. */
const POLL_MS = 10_000
const SOON_MS = 250

export type Sweeper = {
  /** Reports that rows may have to be swept. */
  look(): void
  stop(): Promise<void>
}

/**
 * Sweeps remaining deliveries of past epochs until it is stopped. Each batch is a short transaction that locks no
 * webhook's row. If the process ends before the last one, other processes do the rest.
 */
export const startSweeper = ({ database, clock, log }: { database: Database; clock: Clock; log: Log }): Sweeper => {
  const stopping = new AbortController()
  let looksNow = new AbortController()

  const sweepAll = async (): Promise<void> => {
    const found = await rows<Swept>(
      database.knex,
      'SELECT id, epoch, ended_epoch, transport FROM webhooks WHERE sweeping = 1 LIMIT 100',
    )
    // Webhooks take turns, so that none waits behind a million rows of another.
    for (let left = found; left.length > 0 && !stopping.signal.aborted; ) {
      const again: Swept[] = []
      for (const webhook of left) if (await sweepOnce(database, clock, webhook)) again.push(webhook)
      left = again
    }
  }

  const running = (async () => {
    for (let isLogged = false; !stopping.signal.aborted; ) {
      try {
        await sweepAll()
        isLogged = false
      } catch (error) {
        if (!isLogged) log.warn({ err: error }, 'deliveries of the past cannot be swept; trying until they can')
        isLogged = true
      }
      await rest(SOON_MS, stopping.signal)
      const signal = AbortSignal.any([looksNow.signal, stopping.signal])
      await rest(POLL_MS, signal)
      if (looksNow.signal.aborted) looksNow = new AbortController()
    }
  })()

  return {
    look: () => looksNow.abort(),
    async stop() {
      stopping.abort()
      await running
    },
  }
}
