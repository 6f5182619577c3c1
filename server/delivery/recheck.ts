import { type Database, marks, rows } from '../database/connect.ts'
import { heldUntilOf } from '../domain/pull-time.ts'
import { outOfSight } from '../domain/sight.ts'
import type { Log } from '../log.ts'
import type { Place } from './places.ts'

/** How often waiting deliveries are checked again. */
const EVERY_MS = 500
/** No delivery is taken on a check older than this, so that a stop takes effect within a second. */
export const BELIEVED_MS = 800
/** No request begins on a check older than this. */
export const BEGUN_MS = 950

/** A claim that must not be sent, or not before `until`. */
export type Stopped = { place: Place; until: number }

type LookedAt = { id: string; status: string; epoch: number; held_until: number | null; sees_all: number }

type Given = {
  database: Database
  log: Log
  unsent: () => Place[]
  hasUnsent: () => boolean
  onLooked: (stopped: Stopped[]) => void
}

/**
 * Checks again what this process has claimed and not yet sent: one statement for all webhooks, one for all leases, and
 * one for what limited tokens may see. Runs every half second, and only while deliveries wait. A claim counts as a
 * check of what it takes.
 *
 * @param given.hasUnsent whether `unsent` would return any; called often
 * @param given.onLooked called after each check with the claims that it found stopped
 */
export class Recheck {
  readonly #unsent: Given['unsent']
  readonly #log: Given['log']
  readonly #onLooked: Given['onLooked']
  readonly #database: Given['database']
  readonly #hasUnsent: Given['hasUnsent']
  /** Everything that waits was checked at this time or later. */
  #lookedAt = performance.now()
  readonly #claims = new Set<number>()
  #looking = false
  #failing = false
  #ended = false
  #timer: NodeJS.Timeout | undefined
  #nextAt = 0
  /** Times of jobs added while a check is under way, which does not see them. */
  #unseenSince = Number.POSITIVE_INFINITY

  constructor(given: Given) {
    this.#unsent = given.unsent
    this.#log = given.log
    this.#onLooked = given.onLooked
    this.#database = given.database
    this.#hasUnsent = given.hasUnsent
  }

  /**
   * Call it when a claim begins, which also checks what it takes; call the returned function when the jobs are added.
   */
  claiming(): () => void {
    const startedAt = performance.now()
    if (!this.#hasUnsent()) this.#lookedAt = startedAt
    this.#claims.add(startedAt)
    return () => {
      this.#claims.delete(startedAt)
      this.#keepLooking()
    }
  }

  /**
   * Call it when jobs are added without a claim that were checked at this time, by `performance.now()`; call the
   * returned function when they are added.
   */
  adding(addedAt: number): () => void {
    this.#lookedAt = this.#hasUnsent() ? Math.min(this.#lookedAt, addedAt) : addedAt
    this.#unseenSince = Math.min(this.#unseenSince, addedAt)
    return () => this.#keepLooking()
  }

  /** Whether waiting jobs may be sent without another check. If not, one is on its way. */
  isFresh(): boolean {
    if (performance.now() - this.#lookedAt <= BELIEVED_MS) return true
    if (!this.#looking && !this.#timer && !this.#ended) this.#look()
    return false
  }

  /** Whether the last check allows a request to begin now. */
  mayBegin(): boolean {
    return performance.now() - this.#lookedAt <= BEGUN_MS
  }

  stop(): void {
    this.#ended = true
    clearTimeout(this.#timer)
  }

  async #look(): Promise<void> {
    clearTimeout(this.#timer)
    this.#timer = undefined
    this.#looking = true
    this.#nextAt = performance.now() + EVERY_MS
    // A claim's jobs were checked when the claim began.
    const startedAt = Math.min(performance.now(), ...this.#claims)
    this.#unseenSince = Number.POSITIVE_INFINITY
    const stopped = await this.#stoppedOf(this.#unsent()).catch(error => {
      if (!this.#failing) this.#log.error({ err: error }, 'what waits cannot be looked at again, and is not sent')
    })
    this.#failing = stopped === undefined
    this.#looking = false
    if (stopped) this.#lookedAt = Math.min(startedAt, this.#unseenSince)
    this.#keepLooking()
    if (stopped && !this.#ended) this.#onLooked(stopped)
  }

  async #stoppedOf(places: Place[]): Promise<Stopped[]> {
    if (places.length === 0) return []
    const ids = [...new Set(places.map(({ job }) => job.webhookId))]
    const [found, leases] = await Promise.all([
      rows<LookedAt>(
        this.#database.knex,
        `SELECT id, status, epoch, held_until, (SELECT t.sees_all_organisations FROM access_tokens t
           WHERE t.id = webhooks.access_token_id) AS sees_all FROM webhooks WHERE id IN (${marks(ids)})`,
        ids,
      ),
      this.#leasesOf(places),
    ])
    const webhooks = new Map(found.map(webhook => [webhook.id, webhook]))
    const unseen = await outOfSight(this.#database.knex, places, ({ job }) => ({
      accessTokenId: job.webhook.access_token_id,
      eventId: job.eventId,
      seesAllOrganisations: webhooks.get(job.webhookId)?.sees_all === 1,
    }))
    return places.flatMap(place => {
      const { webhookId, deliveryId, epoch, lease } = place.job
      const webhook = webhooks.get(webhookId)
      const hasEnded = webhook?.status !== 'active' || webhook.epoch > epoch
      // A process that was frozen or lost its database past a lease may have received the answer, and records it when
      // it is back.
      const isOthers = leases.get(deliveryId) !== lease
      if (hasEnded || isOthers || unseen.has(place)) return [{ place, until: 0 }]
      const until = heldUntilOf(webhook.held_until)
      return until === 0 ? [] : [{ place, until }]
    })
  }

  async #leasesOf(places: Place[]): Promise<Map<string, string | null>> {
    const found = await rows<{ delivery_id: string; lease: string | null }>(
      this.#database.knex,
      `SELECT delivery_id, lease FROM delivery_queue WHERE delivery_id IN (${marks(places)})`,
      places.map(({ job }) => job.deliveryId),
    )
    return new Map(found.map(row => [row.delivery_id, row.lease]))
  }

  #keepLooking(): void {
    if (!this.#hasUnsent() || this.#timer || this.#looking || this.#ended) return
    // Jobs checked a moment ago, such as by their claim, are not checked again at once: most are sent by then.
    this.#timer = setTimeout(
      () => this.#look(),
      Math.max(0, this.#nextAt - performance.now(), this.#lookedAt + EVERY_MS - performance.now()),
    )
  }
}
