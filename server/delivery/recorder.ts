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

type Waiting = { settlement: Settlement; recorded: () => void; tries: number }

type Given = {
  database: Database
  clock: Clock
  log: Log
  watch?: DeliveryWatch | undefined
  batchSize?: number
}

/**
 * Records the results of attempts in batches, each with its answer. Only the end of the process loses results that wait
 * here: a database error counts as the settlement's own fault only if the database refuses a value.
 */
export class Recorder {
  readonly #batchSize: number
  readonly #watch: Given['watch']
  readonly #database: Given['database']
  readonly #clock: Given['clock']
  readonly #log: Given['log']
  readonly #waiting: Waiting[] = []
  #isRecording = false
  #patient = 0
  #endGathering = (): void => {}

  constructor({ database, clock, log, watch, batchSize = BATCH }: Given) {
    this.#batchSize = batchSize
    this.#watch = watch
    this.#database = database
    this.#clock = clock
    this.#log = log
  }

  /** Resolves when the settlement is recorded, however long the database is unreachable. */
  record(settlement: Settlement): Promise<void> {
    return new Promise(recorded => this.#put({ settlement, recorded, tries: 0 }))
  }

  #put(one: Waiting): void {
    this.#waiting.push(one)
    if (!this.#isRecording) this.#recordAll()
    else if (isAwaited(one) || this.#waiting.length >= ENOUGH) this.#endGathering()
  }

  /** The first result is recorded at once. Those that arrive during its transaction or soon after share the next. */
  async #recordAll(): Promise<void> {
    this.#isRecording = true
    while (this.#waiting.length > 0) {
      await othersTurn()
      const startedAt = performance.now()
      const batch = this.#waiting.splice(0, this.#batchSize)
      const busy = new Set(await this.#recordBatch(batch.map(({ settlement }) => settlement)))
      this.#watch?.recorded((performance.now() - startedAt) / 1000)
      for (const one of batch) {
        if (busy.has(one.settlement)) this.#putAgain(one)
        else one.recorded()
      }
      if (this.#waiting.length < ENOUGH && !this.#waiting.some(isAwaited)) await this.#gather()
      else if (this.#database.dialect.isEmbedded && batch.length > 1) {
        await sleep(Math.min(LONGEST_REST_MS, performance.now() - startedAt))
      }
    }
    this.#isRecording = false
  }

  #gather(): Promise<void> {
    return new Promise(resolve => {
      const timer = setTimeout(resolve, GATHERING_MS)
      this.#endGathering = () => {
        clearTimeout(timer)
        resolve()
      }
    })
  }

  #putAgain(one: Waiting): void {
    one.tries += 1
    const isPatient = one.tries > IMPATIENT_TRIES && this.#patient < MOST_PATIENT
    if (isPatient) this.#patient += 1
    setTimeout(isPatient ? one => this.#recordPatiently(one) : one => this.#put(one), HELD_MS, one)
  }

  async #recordPatiently(one: Waiting): Promise<void> {
    // An error here recurs in the next batch, which handles it.
    const busy = await settle(this.#database, [one.settlement], this.#clock.now, { waitsForLines: true }).catch(() => [
      one,
    ])
    this.#patient -= 1
    if (busy.length === 0) one.recorded()
    else this.#put(one)
  }

  /**
   * Waits while the database is unreachable or read-only. Otherwise records a failed batch one by one, so that one
   * failure does not block the others.
   *
   * @returns the settlements whose rows another transaction has locked
   */
  async #recordBatch(settlements: Settlement[]): Promise<Settlement[]> {
    for (let isLogged = false; ; ) {
      try {
        const busy = await settle(this.#database, settlements, this.#clock.now)
        if (isLogged) this.#log.info({ attempts: settlements.length }, 'attempts are recorded again')
        return busy
      } catch (error) {
        if (isContention(error)) {
          if (settlements.length === 1) return settlements
          return await this.#oneByOne(settlements)
        }
        if (isRefusal(error) && (await isReachable(this.#database))) {
          if (settlements.length > 1) return await this.#oneByOne(settlements)
          return await this.#recordWithoutTexts(settlements[0]!, error)
        }
        if (!isLogged) this.#log.error({ err: error, attempts: settlements.length }, 'attempts wait to be recorded')
        isLogged = true
        await sleep(OUTAGE_MS)
      }
    }
  }

  async #oneByOne(settlements: Settlement[]): Promise<Settlement[]> {
    const busy: Settlement[] = []
    for (const settlement of settlements) busy.push(...(await this.#recordBatch([settlement])))
    return busy
  }

  /** A value that the database refuses can only come from outside. */
  async #recordWithoutTexts(settlement: Settlement, cause: unknown): Promise<Settlement[]> {
    const { evidence: _, ...rest } = settlement
    const { deliveryId } = settlement.job
    const result =
      settlement.result.kind === 'response' ? { ...settlement.result, body: '' } : { ...settlement.result, detail: '' }
    while (true) {
      try {
        const busy = await settle(this.#database, [{ ...rest, result }], this.#clock.now)
        if (busy.length > 0) return [settlement]
        this.#log.error(
          { err: cause, deliveryId },
          'an attempt was recorded without its answer, which the database refuses',
        )
        return []
      } catch (error) {
        if (isRefusal(error)) {
          this.#log.error(
            { err: error, deliveryId },
            'an attempt cannot be recorded; it is made again when its lease runs out',
          )
          return []
        }
        await sleep(OUTAGE_MS)
      }
    }
  }
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
