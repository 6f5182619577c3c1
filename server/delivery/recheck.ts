import { type Database, marks, rows } from '../database/connect.ts'
import { outOfSight } from '../domain/sight.ts'
import type { Log } from '../log.ts'
import type { Place } from './concurrency.ts'

/** What has not been sent is looked at again after so long. */
const EVERY_MS = 500
/** Nothing is taken up on the word of a look that is older: with it, a stop is heard of within a second. */
export const BELIEVED_MS = 800
/** Nor does a request begin, once there is a connection for it. */
const BEGUN_MS = 950

/** A claim that is not to be sent any more, or not before `until`. */
export type Stopped = { place: Place; until: number }

export type Recheck = {
  /** Called when a claim begins, which is a look at what it takes; what it answers, when that has been added. */
  claiming(): () => void
  /**
   * Called when what was looked at then, by `performance.now()`, is added without a claim; what it answers, when it has
   * been.
   */
  adding(lookedAt: number): () => void
  /** Whether what waits may be sent without another look. If not, one is on its way. */
  isFresh(): boolean
  /** Whether a request may begin at this moment on the word of the last look. */
  mayBegin(): boolean
  stop(): void
}

type LookedAt = { id: string; status: string; epoch: number; held_until: number | null; sees_all: number }

/**
 * Looks again at what this process has claimed and not yet sent, with a statement for all webhooks, one for all leases,
 * and one for what tokens with limited sight may see: every half second at most, and only while something waits. A
 * claim is as good as a look for what it takes.
 *
 * @param given.hasUnsent whether `unsent` would have any: asked often
 * @param given.onLooked called after each look with what it has found to be stopped
 */
export const createRecheck = (given: {
  database: Database
  log: Log
  unsent: () => Place[]
  hasUnsent: () => boolean
  onLooked: (stopped: Stopped[]) => void
}): Recheck => {
  const { database, log, unsent, hasUnsent, onLooked } = given
  /** All that waits was looked at then, or later. */
  let lookedAt = performance.now()
  const claims = new Set<number>()
  let looking = false
  let failing = false
  let ended = false
  let timer: NodeJS.Timeout | undefined
  let nextAt = 0
  /** Of what has been added while a look is under way: it does not see that. */
  let unseenSince = Number.POSITIVE_INFINITY

  const look = async (): Promise<void> => {
    clearTimeout(timer)
    timer = undefined
    looking = true
    nextAt = performance.now() + EVERY_MS
    // What a claim adds meanwhile was looked at when the claim began.
    const startedAt = Math.min(performance.now(), ...claims)
    unseenSince = Number.POSITIVE_INFINITY
    const stopped = await stoppedOf(unsent()).catch(error => {
      if (!failing) log.error({ err: error }, 'what waits cannot be looked at again, and is not sent')
    })
    failing = stopped === undefined
    looking = false
    if (stopped) lookedAt = Math.min(startedAt, unseenSince)
    keepLooking()
    if (stopped && !ended) onLooked(stopped)
  }

  const stoppedOf = async (places: Place[]): Promise<Stopped[]> => {
    if (places.length === 0) return []
    const ids = [...new Set(places.map(({ job }) => job.webhookId))]
    const [found, leases] = await Promise.all([
      rows<LookedAt>(
        database.knex,
        `SELECT id, status, epoch, held_until, (SELECT t.sees_all_organisations FROM access_tokens t
           WHERE t.id = webhooks.access_token_id) AS sees_all FROM webhooks WHERE id IN (${marks(ids)})`,
        ids,
      ),
      leasesOf(places),
    ])
    const webhooks = new Map(found.map(webhook => [webhook.id, webhook]))
    const unseen = await outOfSight(database.knex, places, ({ job }) => ({
      accessTokenId: job.webhook.access_token_id,
      eventId: job.eventId,
      seesAllOrganisations: webhooks.get(job.webhookId)?.sees_all === 1,
    }))
    return places.flatMap(place => {
      const { webhookId, deliveryId, epoch, lease } = place.job
      const webhook = webhooks.get(webhookId)
      const hasEnded = webhook?.status !== 'active' || webhook.epoch > epoch
      // Whoever stood still, or lost its database, past a lease may have had it answered, and says so when it is back.
      const isOthers = leases.get(deliveryId) !== lease
      if (hasEnded || isOthers || unseen.has(place)) return [{ place, until: 0 }]
      return webhook.held_until === null ? [] : [{ place, until: webhook.held_until }]
    })
  }

  const leasesOf = async (places: Place[]): Promise<Map<string, string | null>> => {
    const found = await rows<{ delivery_id: string; lease: string | null }>(
      database.knex,
      `SELECT delivery_id, lease FROM delivery_queue WHERE delivery_id IN (${marks(places)})`,
      places.map(({ job }) => job.deliveryId),
    )
    return new Map(found.map(row => [row.delivery_id, row.lease]))
  }

  const keepLooking = (): void => {
    if (!hasUnsent() || timer || looking || ended) return
    // What was looked at a moment ago, as by its claim, is not looked at again at once: most is sent by then.
    timer = setTimeout(look, Math.max(0, nextAt - performance.now(), lookedAt + EVERY_MS - performance.now()))
  }

  return {
    claiming() {
      const startedAt = performance.now()
      if (!hasUnsent()) lookedAt = startedAt
      claims.add(startedAt)
      return () => {
        claims.delete(startedAt)
        keepLooking()
      }
    },
    adding(addedAt) {
      lookedAt = hasUnsent() ? Math.min(lookedAt, addedAt) : addedAt
      unseenSince = Math.min(unseenSince, addedAt)
      return keepLooking
    },
    isFresh() {
      if (performance.now() - lookedAt <= BELIEVED_MS) return true
      if (!looking && !timer && !ended) look()
      return false
    },
    mayBegin: () => performance.now() - lookedAt <= BEGUN_MS,
    stop() {
      ended = true
      clearTimeout(timer)
    },
  }
}
