import { setImmediate as othersTurn, setTimeout as sleep } from 'node:timers/promises'
import type { Clock } from '../clock.ts'
import { type Database, isContention, isRefusal, rows } from '../database/connect.ts'
import type { Log } from '../log.ts'
import type { Settlement } from './queue.ts'
import { settle } from './settle.ts'
import type { DeliveryWatch } from './watch.ts'

/** Settlements of one transaction: enough to share the cost of a commit, few enough to keep it short. */
const BATCH = 256
/** After a batch, further results gather for so long: a transaction for each would cost several times as much. */
const GATHERING_MS = 50
const ENOUGH = 32
/** SQLite blocks the process while it works, so the recorder rests as long as it worked, but not longer than this. */
const LONGEST_REST_MS = 10
/** The pause before an unreachable database is tried again. */
export const OUTAGE_MS = 250
/** The pause before a locked row is tried again. */
const HELD_MS = 50
/** After this many tries it queues up for a delivery's line: under a constant stream of events that is never free. */
const IMPATIENT_TRIES = 3
/** The most deliveries that queue up for a line at once: each has a connection. */
const MOST_PATIENT = 4

/** Resolves when the settlement is recorded, however long the database is unreachable. */
export type Recorder = (settlement: Settlement) => Promise<void>

type Waiting = { settlement: Settlement; recorded: () => void; tries: number }

/**
 * Records the results of attempts in batches, each with its answer. Only the end of the process loses results that wait
 * here: a database error counts as the settlement's own fault only if the database refuses a value.
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
  let patient = 0
  let endGathering = (): void => {}

  const put = (one: Waiting): void => {
    waiting.push(one)
    if (!isRecording) recordAll()
    else if (isAwaited(one) || waiting.length >= ENOUGH) endGathering()
  }

  /** The first result is recorded at once. Those that arrive during its transaction or soon after share the next. */
  const recordAll = async (): Promise<void> => {
    isRecording = true
    while (waiting.length > 0) {
      await othersTurn()
      const startedAt = performance.now()
      const batch = waiting.splice(0, batchSize)
      const busy = new Set(await recordBatch(batch.map(({ settlement }) => settlement)))
      watch?.recorded((performance.now() - startedAt) / 1000)
      for (const one of batch) {
        if (busy.has(one.settlement)) putAgain(one)
        else one.recorded()
      }
      if (waiting.length < ENOUGH && !waiting.some(isAwaited)) await gather()
      else if (database.dialect.isEmbedded && batch.length > 1) {
        await sleep(Math.min(LONGEST_REST_MS, performance.now() - startedAt))
      }
    }
    isRecording = false
  }

  const gather = (): Promise<void> =>
    new Promise(resolve => {
      const timer = setTimeout(resolve, GATHERING_MS)
      endGathering = () => {
        clearTimeout(timer)
        resolve()
      }
    })

  const putAgain = (one: Waiting): void => {
    one.tries += 1
    const isPatient = one.tries > IMPATIENT_TRIES && patient < MOST_PATIENT
    if (isPatient) patient += 1
    setTimeout(isPatient ? recordPatiently : put, HELD_MS, one)
  }

  const recordPatiently = async (one: Waiting): Promise<void> => {
    // An error here recurs in the next batch, which handles it.
    const busy = await settle(database, [one.settlement], clock.now, { waitsForLines: true }).catch(() => [one])
    patient -= 1
    if (busy.length === 0) one.recorded()
    else put(one)
  }

  /**
   * Waits while the database is unreachable or read-only. Otherwise records a failed batch one by one, so that one
   * failure does not block the others.
   *
   * @returns the settlements whose rows another transaction has locked
   */
  const recordBatch = async (settlements: Settlement[]): Promise<Settlement[]> => {
    for (let isLogged = false; ; ) {
      try {
        const busy = await settle(database, settlements, clock.now)
        if (isLogged) log.info({ attempts: settlements.length }, 'attempts are recorded again')
        return busy
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
    const busy: Settlement[] = []
    for (const settlement of settlements) busy.push(...(await recordBatch([settlement])))
    return busy
  }

  /** A value that the database refuses can only come from outside. */
  const recordWithoutTexts = async (settlement: Settlement, cause: unknown): Promise<Settlement[]> => {
    const { evidence: _, ...rest } = settlement
    const { deliveryId } = settlement.job
    const result =
      settlement.result.kind === 'response' ? { ...settlement.result, body: '' } : { ...settlement.result, detail: '' }
    while (true) {
      try {
        const busy = await settle(database, [{ ...rest, result }], clock.now)
        if (busy.length > 0) return [settlement]
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

  return settlement => new Promise(recorded => put({ settlement, recorded, tries: 0 }))
}

/** Whether the next delivery of a line waits for this result. */
const isAwaited = ({ settlement: { job } }: Waiting): boolean => job.line !== null

const isReachable = async (database: Database): Promise<boolean> => {
  try {
    await rows(database.knex, 'SELECT 1')
    return true
  } catch {
    return false
  }
}
