import { setImmediate as othersTurn, setTimeout as sleep } from 'node:timers/promises'
import type { Clock } from '../clock.ts'
import { type Database, isContention, isRefusal, rows } from '../database/connect.ts'
import type { Log } from '../log.ts'
import type { Settlement } from './queue.ts'
import { settle } from './settle.ts'
import type { DeliveryWatch } from './watch.ts'

/** Settlements of one transaction: enough that the database's commit is shared, few enough that it is short. */
const BATCH = 256
/** SQLite rests between two batches for so long at most. */
const LONGEST_REST_MS = 10
/** Out of reach, the database is tried again after so long. */
export const OUTAGE_MS = 250
/** What another transaction holds is tried again after so long. */
const HELD_MS = 50

/** Resolves when the settlement has been recorded, however long the database is out of reach. */
export type Recorder = (settlement: Settlement) => Promise<void>

type Waiting = { settlement: Settlement; recorded: () => void }

/**
 * Records what attempts have come to, in batches, each with the answer that it
 * had. Nothing but the end of the process loses what waits here: what the database
 * says is believed to be the settlement's own fault only if it refuses a value.
 */
export const createRecorder = ({
  database,
  clock,
  log,
  watch,
  batchSize = BATCH,
}: {
  database: Database
  clock: Clock
  log: Log
  watch?: DeliveryWatch | undefined
  batchSize?: number
}): Recorder => {
  const waiting: Waiting[] = []
  let isRecording = false

  const put = (one: Waiting): void => {
    waiting.push(one)
    if (!isRecording) recordAll()
  }

  /**
   * What arrives while one transaction runs goes into the next: at once when idle, in batches when busy. SQLite lets
   * nothing arrive while it works, so it rests as long as it worked.
   */
  const recordAll = async (): Promise<void> => {
    isRecording = true
    while (waiting.length > 0) {
      await othersTurn()
      const startedAt = performance.now()
      const batch = waiting.splice(0, batchSize)
      const held = new Set(await recordBatch(batch.map(({ settlement }) => settlement)))
      watch?.recorded((performance.now() - startedAt) / 1000)
      for (const one of batch) {
        if (held.has(one.settlement)) setTimeout(put, HELD_MS, one)
        else one.recorded()
      }
      if (database.dialect.isEmbedded && batch.length > 1) {
        await sleep(Math.min(LONGEST_REST_MS, performance.now() - startedAt))
      }
    }
    isRecording = false
  }

  /**
   * Waits while the database is out of reach, or can't be written. If it can, what fails together is recorded one by
   * one: none keeps the others back.
   *
   * @returns those that another transaction holds
   */
  const recordBatch = async (settlements: Settlement[]): Promise<Settlement[]> => {
    for (let isLogged = false; ; ) {
      try {
        const held = await settle(database, settlements, clock.now)
        if (isLogged) log.info({ attempts: settlements.length }, 'attempts are recorded again')
        return held
      } catch (error) {
        if (isContention(error)) {
          if (settlements.length === 1) return settlements
          return await oneByOne(settlements)
        }
        if (isRefusal(error) && (await isReachable(database))) {
          if (settlements.length > 1) return await oneByOne(settlements)
          return await recordWithoutTexts(settlements[0]!, error)
        }
        if (!isLogged) log.error({ err: error, attempts: settlements.length }, 'attempts wait to be recorded')
        isLogged = true
        await sleep(OUTAGE_MS)
      }
    }
  }

  const oneByOne = async (settlements: Settlement[]): Promise<Settlement[]> => {
    const held: Settlement[] = []
    for (const settlement of settlements) held.push(...(await recordBatch([settlement])))
    return held
  }

  /** What the database refuses can only be what came from outside. */
  const recordWithoutTexts = async (settlement: Settlement, cause: unknown): Promise<Settlement[]> => {
    const { deliveryId } = settlement.job
    const result =
      settlement.result.kind === 'response' ? { ...settlement.result, body: '' } : { ...settlement.result, detail: '' }
    while (true) {
      try {
        const held = await settle(database, [{ ...settlement, result }], clock.now)
        if (held.length > 0) return [settlement]
        log.error({ err: cause, deliveryId }, 'an attempt was recorded without its answer, which the database refuses')
        return []
      } catch (error) {
        if (isRefusal(error)) {
          log.error(
            { err: error, deliveryId },
            'an attempt cannot be recorded; it is made again when its lease runs out',
          )
          return []
        }
        await sleep(OUTAGE_MS)
      }
    }
  }

  return settlement => new Promise(recorded => put({ settlement, recorded }))
}

const isReachable = async (database: Database): Promise<boolean> => {
  try {
    await rows(database.knex, 'SELECT 1')
    return true
  } catch {
    return false
  }
}
