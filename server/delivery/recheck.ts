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
 * one for what limited tokens may see. Runs every half second, and only while deliveries wait. Each place has the time
 * of its last check: one that waits for the next delays no other, however long that takes.
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
  #looking = false
  #failing = false
  #ended = false
  #timer: NodeJS.Timeout | undefined
  #nextAt = 0

  constructor(given: Given) {
    this.#unsent = given.unsent
    this.#log = given.log
    this.#onLooked = given.onLooked
    this.#database = given.database
    this.#hasUnsent = given.hasUnsent
  }

  /** Whether a waiting job may be sent without another check. If not, one is on its way. */
  isFresh({ checkedAt }: Place): boolean {
    if (performance.now() - checkedAt <= BELIEVED_MS) return true
    if (!this.#looking && !this.#timer && !this.#ended) this.#look()
    return false
  }

  /** Whether the last check allows a request to begin now. */
  mayBegin({ checkedAt }: Place): boolean {
    return performance.now() - checkedAt <= BEGUN_MS
  }

  /**
   * Call it when jobs were added that were checked at this time, by `performance.now()`. They are not checked again at
   * once: most are sent by then.
   */
  added(checkedAt: number): void {
    if (!this.#hasUnsent() || this.#timer || this.#looking || this.#ended) return
    const lookAt = Math.max(this.#nextAt, checkedAt + EVERY_MS)
    this.#timer = setTimeout(() => this.#look(), Math.max(0, lookAt - performance.now()))
  }

  stop(): void {
    this.#ended = true
    clearTimeout(this.#timer)
  }

  async #look(): Promise<void> {
    clearTimeout(this.#timer)
    this.#timer = undefined
    this.#looking = true
    const startedAt = performance.now()
    this.#nextAt = startedAt + EVERY_MS
    const unsent = this.#unsent()
    const stopped = await this.#stoppedOf(unsent).catch(error => {
      if (!this.#failing) this.#log.error({ err: error }, 'what waits cannot be looked at again, and is not sent')
    })
    this.#failing = stopped === undefined
    this.#looking = false
    if (stopped) for (const place of unsent) place.checkedAt = startedAt
    this.added(startedAt)
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
}
