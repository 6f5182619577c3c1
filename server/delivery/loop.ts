import { setTimeout as sleep } from 'node:timers/promises'
import { v7 as uuid } from 'uuid'
import type { Database } from '../database/connect.ts'
import type { Log } from '../log.ts'
import { type AttemptTools, attempt } from './attempt.ts'
import { cancel, claim, extend, type Job, nextDue, putBack, type Settlement, settle } from './queue.ts'

/** A claim holds for so long, and is extended while its attempts live. What a dead process held is due again after it. */
export const LEASE_MS = 30_000
const EXTEND_EVERY_MS = 10_000
/** Rows of one claim, and of one settle: large enough that the database's commit is shared, small enough to be short. */
const BATCH = 256
/** The table of waits has seconds as its unit; a new event wakes this process at once. */
const POLL_MS = 1_000
/** A webhook that already has this much waiting in memory, by the time its attempts take, gets no more claimed for now. */
const WAITING_MS = 3_000
const PUT_BACK_MS = { least: 250, most: 15_000 }

export type DeliveryLoop = {
  /** Says that something may be due now. */
  wake(): void
  /** Makes the attempt of a job claimed elsewhere in this process, and records it. */
  deliverNow(job: Job): Promise<Settlement>
  /** Resolves when nothing is due, in flight or unrecorded. */
  idle(): Promise<void>
  /** Claims nothing more, and resolves when all that is in flight has been recorded. */
  stop(): Promise<void>
}

/** A webhook's share of this process. */
type Lane = { inFlight: number; waiting: Job[]; averageMs: number; heldUntil: number }

/**
 * Claims what is due, hands it to its webhook's share of connections, sends, and records the answers in batches.
 *
 * @param tools.claims false in a process without the role `delivery`, which makes no attempts but its own pings
 * @param tools.concurrency attempts in flight at most; one webhook takes at most a quarter of them
 */
export const startDeliveryLoop = (
  tools: AttemptTools & {
    database: Database
    log: Log
    concurrency: number
    claims: boolean
    onSettled?: (settlement: Settlement) => void
  },
): DeliveryLoop => {
  const { database, clock, log, concurrency } = tools
  const share = Math.max(1, Math.floor(concurrency / 4))
  const lanes = new Map<string, Lane>()
  /** How many claims of each lease this process still holds. */
  const leases = new Map<string, number>()
  const unrecorded: { settlement: Settlement; recorded: () => void }[] = []
  let inFlight = 0
  let waiting = 0
  /** All places are taken, and more may be due: attempts that end look again. */
  let full = false
  let stopping = false
  let timer: NodeJS.Timeout | undefined
  let looking: Promise<void> | undefined
  let lookAgain = false
  let recording: Promise<void> | undefined
  const idlers: (() => void)[] = []

  const laneOf = (webhookId: string): Lane => {
    let lane = lanes.get(webhookId)
    if (!lane) {
      lane = { inFlight: 0, waiting: [], averageMs: 50, heldUntil: 0 }
      lanes.set(webhookId, lane)
    }
    return lane
  }

  const wake = (): void => {
    if (!tools.claims) {
      checkIdle()
      return
    }
    lookAgain = true
    looking ??= look().finally(() => {
      looking = undefined
      if (lookAgain && !stopping) wake()
      else checkIdle()
    })
  }

  const room = (): number => Math.min(BATCH, concurrency * 2 - inFlight - waiting)

  /** Claims until nothing is due or all places are taken. */
  const look = async (): Promise<void> => {
    clearTimeout(timer)
    try {
      while (lookAgain && !stopping) {
        lookAgain = false
        const limit = room()
        full = limit <= 0
        if (full) return
        const lease = uuid()
        const jobs = await claim(database, { lease, now: clock.now(), limit, leaseMs: LEASE_MS })
        if (jobs.length === limit) lookAgain = true
        if (jobs.length > 0) await accept(jobs, lease)
      }
      if (!stopping) await sleepUntilDue()
    } catch (error) {
      log.error({ err: error }, 'the queue cannot be read; trying again')
      schedule(POLL_MS)
    }
  }

  const sleepUntilDue = async (): Promise<void> => {
    const due = await nextDue(database)
    schedule(due === undefined ? POLL_MS : Math.min(POLL_MS, Math.max(1, due - clock.now())))
  }

  const schedule = (ms: number): void => {
    clearTimeout(timer)
    if (!stopping) timer = setTimeout(wake, ms)
  }

  const accept = async (jobs: Job[], lease: string): Promise<void> => {
    leases.set(lease, jobs.length)
    const back: { claim: Job; dueAt: number }[] = []
    const ended: Job[] = []
    for (const job of jobs) {
      const lane = laneOf(job.webhookId)
      const expectedMs = (lane.waiting.length / share) * lane.averageMs
      lane.heldUntil = Math.max(lane.heldUntil, job.heldUntil ?? 0)
      if (job.webhookStatus !== 'active') ended.push(job)
      else if (lane.heldUntil > clock.now()) back.push({ claim: job, dueAt: lane.heldUntil })
      else if (lane.waiting.length >= share && expectedMs > WAITING_MS) {
        const later = Math.min(Math.max(expectedMs, PUT_BACK_MS.least), PUT_BACK_MS.most)
        back.push({ claim: job, dueAt: clock.now() + Math.round(later) })
      } else {
        lane.waiting.push(job)
        waiting += 1
        start(lane)
      }
    }
    await putBack(database, back)
    if (ended.length > 0) await cancel(database, ended, clock.now())
    for (const job of [...back.map(({ claim }) => claim), ...ended]) release(job)
  }

  const start = (lane: Lane): void => {
    while (lane.inFlight < share && inFlight < concurrency && lane.waiting.length > 0 && !stopping) {
      const job = lane.waiting.shift()!
      waiting -= 1
      if (lane.heldUntil > clock.now()) {
        putBack(database, [{ claim: job, dueAt: lane.heldUntil }]).then(
          () => release(job),
          // Its lease runs out, and it is due again.
          () => release(job),
        )
      } else void make(job, lane)
    }
  }

  const make = async (job: Job, lane: Lane): Promise<Settlement> => {
    lane.inFlight += 1
    inFlight += 1
    const settlement = await attempt(job, tools)
    lane.inFlight -= 1
    inFlight -= 1
    lane.averageMs += (settlement.durationMs - lane.averageMs) / 8
    const { outcome } = settlement
    if (outcome.status === 'pending' && outcome.holdWebhookMs) {
      lane.heldUntil = Math.max(lane.heldUntil, clock.now() + outcome.holdWebhookMs)
    }
    const recorded = record(settlement)
    startWaiting(lane)
    await recorded
    release(job)
    if (lane.inFlight === 0 && lane.waiting.length === 0 && lane.heldUntil <= clock.now()) lanes.delete(job.webhookId)
    tools.onSettled?.(settlement)
    if (outcome.status === 'pending' && !stopping) wakeAt(clock.now() + outcome.retryInMs)
    if (full && !looking && !stopping && room() >= Math.min(BATCH, concurrency) / 2) wake()
    checkIdle()
    return settlement
  }

  /** The place that has become free goes to the webhook it belonged to, or, where that has nothing, to the others in turn. */
  const startWaiting = (first: Lane): void => {
    start(first)
    if (waiting === 0 || inFlight >= concurrency) return
    for (const lane of lanes.values()) if (lane.waiting.length > 0) start(lane)
  }

  const wakeAt = (at: number): void => {
    const inMs = at - clock.now()
    if (inMs < POLL_MS) setTimeout(wake, Math.max(0, inMs)).unref()
  }

  const release = (job: Job): void => {
    const left = (leases.get(job.lease) ?? 0) - 1
    if (left > 0) leases.set(job.lease, left)
    else leases.delete(job.lease)
  }

  const record = (settlement: Settlement): Promise<void> =>
    new Promise(recorded => {
      unrecorded.push({ settlement, recorded })
      recording ??= recordAll().finally(() => {
        recording = undefined
      })
    })

  /** What arrives while one transaction runs goes into the next: at once when idle, in batches when busy. */
  const recordAll = async (): Promise<void> => {
    while (unrecorded.length > 0) {
      const batch = unrecorded.splice(0, BATCH)
      try {
        await settle(
          database,
          batch.map(({ settlement }) => settlement),
          clock.now(),
        )
        for (const { recorded } of batch) recorded()
      } catch (error) {
        log.error({ err: error, attempts: batch.length }, 'attempts cannot be recorded; trying again')
        unrecorded.unshift(...batch)
        await sleep(250)
      }
    }
  }

  const extending = setInterval(() => {
    extend(database, [...leases.keys()], clock.now() + LEASE_MS).catch(error =>
      log.warn({ err: error }, 'leases cannot be extended'),
    )
  }, EXTEND_EVERY_MS)

  const busy = (): boolean =>
    Boolean(looking) || inFlight > 0 || waiting > 0 || unrecorded.length > 0 || Boolean(recording)

  const checkIdle = (): void => {
    if (!busy()) for (const resolve of idlers.splice(0)) resolve()
  }

  wake()
  return {
    wake,
    deliverNow(job) {
      leases.set(job.lease, 1)
      return make(job, laneOf(job.webhookId))
    },
    idle: () =>
      new Promise(resolve => {
        idlers.push(resolve)
        wake()
      }),
    async stop() {
      stopping = true
      clearTimeout(timer)
      await looking
      const unsent = [...lanes.values()].flatMap(lane => lane.waiting.splice(0))
      waiting = 0
      await putBack(
        database,
        unsent.map(job => ({ claim: job, dueAt: clock.now() })),
      ).catch(error => log.warn({ err: error }, 'unsent deliveries stay claimed until their lease runs out'))
      while (inFlight > 0 || unrecorded.length > 0 || recording) await (recording ?? sleep(20))
      clearInterval(extending)
    },
  }
}
