import { setImmediate as othersTurn, setTimeout as sleep } from 'node:timers/promises'
import { timeOfId } from '../../shared/time.ts'
import { checkWritable } from '../database/connect.ts'
import { REQUEST_MS } from '../database/patience.ts'
import type { Transaction } from '../database/transaction.ts'
import type { AfterCommit } from '../domain/deliveries.ts'
import { Mode } from '../mode.ts'
import { inTrace } from '../tracing/tracing.ts'
import { createAfterCommit } from './after-commit.ts'
import { createAlarm } from './alarm.ts'
import { Attempts, type AttemptsTools } from './attempts.ts'
import { Claims, ELSEWHERE_MS } from './claims.ts'
import { GiveBack } from './give-back.ts'
import { keepExtending, LEASE_MS } from './leases.ts'
import { Pings } from './pings.ts'
import { type Place, Places } from './places.ts'
import { Lapses } from './pull/lapses.ts'
import { type Claim, freeLeases, type Job, nextDue, presentJobOf, type Settlement } from './queue.ts'
import { BELIEVED_MS } from './recheck.ts'
import { OUTAGE_MS } from './recorder.ts'
import { Allowance } from './rehearsal/allowance.ts'
import { startSweeper } from './sweeper.ts'

/** How late this process finds deliveries that another has queued. Its own deliveries wake it at once. */
const POLL_MS = 1_000
/** How long free places are collected, so that a claim is worth its transaction. */
const GATHER_MS = 10
/** How long each process has after an outage to record the attempts that it made meanwhile. */
const RESUME_MS = 4 * OUTAGE_MS
/** How many times a slow database is asked whether a ping may be sent. */
const MOST_READS = 5

/**
 * @param claims false in a process without the role `delivery`, which makes no attempts except its own pings
 * @param concurrency the most attempts in flight; one webhook takes at most a quarter of them
 */
type LoopTools = AttemptsTools & { concurrency: number; claims: boolean }

/**
 * `working`: claims what is due. `failing`: the last look failed, and the next one begins with a test of the database.
 * `stopping`: claims nothing more, and waits for what is in flight and for transactions under way. `late`: no longer
 * waits for transactions, one of which may hang.
 */
type LoopMode = 'working' | 'failing' | 'stopping' | 'late'

/** Claims due deliveries, gives them to their webhook's share of places, sends them, and has the answers recorded. */
export class DeliveryLoop {
  readonly #tools: LoopTools
  readonly #mode = new Mode<LoopMode>('working', {
    working: ['failing', 'stopping'],
    failing: ['working', 'failing', 'stopping'],
    stopping: ['late'],
    late: [],
  })
  readonly #places: Places
  readonly #claims: Claims
  readonly #giveBack: GiveBack
  readonly #attempts: Attempts
  readonly #leases
  readonly #sweeper
  readonly #lapses
  readonly #alarm
  readonly #idlers: (() => void)[] = []
  /** A look that is under way. */
  #looking: Promise<void> | undefined
  /** Whether something may be due that no look has seen. */
  #mayBeDue = true
  /** The leases of a dead process: on an embedded engine, all that exist at the start. */
  #hasStale: boolean
  /** Whether the log has a fault whose end it does not have yet. */
  #isFaultLogged = false

  /** The places for pings. */
  readonly pings: Pings
  readonly rehearsals = new Allowance()
  /**
   * For one transaction: reserves places, and sends the queued deliveries after the commit without a claim, by the same
   * rules.
   */
  readonly afterCommit: (trx: Transaction) => AfterCommit

  constructor(tools: LoopTools) {
    const { database, clock, log } = tools
    this.#tools = tools
    this.#hasStale = tools.claims && database.dialect.isEmbedded
    this.#alarm = createAlarm(() => this.#ring())
    this.#places = new Places({
      ...tools,
      onRoom: () => {
        this.#attempts.beginWaiting()
        if (this.#claims.isCrowded) this.#lookIn(0)
      },
      onStuck: stuck => this.#attempts.giveBack(stuck, clock.now()),
    })
    this.#claims = new Claims({ ...tools, places: this.#places, onPast: () => this.#sweeper?.look() })
    const isStopping = () => this.#isStopping
    this.#giveBack = new GiveBack(tools, { isStopping, onLate: () => this.#wake() })
    this.#attempts = new Attempts(tools, {
      ...{ places: this.#places, giveBack: this.#giveBack, isStopping },
      wake: () => this.#wake(),
      lookIn: ms => this.#lookIn(ms),
      sweep: () => this.#sweeper?.look(),
      onRecorded: () => this.#logRecovery(),
      onLeft: () => this.#onLeft(),
    })
    this.#leases = keepExtending({ database, clock, log, places: () => this.#places.all })
    this.#sweeper = tools.claims ? startSweeper(tools) : undefined
    const record = (settlement: Settlement) => this.#attempts.record(settlement)
    this.#lapses = tools.claims ? new Lapses({ ...tools, record }) : undefined
    this.pings = new Pings(tools)
    this.afterCommit = this.#createAfterCommit()
    this.#lookSoon()
  }

  get waits(): LoopTools['waits'] {
    return this.#tools.waits
  }

  /** Reports that a delivery may be due now. */
  wake(): void {
    this.#wake()
    this.#sweeper?.look()
    this.#tools.waits?.hurry()
  }

  /**
   * Makes and records the attempt of a job that was claimed elsewhere in this process. Does nothing if the delivery was
   * stopped, or if the database is too slow to tell: then the lease runs out, and the delivery is claimed again.
   */
  async deliverNow(claimed: Claim): Promise<Settlement | undefined> {
    for (let n = 0; n < MOST_READS; n++) {
      const checkedAt = performance.now()
      const job = await presentJobOf(this.#tools.database, claimed)
      if (!job) return undefined
      if (performance.now() - checkedAt < BELIEVED_MS) {
        const place = this.#places.startNow(job, timeOfId(claimed.lease) + LEASE_MS, checkedAt)
        this.#attempts.recheck.added(checkedAt)
        return this.#attempts.make(place)
      }
    }
    return undefined
  }

  /** Does what follows an attempt that a client has made, when it is recorded. */
  recorded(settlement: Settlement): Promise<void> {
    return this.#attempts.recorded(settlement)
  }

  /** Ends the attempts of clients whose leases have run out, at once instead of within a second. */
  async lapse(): Promise<void> {
    await this.#lapses?.look()
  }

  /** Resolves when no delivery is due, in flight or unrecorded. */
  idle(): Promise<void> {
    this.#wake()
    return this.#whenIdle()
  }

  /** Stops claiming, and resolves when everything in flight is recorded. */
  async stop(): Promise<void> {
    this.#mode.enter('stopping')
    this.#alarm.stop()
    await this.#looking
    await this.#lapses?.stop()
    this.#attempts.recheck.stop()
    await this.#attempts.giveBack(this.#places.withdrawWaiting(), this.#tools.clock.now())
    const late = setTimeout(() => {
      this.#mode.enter('late')
      this.#checkIdle()
    }, REQUEST_MS)
    await this.#whenIdle()
    clearTimeout(late)
    await this.#sweeper?.stop()
    this.#leases.stop()
  }

  get #isStopping(): boolean {
    return this.#mode.now === 'stopping' || this.#mode.now === 'late'
  }

  #wake(): void {
    this.#mayBeDue = true
    this.#lookSoon()
  }

  #lookIn(ms: number): void {
    this.#alarm.setIn(Math.min(POLL_MS, ms))
  }

  #ring(): void {
    // A look that is under way may have passed the new row already.
    if (this.#looking) this.#mayBeDue = true
    else this.#lookSoon()
  }

  #lookSoon(): void {
    if (this.#isStopping || !this.#tools.claims) return
    this.#looking ??= inTrace(undefined, () => this.#look())
      .catch(error => this.#lookFailed(error))
      .then(ms => this.#lookIn(ms))
      .finally(() => {
        this.#looking = undefined
        if (this.#mayBeDue) this.#lookSoon()
        this.#checkIdle()
      })
  }

  #lookFailed(error: unknown): number {
    if (!this.#isFaultLogged) {
      this.#tools.log.error({ err: error }, 'the queue cannot be worked on; trying until it can')
    }
    this.#isFaultLogged = true
    if (!this.#isStopping) this.#mode.enter('failing')
    this.#mayBeDue = false
    return POLL_MS
  }

  /** Claims until no due delivery has a free place, and returns the milliseconds until the next look. */
  async #look(): Promise<number> {
    const { database, clock } = this.#tools
    this.#alarm.clear()
    if (this.#mode.now === 'failing') await this.#resume()
    if (this.#hasStale) await freeLeases(database, clock.now())
    this.#hasStale = false
    this.#mayBeDue ||= this.#claims.isCrowded
    for (let claimedAt = Number.NEGATIVE_INFINITY; !this.#isStopping; ) {
      if (!this.#canSign()) {
        this.#mayBeDue = false
        return POLL_MS
      }
      if (this.#mayBeDue) {
        claimedAt = clock.now()
        const inMs = await this.#claim(claimedAt)
        if (inMs !== undefined && !this.#mayBeDue) return inMs
        continue
      }
      const inMs = await this.#nextDueIn(claimedAt)
      if (inMs !== undefined) return inMs
    }
    return POLL_MS
  }

  /** Claims what is due. Returns the milliseconds until there may be more; undefined if the queue has to say. */
  async #claim(now: number): Promise<number | undefined> {
    this.#mayBeDue = false
    await this.#leases.renew()
    const checkedAt = performance.now()
    const inMs = await this.#claims.claimDue(now).finally(() => this.#attempts.recheck.added(checkedAt))
    this.#attempts.beginWaiting()
    await othersTurn()
    if (inMs === 0) this.#mayBeDue = true
    return inMs
  }

  /** The milliseconds until the next delivery is due; undefined if something may be due now. */
  async #nextDueIn(claimedAt: number): Promise<number | undefined> {
    const { database, clock, keyring } = this.#tools
    const { dueAt, hasLapsed, keys } = await nextDue(database, clock.now())
    keyring.heard(keys)
    this.#lapses?.noticed(hasLapsed)
    if (this.#mayBeDue) return undefined
    const inMs = dueAt === undefined ? POLL_MS : dueAt - clock.now()
    if (inMs > 0 && !this.#attempts.areUnderWay) this.#logRecovery()
    if (inMs > 0) return inMs
    if (dueAt! <= claimedAt) return ELSEWHERE_MS
    this.#mayBeDue = true
    return undefined
  }

  /**
   * An outage may outlast the leases of attempts that were made. Each process records its own before any process takes
   * over.
   */
  async #resume(): Promise<void> {
    await checkWritable(this.#tools.database)
    await this.#claims.forgetDoubtful(this.#tools.clock.now())
    if (!this.#isStopping) this.#mode.enter('working')
    await sleep(RESUME_MS)
  }

  /** Nothing is due, or a result was recorded. Before that a full disk may take a few writes more. */
  #logRecovery(): void {
    if (!this.#isFaultLogged || this.#mode.now === 'failing') return
    this.#tools.log.info('the queue can be worked on again')
    this.#isFaultLogged = false
  }

  /** A key may have been revoked while receivers do not know the next one yet. */
  #canSign(): boolean {
    return this.#tools.keyring.signsFrom() <= this.#tools.clock.now()
  }

  #onLeft(): void {
    if (this.#claims.isCrowded && this.#places.count === 0) this.#wake()
    else if (this.#claims.isCrowded) this.#lookIn(GATHER_MS)
    this.#checkIdle()
  }

  get #isIdle(): boolean {
    const isWaited = this.#mode.now !== 'late' && this.#places.reserved > 0
    return !this.#looking && this.#places.count === 0 && !isWaited
  }

  async #whenIdle(): Promise<void> {
    if (!this.#isIdle) await new Promise<void>(resolve => this.#idlers.push(resolve))
  }

  #checkIdle(): void {
    if (this.#isIdle) for (const resolve of this.#idlers.splice(0)) resolve()
  }

  #createAfterCommit(): DeliveryLoop['afterCommit'] {
    const { clock, claims } = this.#tools
    return createAfterCommit({
      clock,
      places: this.#places,
      isTaking: webhook =>
        claims && !this.#isStopping && this.#canSign() && !this.#claims.isBehind(webhook, clock.now()),
      toClient: (job, now) =>
        this.#isStopping || !this.#canSign() ? undefined : this.#tools.waits?.handOver.reserve(job, now),
      onHanded: handings => this.#tools.waits?.handOver.hand(handings),
      onNotHanded: (handings, isInDoubt) => this.#tools.waits?.handOver.release(handings, isInDoubt),
      onCommitted: (committed, lookedAt) => this.#committed(committed, lookedAt),
      onLeft: jobs => this.#left(jobs),
      onReleased: place => this.#attempts.leave(place),
      onDoubt: jobs => void this.#giveBack.later(jobs, clock.now()),
    })
  }

  /** Deliveries are committed that have places here. */
  #committed(committed: Place[], lookedAt: number): void {
    const now = this.#tools.clock.now()
    for (const place of committed) {
      const heldUntil = this.#places.fill(place, lookedAt)
      if (this.#isStopping) void this.#attempts.giveBack(this.#places.withdraw([place]), now)
      else if (heldUntil > now) void this.#attempts.giveBack(this.#places.holdWebhook(place, heldUntil), heldUntil)
    }
    this.#attempts.recheck.added(lookedAt)
    this.#attempts.beginWaiting()
  }

  /** Deliveries are committed that have no places here, and have to be claimed. */
  #left(left: Job[]): void {
    const jobs = left.filter(({ webhook }) => webhook.transport === 'push')
    const pulled = left.filter(({ webhook }) => webhook.transport === 'pull')
    for (const id of new Set(pulled.map(job => job.webhookId))) this.#tools.waits?.committed(id)
    if (jobs.length === 0) return
    // Otherwise a free place triggers the next look.
    if (jobs.some(job => this.#places.hasRoom(job))) this.#wake()
    else this.#claims.crowd()
  }
}

/** Starts a loop, which begins with a look. */
export const startDeliveryLoop = (tools: LoopTools): DeliveryLoop => new DeliveryLoop(tools)
