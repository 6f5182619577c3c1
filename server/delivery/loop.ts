import { setImmediate as othersTurn, setTimeout as sleep } from 'node:timers/promises'
import type { Knex } from 'knex'
import { timeOfId } from '../../shared/time.ts'
import { checkWritable, type Database, isOutage } from '../database/connect.ts'
import { REQUEST_MS } from '../database/patience.ts'
import type { AfterCommit } from '../domain/deliveries.ts'
import { type Log, logSeldom } from '../log.ts'
import { inTrace } from '../tracing/tracing.ts'
import { createAfterCommit } from './after-commit.ts'
import { createAlarm } from './alarm.ts'
import { type AttemptTools, attempt } from './attempt.ts'
import { createClaims, ELSEWHERE_MS } from './claims.ts'
import { createPlaces, type Place } from './concurrency.ts'
import { keepExtending, LEASE_MS } from './leases.ts'
import { createPings, type Pings } from './pings.ts'
import { watchLapses } from './pull/lapses.ts'
import type { Waits } from './pull/waits.ts'
import { type Claim, freeLeases, type Job, nextDue, presentJobOf, putBack, type Settlement } from './queue.ts'
import { BELIEVED_MS, createRecheck, type Stopped } from './recheck.ts'
import { createRecorder, OUTAGE_MS } from './recorder.ts'
import { NotBegun } from './send.ts'
import { startSweeper } from './sweeper.ts'
import type { DeliveryWatch } from './watch.ts'
import { createWebhookEffects } from './webhook-effects.ts'

/** How late this process finds deliveries that another has queued. Its own deliveries wake it at once. */
const POLL_MS = 1_000
/** How long free places are collected, so that a claim is worth its transaction. */
const GATHER_MS = 10
/** The most dropped deliveries of one transaction. */
const DROPPED_AT_ONCE = 32
/** How long a webhook is left alone that is about to become inactive. */
const ENDING_MS = 1_000
/** How long each process has after an outage to record the attempts that it made meanwhile. */
const RESUME_MS = 4 * OUTAGE_MS
/** How many times a slow database is asked whether a ping may be sent. */
const MOST_READS = 5

export type DeliveryLoop = {
  /** The places for pings. */
  pings: Pings
  /** Reports that a delivery may be due now. */
  wake(): void
  /**
   * For one transaction: reserves places, and sends the queued deliveries after the commit without a
   * claim, by the same rules.
   */
  afterCommit(trx: Knex.Transaction): AfterCommit
  /**
   * Makes and records the attempt of a job that was claimed elsewhere in this process. Does nothing if the delivery was
   * stopped, or if the database is too slow to tell: then the lease runs out, and the delivery is claimed again.
   */
  deliverNow(claimed: Claim): Promise<Settlement | undefined>
  /** Does what follows an attempt that a client has made, when it is recorded. */
  recorded(settlement: Settlement): Promise<void>
  waits: Pick<Waits, 'wake' | 'hurry' | 'look'> | undefined
  /** Ends the attempts of clients whose leases have run out, at once instead of within a second. */
  lapse(): Promise<void>
  /** Resolves when no delivery is due, in flight or unrecorded. */
  idle(): Promise<void>
  /** Stops claiming, and resolves when everything in flight is recorded. */
  stop(): Promise<void>
}

/**
 * Claims due deliveries, gives them to their webhook's share of places, sends them, and has the answers recorded.
 *
 * @param tools.claims false in a process without the role `delivery`, which makes no attempts except its own pings
 * @param tools.concurrency the most attempts in flight; one webhook takes at most a quarter of them
 */
export const startDeliveryLoop = (
  tools: AttemptTools & {
    database: Database
    log: Log
    concurrency: number
    claims: boolean
    watch?: DeliveryWatch | undefined
    /** Clients that wait for deliveries at this process. */
    waits?: Pick<Waits, 'wake' | 'hurry' | 'look'>
  },
): DeliveryLoop => {
  const { database, clock, log } = tools
  const places = createPlaces({
    ...tools,
    onRoom: () => {
      startWaiting()
      if (claims.isCrowded) lookIn(0)
    },
    onStuck: stuck => giveBack(stuck, clock.now()),
  })
  const claims = createClaims({ database, places, onPast: () => sweeper?.look(), watch: tools.watch })
  const record = createRecorder(tools)
  // Dropped deliveries are reported to other webhooks, which may take longer, so they have a recorder of their own.
  const recordDropped = createRecorder({ ...tools, batchSize: DROPPED_AT_ONCE })
  const webhookEffects = createWebhookEffects(tools)
  const leases = keepExtending({ database, clock, log, places: places.all })
  /** Jobs whose turn has come, and of these, the ones whose request has begun. */
  const begun = new Set<Place>()
  const sent = new Set<Place>()
  /** Jobs that must not begin although their turn has come. */
  const stoppedPlaces = new Set<Place>()
  const recheck = createRecheck({
    database,
    log,
    unsent: () => places.all().filter(place => !sent.has(place)),
    hasUnsent: () => places.count() > sent.size,
    onLooked: stopped => {
      withdraw(stopped)
      startWaiting()
    },
  })
  const sweeper = tools.claims ? startSweeper(tools) : undefined
  const lapses = tools.claims
    ? watchLapses({
        ...tools,
        async record(settlement) {
          await recordOne(settlement)
          await followRecord(settlement)
        },
      })
    : undefined
  const idlers: (() => void)[] = []
  /** The leases of a dead process: on an embedded engine, all that exist at the start. */
  let stale = tools.claims && database.dialect.isEmbedded
  let mayBeDue = true
  let failing = false
  /** Whether the log has a fault whose end it does not have yet. */
  let isFaultTold = false
  let stopping = false
  /** Does not wait for transactions that are still open: one may hang. */
  let isLate = false
  let looking: Promise<void> | undefined

  const wake = (): void => {
    mayBeDue = true
    lookSoon()
  }

  const lookSoon = (): void => {
    if (stopping || !tools.claims) return
    looking ??= inTrace(undefined, look)
      .catch(lookFailed)
      .then(lookIn)
      .finally(() => {
        looking = undefined
        if (mayBeDue) lookSoon()
        checkIdle()
      })
  }

  const lookFailed = (error: unknown): number => {
    if (!isFaultTold) log.error({ err: error }, 'the queue cannot be worked on; trying until it can')
    isFaultTold = true
    failing = true
    mayBeDue = false
    return POLL_MS
  }

  const alarm = createAlarm(() => {
    // A look that is under way may have passed the new row already.
    if (looking) mayBeDue = true
    else lookSoon()
  })

  /** A key may have been revoked while receivers do not know the next one yet. */
  const canSign = (): boolean => tools.keyring.signsFrom() <= clock.now()

  const lookIn = (ms: number): void => alarm.setIn(Math.min(POLL_MS, ms))

  /** Claims until no due delivery has a free place, and returns the milliseconds until the next look. */
  const look = async (): Promise<number> => {
    alarm.clear()
    if (failing) await resume()
    if (stale) await freeLeases(database, clock.now())
    stale = false
    mayBeDue ||= claims.isCrowded
    for (let claimedAt = Number.NEGATIVE_INFINITY; !stopping; ) {
      if (!canSign()) {
        mayBeDue = false
        return POLL_MS
      }
      if (mayBeDue) {
        mayBeDue = false
        claimedAt = clock.now()
        await leases.renew()
        const claimed = recheck.claiming()
        const inMs = await claims.claimDue(claimedAt).finally(claimed)
        startWaiting()
        await othersTurn()
        if (inMs === 0) mayBeDue = true
        if (inMs !== undefined && !mayBeDue) return inMs
        continue
      }
      const { dueAt, hasLapsed } = await nextDue(database, clock.now())
      lapses?.noticed(hasLapsed)
      if (mayBeDue) continue
      const inMs = dueAt === undefined ? POLL_MS : dueAt - clock.now()
      if (inMs > 0 && begun.size === 0) tellRecovery()
      if (inMs > 0) return inMs
      if (dueAt! <= claimedAt) return ELSEWHERE_MS
      mayBeDue = true
    }
    return POLL_MS
  }

  /**
   * An outage may outlast the leases of attempts that were made. Each process records its own before any process takes
   * over.
   */
  const resume = async (): Promise<void> => {
    await checkWritable(database)
    await claims.forgetDoubtful(clock.now())
    failing = false
    await sleep(RESUME_MS)
  }

  /** Nothing is due, or a result was recorded. Before that a full disk may take a few writes more. */
  const tellRecovery = (): void => {
    if (isFaultTold && !failing) {
      log.info('the queue can be worked on again')
      isFaultTold = false
    }
  }

  const isIdle = (): boolean => !looking && places.count() === 0 && (isLate || places.reserved() === 0)

  const whenIdle = async (): Promise<void> => {
    if (!isIdle()) await new Promise<void>(resolve => idlers.push(resolve))
  }

  const checkIdle = (): void => {
    if (isIdle()) for (const resolve of idlers.splice(0)) resolve()
  }

  const startWaiting = (): void => {
    if (stopping || places.count() === begun.size || !recheck.isFresh()) return
    for (let place = places.next(); place; place = places.next()) {
      const { job } = place
      make(place).catch(error =>
        // The lease runs out, and the delivery is due again.
        logSeldom(log, 'error', 'attempt', { err: error, deliveryId: job.deliveryId }, 'an attempt could not be made'),
      )
    }
  }

  /**
   * Runs outside the trace of the request that happens to start the attempt: the attempt belongs to its event's trace,
   * or to none.
   */
  const make = (place: Place): Promise<Settlement | undefined> => inTrace(undefined, () => makeAlone(place))

  const makeAlone = async (place: Place): Promise<Settlement | undefined> => {
    begun.add(place)
    try {
      const settlement = await attempt(place.job, tools, () => mayBegin(place)).catch(error => {
        places.ended(place)
        throw error
      })
      places.ended(place, settlement)
      sent.add(place)
      const { outcome } = settlement
      // Until the database says the same.
      const waitMs = outcome.status === 'cancelled' ? ENDING_MS : 'holdWebhookMs' in outcome && outcome.holdWebhookMs
      const until = clock.now() + (waitMs || 0)
      if (waitMs) giveBack(places.holdWebhook(place, until), until)
      startWaiting()
      // A hold is written at once. The change to inactive waits until the attempt that caused it is logged.
      const following = outcome.status === 'pending' ? webhookEffects.write(settlement) : undefined
      await recordOne(settlement)
      await followRecord(settlement, following)
      return settlement
    } catch (error) {
      if (!(error instanceof NotBegun)) throw error
      await putBackUnsent([place.job], clock.now())
      return undefined
    } finally {
      leave(place)
    }
  }

  const recordOne = (settlement: Settlement): Promise<void> =>
    (settlement.outcome.status === 'dropped' ? recordDropped : record)(settlement)

  /** What follows when an attempt is recorded, whoever made it. */
  const followRecord = async (settlement: Settlement, following?: Promise<void>): Promise<void> => {
    const { outcome, job } = settlement
    tellRecovery()
    tools.watch?.attempted(settlement)
    if (outcome.status === 'dropped') logDropped(settlement, outcome.reason)
    if (outcome.status === 'pending') lookIn(outcome.retryInMs)
    // It has passed its turn on.
    else if (job.line !== null && job.webhook.transport === 'pull') tools.waits?.wake(job.webhookId, 1)
    else if (job.line !== null) wake()
    await (following ?? webhookEffects.write(settlement))
    if (outcome.status === 'cancelled') sweeper?.look()
    // Other webhooks may have to be notified.
    if (outcome.status === 'cancelled' || outcome.status === 'dropped') wake()
  }

  const logDropped = ({ job, result }: Settlement, reason: string): void => {
    const { deliveryId, eventId, webhookId, eventType, attempt } = job
    const last = result.kind === 'response' ? { statusCode: result.statusCode } : { failure: result.reason }
    const line = { deliveryId, eventId, webhookId, eventType, attempt, reason, ...last }
    logSeldom(log, 'warn', 'dropped', line, 'a delivery was dropped')
  }

  const mayBegin = (place: Place): boolean => {
    // Connecting may have taken long, or the process may have been frozen.
    if (stoppedPlaces.has(place) || !recheck.mayBegin() || place.leaseEnd <= clock.now()) return false
    sent.add(place)
    return true
  }

  /**
   * Gives back deliveries that a check found to be stopped, and prevents the start of those that are still connecting.
   */
  const withdraw = (stopped: Stopped[]): void => {
    const now = clock.now()
    const present = stopped.filter(({ until }) => until === 0 || until > now)
    for (const { place } of present) if (begun.has(place) && !sent.has(place)) stoppedPlaces.add(place)
    for (const [until, alike] of Map.groupBy(present, ({ until }) => until)) {
      const waiting = places.withdraw(alike.map(({ place }) => place))
      if (waiting.length > 0) giveBack(waiting, Math.max(until, now))
    }
  }

  const leave = (place: Place): void => {
    places.leave(place)
    for (const set of [begun, sent, stoppedPlaces]) set.delete(place)
    if (claims.isCrowded && places.count() === 0) wake()
    else if (claims.isCrowded) lookIn(GATHER_MS)
    checkIdle()
  }

  const giveBack = async (unsent: Place[], dueAt: number): Promise<void> => {
    await putBackUnsent(
      unsent.map(({ job }) => job),
      dueAt,
    )
    for (const place of unsent) leave(place)
  }

  /** Unsent claims that cannot be given back now are given back when the database returns, or their lease runs out. */
  const putBackUnsent = (jobs: Job[], dueAt: number): Promise<void> =>
    putBack(database, jobs, { dueAt, now: clock.now() }).catch(error => {
      logSeldom(log, 'warn', 'give back claims', { err: error }, 'claims cannot be given back; their lease runs out')
      if (isOutage(error)) putBackLater(jobs, dueAt)
    })

  /**
   * Claims that were not sent, or whose commit is in doubt, need not wait for their lease, because no other process
   * knows of them. They are given back when the database returns, before this process claims again.
   */
  const putBackLater = async (jobs: Job[], dueAt: number): Promise<void> => {
    for (const until = clock.now() + LEASE_MS; !stopping && clock.now() < until; ) {
      await sleep(OUTAGE_MS)
      const isDone = await putBack(database, jobs, { dueAt, now: clock.now() }).then(
        () => true,
        () => false,
      )
      if (isDone) return wake()
    }
  }

  const afterCommit = createAfterCommit({
    clock,
    places,
    isTaking: webhook => tools.claims && !stopping && canSign() && !claims.isBehind(webhook, clock.now()),
    onCommitted(committed, lookedAt) {
      const added = recheck.adding(lookedAt)
      const now = clock.now()
      for (const place of committed) {
        const heldUntil = places.fill(place)
        if (stopping) giveBack(places.withdraw([place]), now)
        else if (heldUntil > now) giveBack(places.holdWebhook(place, heldUntil), heldUntil)
      }
      added()
      startWaiting()
    },
    onLeft(left) {
      const jobs = left.filter(({ webhook }) => webhook.transport === 'push')
      const pulled = left.filter(({ webhook }) => webhook.transport === 'pull')
      for (const [id, own] of Map.groupBy(pulled, job => job.webhookId)) tools.waits?.wake(id, own.length)
      if (jobs.length === 0) return
      // Otherwise a free place triggers the next look.
      if (jobs.some(places.hasRoom)) wake()
      else claims.crowd()
    },
    onReleased: leave,
    onDoubt: jobs => putBackLater(jobs, clock.now()),
  })

  lookSoon()
  return {
    pings: createPings(tools),
    wake() {
      wake()
      sweeper?.look()
      tools.waits?.hurry()
    },
    recorded: settlement => followRecord(settlement),
    waits: tools.waits,
    lapse: async () => lapses?.look(),
    afterCommit,
    async deliverNow(claimed) {
      for (let n = 0; n < MOST_READS; n++) {
        const startedAt = performance.now()
        const looked = recheck.claiming()
        const job = await presentJobOf(database, claimed).finally(looked)
        if (!job) return undefined
        if (performance.now() - startedAt < BELIEVED_MS) {
          return make(places.startNow(job, timeOfId(claimed.lease) + LEASE_MS))
        }
      }
      return undefined
    },
    idle() {
      wake()
      return whenIdle()
    },
    async stop() {
      stopping = true
      alarm.stop()
      await looking
      await lapses?.stop()
      recheck.stop()
      await giveBack(places.withdrawWaiting(), clock.now())
      const late = setTimeout(() => {
        isLate = true
        checkIdle()
      }, REQUEST_MS)
      await whenIdle()
      clearTimeout(late)
      await sweeper?.stop()
      leases.stop()
    },
  }
}
