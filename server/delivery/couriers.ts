import type { Knex } from 'knex'
import type { Clock } from '../clock.ts'
import { isOutage } from '../database/connect.ts'
import type { Courier, FreshDelivery, Lease } from '../domain/deliveries.ts'
import type { Place, Places } from './concurrency.ts'
import { LEASE_MS, newLease } from './leases.ts'
import type { Job } from './queue.ts'

/**
 * Makes couriers, each for one transaction. What is queued in it has been looked at: the transaction holds the
 * webhooks, so that what was read of them is so until it is committed.
 *
 * @param given.isTaking whether fresh deliveries of a webhook are sent from here at once
 * @param given.onCommitted called with what was taken, and when it was looked at, by `performance.now()`
 * @param given.onLeft called with what is committed and was left to be claimed
 * @param given.onReleased called with each place that was kept for what was not committed
 * @param given.onDoubt called with jobs of which it is not known whether they were committed: none of them is sent
 */
export const createCouriers =
  (given: {
    clock: Clock
    places: Places
    isTaking: (webhook: { webhookId: string; epoch: number }) => boolean
    onCommitted: (places: Place[], lookedAt: number) => void
    onLeft: (jobs: Job[]) => void
    onReleased: (place: Place) => void
    onDoubt: (jobs: Job[]) => void
  }) =>
  (trx: Knex.Transaction): Courier => {
    const { clock, places, isTaking, onCommitted, onLeft, onReleased, onDoubt } = given
    const kept: Place[] = []
    let lookedAt = Number.POSITIVE_INFINITY
    const left: Job[] = []

    const keep = (fresh: FreshDelivery, lease: Lease): boolean => {
      const job = jobOf(fresh, lease)
      const place = isTaking(job) ? places.reserve(job, lease.end) : undefined
      if (place) kept.push(place)
      else left.push(job)
      return place !== undefined
    }

    trx.executionPromise.then(
      () => {
        if (kept.length > 0) onCommitted(kept, lookedAt)
        if (left.length > 0) onLeft(left)
      },
      error => {
        for (const place of kept) onReleased(place)
        if (kept.length > 0 && isOutage(error)) onDoubt(kept.map(({ job }) => job))
      },
    )
    return {
      take(fresh) {
        lookedAt = Math.min(lookedAt, performance.now())
        const now = clock.now()
        const lease = { id: newLease(now), end: now + LEASE_MS }
        const taken = new Set(fresh.filter(one => keep(one, lease)).map(({ id }) => id))
        return { lease, taken }
      },
      get seesToAll() {
        return kept.length + left.length > 0
      },
    }
  }

const jobOf = ({ id, event, webhook, line }: FreshDelivery, lease: Lease): Job => ({
  deliveryId: id,
  eventId: event.id,
  webhookId: webhook.id,
  epoch: webhook.epoch,
  recovered: false,
  lease: lease.id,
  attempt: 1,
  failureCount: 0,
  throttledSinceMs: null,
  line,
  url: webhook.url,
  webhook,
  eventType: event.type,
  eventTime: event.createdAt,
  payload: event.payload,
  traceparent: event.traceparent,
})
