import type { Database } from '../database/connect.ts'
import type { Places } from './concurrency.ts'
import { LEASE_MS, newLease } from './leases.ts'
import { claim, headOfEach } from './queue.ts'

/** Rows of one claim: enough that the database's commit is shared, few enough that it is short. */
const BATCH = 256
/** After so long it looks again for what was due and could not be claimed: another process has it in its hands. */
export const ELSEWHERE_MS = 100
const NOT_UNTIL_WOKEN = Number.POSITIVE_INFINITY

export type Claims = {
  /**
   * Something is due of a webhook that has its share: claims go by webhook, and places that become free are a reason to
   * look.
   */
  readonly isCrowded: boolean
  /**
   * Makes one claim of what is due at `now`, for the places that are free.
   *
   * @returns in how many milliseconds there may be more to claim: 0 for now; undefined where the head of the queue
   *   tells
   */
  claimDue(now: number): Promise<number | undefined>
}

/**
 * Claims for the places of this process: what has been due longest, or by turns of the webhooks where one has its
 * share.
 */
export const createClaims = ({ database, places }: { database: Database; places: Places }): Claims => {
  let crowded = false

  const claimOldest = async (now: number): Promise<number | undefined> => {
    const limit = Math.min(BATCH, places.room())
    const { found, left } = await claimInto(now, limit)
    crowded = left
    return left || found === limit ? 0 : undefined
  }

  /**
   * Claims for webhooks by turns, past those that have their share: however much is due of them, nobody waits behind
   * it.
   */
  const claimByTurns = async (now: number): Promise<number | undefined> => {
    const heads = await headOfEach(database)
    const due = heads.filter(head => head.dueAt <= now).map(head => head.webhookId)
    const quotas = places.quotas(due, BATCH)
    crowded = quotas.size < due.length
    if (quotas.size > 0) {
      const { found } = await claimInto(now, BATCH, quotas)
      return found === 0 ? ELSEWHERE_MS : 0
    }
    if (!crowded) return undefined
    return Math.max(1, (heads[due.length]?.dueAt ?? NOT_UNTIL_WOKEN) - now)
  }

  const claimInto = async (now: number, limit: number, quotas?: ReadonlyMap<string, number>) => {
    places.dropExpired(now)
    const given = { lease: newLease(now), now, limit, leaseMs: LEASE_MS, triage: places.triage }
    const claimed = await claim(database, quotas ? { ...given, quotas } : given)
    for (const job of claimed.taken) places.add(job, now + LEASE_MS)
    return claimed
  }

  return {
    get isCrowded() {
      return crowded
    },
    async claimDue(now) {
      if (places.room() > 0) return crowded ? claimByTurns(now) : claimOldest(now)
      crowded = true
      return NOT_UNTIL_WOKEN
    },
  }
}
