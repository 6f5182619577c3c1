import type { Database } from '../database/connect.ts'
import { type Log, logSeldom } from '../log.ts'
import { inTrace } from '../tracing/tracing.ts'
import { type AttemptTools, attempt } from './attempt.ts'
import type { GiveBack } from './give-back.ts'
import type { Place, Places } from './places.ts'
import type { Waits } from './pull/waits.ts'
import type { Settlement } from './queue.ts'
import { Recheck, type Stopped } from './recheck.ts'
import { Recorder } from './recorder.ts'
import { NotBegun } from './send.ts'
import type { DeliveryWatch } from './watch.ts'
import { WebhookEffects } from './webhook-effects.ts'

/** The most dropped deliveries of one transaction. */
const DROPPED_AT_ONCE = 32
/** How long a webhook is left alone that is about to become inactive. */
const ENDING_MS = 1_000

export type AttemptsTools = AttemptTools & {
  database: Database
  log: Log
  watch?: DeliveryWatch | undefined
  /** Clients that wait for deliveries at this process. */
  waits?: Pick<Waits, 'hurry' | 'look' | 'committed' | 'handOver'>
}

/** What attempts have to do with the loop. */
type Around = {
  places: Places
  giveBack: GiveBack
  isStopping: () => boolean
  /** Something may be due: now, or in so many milliseconds. */
  wake: () => void
  lookIn: (ms: number) => void
  /** Webhooks have left `active`. */
  sweep: () => void
  onRecorded: () => void
  /** A place has become free. */
  onLeft: () => void
}

/** Makes the attempts whose turn has come, and has their answers recorded, with all that follows. */
export class Attempts {
  readonly #tools: AttemptsTools
  readonly #around: Around
  readonly #recorder: Recorder
  // Dropped deliveries are reported to other webhooks, which may take longer, so they have a recorder of their own.
  readonly #recorderOfDropped: Recorder
  readonly #webhookEffects: WebhookEffects
  /** Places whose turn has come, and of these, the ones whose request has begun. */
  readonly #begun = new Set<Place>()
  readonly #sent = new Set<Place>()
  /** Places that must not begin although their turn has come. */
  readonly #stopped = new Set<Place>()
  readonly recheck

  constructor(tools: AttemptsTools, around: Around) {
    this.#tools = tools
    this.#around = around
    this.#recorder = new Recorder(tools)
    this.#recorderOfDropped = new Recorder({ ...tools, batchSize: DROPPED_AT_ONCE })
    this.#webhookEffects = new WebhookEffects(tools)
    this.recheck = new Recheck({
      ...tools,
      unsent: () => around.places.all.filter(place => !this.#sent.has(place)),
      hasUnsent: () => around.places.count > this.#sent.size,
      onLooked: stopped => {
        this.#withdraw(stopped)
        this.beginWaiting()
      },
    })
  }

  /** Whether any attempt is under way or not yet recorded. */
  get areUnderWay(): boolean {
    return this.#begun.size > 0
  }

  /** Begins the attempts whose turn has come. */
  beginWaiting(): void {
    const { places, isStopping } = this.#around
    if (isStopping() || places.count === this.#begun.size) return
    const next = () => places.next(place => this.recheck.isFresh(place))
    for (let place = next(); place; place = next()) {
      const { deliveryId } = place.job
      this.make(place).catch(error =>
        // The lease runs out, and the delivery is due again.
        logSeldom(this.#tools.log, 'error', 'attempt', { err: error, deliveryId }, 'an attempt could not be made'),
      )
    }
  }

  /**
   * Makes and records an attempt, outside the trace of the request that happens to start it: the attempt belongs to its
   * event's trace, or to none.
   */
  make(place: Place): Promise<Settlement | undefined> {
    return inTrace(undefined, () => this.#make(place))
  }

  async #make(place: Place): Promise<Settlement | undefined> {
    const { places, giveBack } = this.#around
    this.#begun.add(place)
    try {
      const settlement = await attempt(place.job, this.#tools, () => this.#mayBegin(place)).catch(error => {
        places.ended(place)
        throw error
      })
      places.ended(place, settlement)
      // What could not connect has not begun, and is not to be checked again while it is recorded.
      this.#sent.add(place)
      this.#holdWebhook(place, settlement)
      this.beginWaiting()
      // A hold is written at once. The change to inactive waits until the attempt that caused it is logged.
      const written = settlement.outcome.status === 'pending' ? this.#webhookEffects.write(settlement) : undefined
      await this.record(settlement, written)
      return settlement
    } catch (error) {
      if (!(error instanceof NotBegun)) throw error
      await giveBack.now([place.job], this.#tools.clock.now())
      return undefined
    } finally {
      this.leave(place)
    }
  }

  /** Holds a webhook that asked for it, until the database says the same. */
  #holdWebhook(place: Place, { outcome }: Settlement): void {
    const waitMs = outcome.status === 'cancelled' ? ENDING_MS : 'holdWebhookMs' in outcome && outcome.holdWebhookMs
    if (!waitMs) return
    const until = this.#tools.clock.now() + waitMs
    void this.giveBack(this.#around.places.holdWebhook(place, until), until)
  }

  /** Records an attempt, whoever made it. */
  async record(settlement: Settlement, written?: Promise<void>): Promise<void> {
    const recorder = settlement.outcome.status === 'dropped' ? this.#recorderOfDropped : this.#recorder
    await recorder.record(settlement)
    await this.recorded(settlement, written)
  }

  /** Does what follows an attempt that is recorded. */
  async recorded(settlement: Settlement, written?: Promise<void>): Promise<void> {
    const { outcome, job } = settlement
    const { wake, lookIn, sweep, onRecorded } = this.#around
    const { watch, waits } = this.#tools
    onRecorded()
    watch?.attempted(settlement)
    if (outcome.status === 'dropped') this.#logDropped(settlement, outcome.reason)
    if (outcome.status === 'pending') lookIn(outcome.retryInMs)
    // It has passed its turn on.
    else if (job.line !== null && job.webhook.transport === 'pull') waits?.committed(job.webhookId)
    else if (job.line !== null) wake()
    await (written ?? this.#webhookEffects.write(settlement))
    if (outcome.status === 'cancelled') sweep()
    // Other webhooks may have to be notified.
    if (outcome.status === 'cancelled' || outcome.status === 'dropped') wake()
  }

  #logDropped({ job, result }: Settlement, reason: string): void {
    const { deliveryId, eventId, webhookId, eventType, attempt } = job
    const last = result.kind === 'response' ? { statusCode: result.statusCode } : { failure: result.reason }
    const line = { deliveryId, eventId, webhookId, eventType, attempt, reason, ...last }
    logSeldom(this.#tools.log, 'warn', 'dropped', line, 'a delivery was dropped')
  }

  #mayBegin(place: Place): boolean {
    // Connecting may have taken long, or the process may have been frozen.
    const isLate = !this.recheck.mayBegin(place) || place.leaseEnd <= this.#tools.clock.now()
    if (isLate || this.#stopped.has(place)) return false
    this.#sent.add(place)
    return true
  }

  /**
   * Gives back deliveries that a check found to be stopped, and prevents the start of those that are still connecting.
   */
  #withdraw(stopped: Stopped[]): void {
    const now = this.#tools.clock.now()
    const present = stopped.filter(({ until }) => until === 0 || until > now)
    for (const { place } of present) {
      if (this.#begun.has(place) && !this.#sent.has(place)) this.#stopped.add(place)
    }
    for (const [until, alike] of Map.groupBy(present, ({ until }) => until)) {
      const waiting = this.#around.places.withdraw(alike.map(({ place }) => place))
      if (waiting.length > 0) void this.giveBack(waiting, Math.max(until, now))
    }
  }

  /** Gives back jobs that were not sent, and their places. */
  async giveBack(unsent: Place[], dueAt: number): Promise<void> {
    const jobs = unsent.map(({ job }) => job)
    await this.#around.giveBack.now(jobs, dueAt)
    for (const place of unsent) this.leave(place)
  }

  leave(place: Place): void {
    this.#around.places.leave(place)
    for (const set of [this.#begun, this.#sent, this.#stopped]) set.delete(place)
    this.#around.onLeft()
  }
}
