import { setImmediate as othersTurn, setTimeout as sleep } from 'node:timers/promises'
import type { Clock } from '../clock.ts'
import { type Database, isRefusal, rows } from '../database/connect.ts'
import type { Log } from '../log.ts'
import { type Settlement, settle } from './queue.ts'

/** Settlements of one transaction: enough that the database's commit is shared, few enough that it is short. */
const BATCH = 256
/** SQLite rests between two batches for so long at most. */
const LONGEST_REST_MS = 10
/** Out of reach, the database is tried again after so long. */
export const OUTAGE_MS = 250

/** Resolves when the settlement has been recorded, however long the database is out of reach. */
export type Recorder = (settlement: Settlement) => Promise<void>

/** Records what attempts have come to, in batches. Nothing but the end of the process loses what waits here. */
export const createRecorder = ({ database, clock, log }: { database: Database; clock: Clock; log: Log }): Recorder => {
  const waiting: { settlement: Settlement; recorded: () => void }[] = []
  let isRecording = false

  /**
   * What arrives while one transaction runs goes into the next: at once when idle, in batches when busy. SQLite lets
   * nothing arrive while it works, so it rests as long as it worked.
   */
  const recordAll = async (): Promise<void> => {
    isRecording = true
    while (waiting.length > 0) {
      await othersTurn()
      const startedAt = performance.now()
      const batch = waiting.splice(0, BATCH)
      await recordBatch(batch.map(({ settlement }) => settlement))
      for (const { recorded } of batch) recorded()
      if (database.dialect.isEmbedded && batch.length > 1) {
        await sleep(Math.min(LONGEST_REST_MS, performance.now() - startedAt))
      }
    }
    isRecording = false
  }

  /**
   * Waits while the database is out of reach. If it is not, what fails together is recorded one by one: none keeps the
   * others back.
   */
  const recordBatch = async (settlements: Settlement[]): Promise<void> => {
    for (let isLogged = false; ; isLogged = true) {
      try {
        return await settle(database, settlements, clock.now())
      } catch (error) {
        if (isRefusal(error) && (await isReachable(database))) {
          if (settlements.length === 1) return recordWithoutTexts(settlements[0]!, error)
          for (const settlement of settlements) await recordBatch([settlement])
          return
        }
        if (!isLogged) log.error({ err: error, attempts: settlements.length }, 'attempts wait to be recorded')
        await sleep(OUTAGE_MS)
      }
    }
  }

  /** What the database refuses can only be what came from outside. */
  const recordWithoutTexts = async (settlement: Settlement, cause: unknown): Promise<void> => {
    const { deliveryId } = settlement.job
    const result =
      settlement.result.kind === 'response' ? { ...settlement.result, body: '' } : { ...settlement.result, detail: '' }
    try {
      await settle(database, [{ ...settlement, result }], clock.now())
      log.error({ err: cause, deliveryId }, 'an attempt was recorded without its answer, which the database refuses')
    } catch (error) {
      log.error({ err: error, deliveryId }, 'an attempt cannot be recorded; it is made again when its lease runs out')
    }
  }

  return settlement =>
    new Promise(recorded => {
      waiting.push({ settlement, recorded })
      if (!isRecording) recordAll()
    })
}

const isReachable = async (database: Database): Promise<boolean> => {
  try {
    await rows(database.knex, 'SELECT 1')
    return true
  } catch {
    return false
  }
}
