import { randomBytes, randomFillSync } from 'node:crypto'
import { v7 } from 'uuid'

/** A corrected clock goes back by less than this; a larger step means another clock. */
const LARGEST_CORRECTION_MS = 1_000
const LARGEST_SEQUENCE = 2 ** 32 - 1

/** Random bytes for the next ids, because to ask for 16 takes thirteen times as long as the rest of an id. */
const pool = new Uint8Array(16 * 256)
let used = pool.length

const rng = (): Uint8Array => {
  if (used === pool.length) {
    randomFillSync(pool)
    used = 0
  }
  used += 16
  return pool.subarray(used - 16, used)
}

let latest = { ms: Number.NEGATIVE_INFINITY, sequence: 0 }

/**
 * A new id for something created at `now` (epoch milliseconds by the database's clock): a UUID of version 7 (RFC 9562
 * section 5.7). Ids sort by that time, whichever process makes them. Ids of one process also sort in the order of their
 * creation, by a counter in the bits after the time (section 6.2, method 1).
 */
export const newId = (now: number): string => {
  const stays = now <= latest.ms && latest.ms - now < LARGEST_CORRECTION_MS && latest.sequence < LARGEST_SEQUENCE
  // The counter begins in the lower half of its range, so that it has room to grow.
  latest = stays
    ? { ms: latest.ms, sequence: latest.sequence + 1 }
    : { ms: now, sequence: randomBytes(4).readUInt32BE() >>> 1 }
  return v7({ msecs: latest.ms, seq: latest.sequence, rng })
}

/** A new id for something that no row keeps, such as a request, by this process's clock. */
export const passingId = (): string => v7({ rng })

/** The least id of a time (epoch milliseconds). */
export const leastIdAt = (time: number): string => {
  const hex = Math.max(0, time).toString(16).padStart(12, '0')
  return `${hex.slice(0, 8)}-${hex.slice(8)}-7000-8000-000000000000`
}
