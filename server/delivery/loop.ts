import { setImmediate as othersTurn, setTimeout as sleep } from 'node:timers/promises'
import { type Database, isRefusal, rows } from '../database/connect.ts'
import type { Log } from '../log.ts'
import { type AttemptTools, attempt } from './attempt.ts'
import {
  claim,
  extend,
  freeLeases,
  headOfEach,
  type Job,
  newLease,
  nextDue,
  putBack,
  type Settlement,
  settle,
} from './queue.ts'
import { createShares, type Place } from './shares.ts'

/**
 * A claim holds for so long, and is extended while its attempts live. What a dead process held is due again after it.
 */
export const LEASE_MS = 30_000
const EXTEND_EVERY_MS = 10_000
/**
 * Rows of one claim, and of one settle: large enough that the database's commit is shared, small enough to be short.
 */
const BATCH = 256
/** How late this process finds what another has queued. What it has queued itself wakes it at once. */
const POLL_MS = 1_000
/** After so long it looks again for what was due and could not be claimed: another process has it in its hands. */
const ELSEWHERE_MS = 100
/** Places that become free are gathered for so long, so that a claim is worth its transaction. */
const GATHER_MS = 10
const OUTAGE_MS = 250
const RESUME_MS = 4 * OUTAGE_MS

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

/**
 * Claims what is due, hands it to its webhook's share of connections, sends, and records the answers in batches.
 *
 * @param tools.claims false in a process without the role `delivery`, which makes no attempts but its own pings
 * @param tools.concurrency attempts in flight at most; one webhook alone takes at most a quarter of them
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
  const shares = createShares({ clock, concurrency })
  const unrecorded: { settlement: Settlement; recorded: () => void }[] = []
  /** Leases of a process that is gone: on an engine of one process, all that there are at the start. */
  let stale = tools.claims && database.engine === 'sqlite'
  let mayBeDue = true
  /**
   * Something is due of a webhook that has its share: claims go
   * by webhook, and places that become free are a reason to look.
   */
  let crowded = false
  let stopping = false
  let failing = false
  let timer: NodeJS.Timeout | undefined
  let timerAt = Number.POSITIVE_INFINITY
  let looking: Promise<void> | undefined
  let recording: Promise<void> | undefined
  const idlers: (() => void)[] = []

  const wake = (): void => {
    mayBeDue = true
    lookSoon()
  }

  const lookSoon = (): void => {
    if (stopping || !tools.claims) return
    looking ??= look()
      .then(lookIn, error => {
        if (!failing) log.error({ err: error }, 'the queue cannot be read; trying until it can')
        failing = true
        mayBeDue = false
        lookIn(POLL_MS)
      })
      .finally(() => {
        looking = undefined
        if (mayBeDue) lookSoon()
        checkIdle()
      })
  }

  /** Looks again in `ms`, unless it is going to before. */
  const lookIn = (ms: number): void => {
    const at = performance.now() + ms
    if (stopping || timerAt <= at) return
    clearTimeout(timer)
    timerAt = at
    timer = setTimeout(() => {
      timerAt = Number.POSITIVE_INFINITY
      // A look that is under way may have passed what this one was for.
      if (looking) mayBeDue = true
      else lookSoon()
    }, ms)
  }

  /**
   * Claims until nothing is due that there is a place for, and says in how many milliseconds to look again. A look at
   * an idle queue is one read of the head of an index.
   */
  const look = async (): Promise<number> => {
    clearTimeout(timer)
    timerAt = Number.POSITIVE_INFINITY
    if (failing) await resume()
    if (stale) await freeLeases(database, clock.now())
    stale = false
    mayBeDue ||= crowded
    let claimedAt = Number.NEGATIVE_INFINITY
    while (!stopping) {
      if (mayBeDue) {
        mayBeDue = false
        claimedAt = clock.now()
        const inMs = shares.room() === 0 ? waitForPlace() : await (crowded ? claimByTurns : claimOldest)(claimedAt)
        await othersTurn()
        if (inMs !== undefined && !mayBeDue) return inMs
        continue
      }
      const due = await nextDue(database)
      if (mayBeDue) continue
      const inMs = due === undefined ? POLL_MS : Math.min(POLL_MS, due - clock.now())
      if (inMs > 0) return inMs
      if (due! <= claimedAt) return ELSEWHERE_MS
      mayBeDue = true
    }
    return POLL_MS
  }

  /**
   * After an outage many leases have run out whose attempts were made
   * all the same: each process records its own before any takes over.
   */
  const resume = async (): Promise<void> => {
    await nextDue(database)
    log.info('the queue can be read again')
    failing = false
    await sleep(RESUME_MS)
  }

  const waitForPlace = (): number => {
    crowded = true
    return POLL_MS
  }

  /** Claims what has been due longest. */
  const claimOldest = async (now: number): Promise<undefined> => {
    const limit = Math.min(BATCH, shares.room())
    const { found, left } = await claimDue(now, limit)
    crowded = left
    mayBeDue ||= left || found === limit
  }

  /**
   * Claims for webhooks by turns, past those that have their share: however much is due of them, nobody waits behind
   * it. Says in how many milliseconds to look again if there is nothing to claim.
   */
  const claimByTurns = async (now: number): Promise<number | undefined> => {
    const heads = await headOfEach(database)
    const due = heads.filter(head => head.dueAt <= now).map(head => head.webhookId)
    const quotas = shares.quotas(due, BATCH)
    crowded = quotas.size < due.length
    if (quotas.size > 0) {
      const { found } = await claimDue(now, BATCH, quotas)
      if (found === 0) return ELSEWHERE_MS
      mayBeDue = true
    }
    if (quotas.size > 0 || !crowded) return undefined
    const next = heads[due.length]?.dueAt ?? Number.POSITIVE_INFINITY
    return Math.min(POLL_MS, Math.max(1, next - now))
  }

  const claimDue = async (now: number, limit: number, quotas?: ReadonlyMap<string, number>) => {
    shares.dropExpired(now)
    const given = { lease: newLease(now), now, limit, leaseMs: LEASE_MS, plan: shares.plan }
    const claimed = await claim(database, quotas ? { ...given, quotas } : given)
    for (const job of claimed.taken) shares.add(job, now + LEASE_MS)
    startWaiting()
    return claimed
  }

  const startWaiting = (): void => {
    if (stopping) return
    for (let place = shares.next(); place; place = shares.next()) {
      const { job } = place
      make(place).catch(error =>
        // Its lease runs out, and it is due again.
        log.error({ err: error, deliveryId: job.deliveryId }, 'an attempt could not be made'),
      )
    }
  }

  const make = async (place: Place): Promise<Settlement> => {
    let settlement: Settlement
    try {
      settlement = await attempt(place.job, tools)
    } catch (error) {
      shares.ended(place)
      leave(place)
      throw error
    }
    const { outcome } = settlement
    shares.ended(place)
    if (outcome.status === 'pending' && outcome.holdWebhookMs) {
      const until = clock.now() + outcome.holdWebhookMs
      giveBack(shares.holdWebhook(place, until), until)
    }
    startWaiting()
    await record(settlement)
    leave(place)
    tools.onSettled?.(settlement)
    if (outcome.status === 'pending') lookIn(Math.min(POLL_MS, outcome.retryInMs))
    return settlement
  }

  const leave = (place: Place): void => {
    shares.leave(place)
    if (crowded) lookIn(GATHER_MS)
    checkIdle()
  }

  /** Unsent claims that cannot be given back now are so when their lease runs out. */
  const giveBack = (places: Place[], dueAt: number): Promise<void> =>
    putBack(
      database,
      places.map(({ job }) => job),
      dueAt,
    )
      .catch(error => log.warn({ err: error }, 'claims cannot be given back; their lease runs out'))
      .finally(() => {
        for (const place of places) leave(place)
      })

  const record = (settlement: Settlement): Promise<void> =>
    new Promise(recorded => {
      unrecorded.push({ settlement, recorded })
      recording ??= recordAll().finally(() => {
        recording = undefined
        checkIdle()
      })
    })

  /**
   * What arrives while one transaction runs goes into the next: at once when idle, in batches when busy. SQLite lets
   * nothing arrive while it works, so it rests as long as it worked.
   */
  const recordAll = async (): Promise<void> => {
    while (unrecorded.length > 0) {
      await othersTurn()
      const startedAt = performance.now()
      const batch = unrecorded.splice(0, BATCH)
      await recordBatch(batch.map(({ settlement }) => settlement))
      for (const { recorded } of batch) recorded()
      if (database.engine === 'sqlite' && batch.length > 1) {
        await sleep(Math.min(GATHER_MS, performance.now() - startedAt))
      }
    }
  }

  /**
   * Waits while the database is out of reach. If it is not, what fails
   * together is recorded one by one: none keeps the others back.
   */
  const recordBatch = async (settlements: Settlement[]): Promise<void> => {
    for (let isLogged = false; ; isLogged = true) {
      try {
        return await settle(database, settlements, clock.now())
      } catch (error) {
        if (isRefusal(error) && (await answers())) {
          if (settlements.length === 1) return recordWithoutTexts(settlements[0]!, error)
          for (const settlement of settlements) await recordBatch([settlement])
          return
        }
        if (!isLogged) log.error({ err: error, attempts: settlements.length }, 'attempts wait to be recorded')
        await sleep(OUTAGE_MS)
      }
    }
  }

  const answers = async (): Promise<boolean> => {
    try {
      await rows(database.knex, 'SELECT 1')
      return true
    } catch {
      return false
    }
  }

  /** What the database refuses can only be what came from outside. */
  const recordWithoutTexts = async (settlement: Settlement, cause: unknown): Promise<void> => {
    const { deliveryId } = settlement.job
    const answer =
      settlement.answer.kind === 'response' ? { ...settlement.answer, body: '' } : { ...settlement.answer, detail: '' }
    try {
      await settle(database, [{ ...settlement, answer }], clock.now())
      log.error({ err: cause, deliveryId }, 'an attempt was recorded without its answer, which the database refuses')
    } catch (error) {
      log.error({ err: error, deliveryId }, 'an attempt cannot be recorded; it is made again when its lease runs out')
    }
  }

  const extending = setInterval(() => {
    const places = shares.held()
    const leaseEnd = clock.now() + LEASE_MS
    extend(
      database,
      places.map(({ job }) => job),
      leaseEnd,
    ).then(
      () => {
        for (const place of places) place.leaseEnd = leaseEnd
      },
      error => log.warn({ err: error }, 'leases cannot be extended'),
    )
  }, EXTEND_EVERY_MS)

  const checkIdle = (): void => {
    if (looking || recording || shares.count() > 0) return
    for (const resolve of idlers.splice(0)) resolve()
  }

  lookSoon()
  return {
    wake,
    deliverNow: job => make(shares.startNow(job, clock.now() + LEASE_MS)),
    idle: () =>
      new Promise(resolve => {
        idlers.push(resolve)
        wake()
        checkIdle()
      }),
    async stop() {
      stopping = true
      clearTimeout(timer)
      await looking
      await giveBack(shares.withdrawWaiting(), clock.now())
      await new Promise<void>(resolve => {
        idlers.push(resolve)
        checkIdle()
      })
      clearInterval(extending)
    },
  }
}
