import { v7 as uuid } from 'uuid'
import type { Clock } from '../clock.ts'
import { type Database, marks, rows, run } from '../database/connect.ts'
import type { Log } from '../log.ts'
import type { Place } from './places.ts'
import type { Claim } from './queue.ts'

/**
 * The length of a lease. It is extended while its attempts live; the claims of a dead process are due again after it.
 */
export const LEASE_MS = 30_000
const EXTEND_EVERY_MS = 10_000

/** The id of a lease, which contains the time of the claim; `due_at` does not, once the lease was extended. */
export const newLease = (now: number): string => uuid({ msecs: now })

/**
 * Extends the leases of those `claims` that are still under them.
 *
 * @returns whether a claim still is
 */
export const extendLeases = async (
  database: Database,
  claims: Claim[],
  leaseEnd: number,
): Promise<(claim: Claim) => boolean> => {
  if (claims.length === 0) return () => true
  const leases = [...new Set(claims.map(claimed => claimed.lease))]
  const ids = claims.map(claimed => claimed.deliveryId)
  const extended = await run(
    database.knex,
    `UPDATE delivery_queue SET due_at = ? WHERE delivery_id IN (${marks(ids)}) AND lease IN (${marks(leases)})`,
    [leaseEnd, ...ids, ...leases],
  )
  if (extended === claims.length) return () => true
  const found = await rows<{ delivery_id: string; lease: string | null }>(
    database.knex,
    `SELECT delivery_id, lease FROM delivery_queue WHERE delivery_id IN (${marks(ids)})`,
    ids,
  )
  const owners = new Map(found.map(row => [row.delivery_id, row.lease]))
  return claimed => owners.get(claimed.deliveryId) === claimed.lease
}

/** Extends the leases of all `places` every 10 s until it is stopped. */
export const keepExtending = ({
  database,
  clock,
  log,
  places,
}: {
  database: Database
  clock: Clock
  log: Log
  places: () => Place[]
}) => {
  let extendedAt = performance.now()
  const extendAll = async (): Promise<void> => {
    const startedAt = performance.now()
    const extended = places()
    const leaseEnd = clock.now() + LEASE_MS
    const isOwn = await extendLeases(
      database,
      extended.map(({ job }) => job),
      leaseEnd,
    )
    for (const place of extended) if (isOwn(place.job)) place.leaseEnd = leaseEnd
    extendedAt = startedAt
  }
  const timer = setInterval(
    () => extendAll().catch(error => log.warn({ err: error }, 'leases cannot be extended')),
    EXTEND_EVERY_MS,
  )
  return {
    /**
     * Extends leases that may have run out, such as after the process was frozen or lost its database, so that it does
     * not claim deliveries that it is already sending.
     */
    async renew(): Promise<void> {
      if (performance.now() - extendedAt > 2 * EXTEND_EVERY_MS) await extendAll()
    },
    stop: () => clearInterval(timer),
  }
}
