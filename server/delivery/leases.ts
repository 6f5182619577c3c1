import { v7 as uuid } from 'uuid'
import type { Clock } from '../clock.ts'
import { type Database, marks, run } from '../database/connect.ts'
import type { Log } from '../log.ts'
import type { Place } from './concurrency.ts'
import type { Claim } from './queue.ts'

/**
 * A claim lasts so long, and is extended while its attempts live. What a dead process has claimed is due again after
 * it.
 */
export const LEASE_MS = 30_000
const EXTEND_EVERY_MS = 10_000

/** A lease's id, which tells when it was taken: `due_at` does not, once the lease has been extended. */
export const newLease = (now: number): string => uuid({ msecs: now })

/** Pushes the end of leases forward, for those of `claims` that are still under their own. */
export const extendLeases = async (database: Database, claims: Claim[], leaseEnd: number): Promise<void> => {
  if (claims.length === 0) return
  const leases = [...new Set(claims.map(claimed => claimed.lease))]
  await run(
    database.knex,
    `UPDATE delivery_queue SET due_at = ? WHERE delivery_id IN (${marks(claims)}) AND lease IN (${marks(leases)})`,
    [leaseEnd, ...claims.map(claimed => claimed.deliveryId), ...leases],
  )
}

/** Extends the leases of all `places` every 10 s, until the function that it returns is called. */
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
}): (() => void) => {
  const extendAll = async (): Promise<void> => {
    const extended = places()
    const leaseEnd = clock.now() + LEASE_MS
    await extendLeases(
      database,
      extended.map(({ job }) => job),
      leaseEnd,
    )
    for (const place of extended) place.leaseEnd = leaseEnd
  }
  const timer = setInterval(
    () => extendAll().catch(error => log.warn({ err: error }, 'leases cannot be extended')),
    EXTEND_EVERY_MS,
  )
  return () => clearInterval(timer)
}
