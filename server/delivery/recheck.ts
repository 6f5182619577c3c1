import { type Database, marks, rows } from '../database/connect.ts'
import type { Log } from '../log.ts'
import type { Place } from './concurrency.ts'

/** What has not been sent is looked at again after so long. */
const EVERY_MS = 500
/** Nothing is sent on the word of a look that is older: with it, a stop is heard of within a second. */
export const BELIEVED_MS = 800

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
  stop(): void
}

/**
 * Looks again at the webhooks of what this process has claimed and not yet sent: one statement for all of them, every
 * half second at most, and only while something waits. A claim is as good as a look for what it takes.
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
    const found = await rows<{ id: string; status: string; epoch: number; held_until: number | null }>(
      database.knex,
      `SELECT id, status, epoch, held_until FROM webhooks WHERE id IN (${marks(ids)})`,
      ids,
    )
    const webhooks = new Map(found.map(webhook => [webhook.id, webhook]))
    return places.flatMap(place => {
      const webhook = webhooks.get(place.job.webhookId)
      const hasEnded = webhook?.status !== 'active' || webhook.epoch > place.job.epoch
      if (hasEnded) return [{ place, until: 0 }]
      return webhook.held_until === null ? [] : [{ place, until: webhook.held_until }]
    })
  }

  const keepLooking = (): void => {
    if (!hasUnsent() || timer || looking || ended) return
    timer = setTimeout(look, Math.max(0, nextAt - performance.now()))
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
    stop() {
      ended = true
      clearTimeout(timer)
    },
  }
}
