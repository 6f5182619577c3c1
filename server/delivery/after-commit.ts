import type { Clock } from '../clock.ts'
import { isOutage } from '../database/connect.ts'
import type { Transaction } from '../database/transaction.ts'
import type { AfterCommit, FreshDelivery, Lease } from '../domain/deliveries.ts'
import { LEASE_MS, newLease } from './leases.ts'
import type { Place, Places } from './places.ts'
import type { Job } from './queue.ts'

/** A client that waits here for a delivery that is being queued, as if it had taken it. */
export type Handing = { lease: Lease; job: Job }

/**
 * Takes the deliveries of one transaction, and sends them after its commit, or hands them to clients that wait here.
 * The transaction locks the webhooks, so that what it read of them stays true until its commit; deliveries queued in it
 * need no further check.
 *
 * @param given.isTaking whether this process sends fresh deliveries of a webhook at once
 * @param given.toClient a client for a job of a webhook that clients pull from, if one waits
 * @param given.onHanded called with the committed deliveries that clients have
 * @param given.onNotHanded called with those that were not committed, or whose commit is in doubt
 * @param given.onCommitted called with the jobs taken, and the time of the check by `performance.now()`
 * @param given.onLeft called with the committed deliveries that have to be claimed
 * @param given.onReleased called with each reserved place whose job was not committed
 * @param given.onDoubt called with jobs whose commit is in doubt; none of them is sent
 */
export const createAfterCommit =
  (given: {
    clock: Clock
    places: Places
    isTaking: (webhook: { webhookId: string; epoch: number }) => boolean
    toClient: (job: Job, now: number) => Handing | undefined
    onHanded: (handings: Handing[]) => void
    onNotHanded: (handings: Handing[], isInDoubt: boolean) => void
    onCommitted: (places: Place[], lookedAt: number) => void
    onLeft: (jobs: Job[]) => void
    onReleased: (place: Place) => void
    onDoubt: (jobs: Job[]) => void
  }) =>
  (trx: Transaction): AfterCommit => {
    const { clock, places, isTaking, toClient, onHanded, onNotHanded, onCommitted, onLeft, onReleased, onDoubt } = given
    const kept: Place[] = []
    const handed: Handing[] = []
    let lookedAt = Number.POSITIVE_INFINITY
    const left: Job[] = []

    const keep = (fresh: FreshDelivery, lease: Lease, now: number): Lease | undefined => {
      const job = jobOf(fresh, lease)
      const handing = job.webhook.transport === 'pull' ? toClient(job, now) : undefined
      const place = job.webhook.transport === 'push' && isTaking(job) ? places.reserve(job, lease.end) : undefined
      if (handing) handed.push(handing)
      else if (place) kept.push(place)
      else left.push(job)
      return handing?.lease ?? (place && lease)
    }

    trx.executionPromise.then(
      () => {
        if (kept.length > 0) onCommitted(kept, lookedAt)
        if (handed.length > 0) onHanded(handed)
        if (left.length > 0) onLeft(left)
      },
      error => {
        for (const place of kept) onReleased(place)
        if (handed.length > 0) onNotHanded(handed, isOutage(error))
        if (kept.length > 0 && isOutage(error)) onDoubt(kept.map(({ job }) => job))
      },
    )
    return {
      take(fresh) {
        lookedAt = Math.min(lookedAt, performance.now())
        const now = clock.now()
        const lease = { id: newLease(now), end: now + LEASE_MS }
        return new Map(
          fresh.flatMap(one => {
            const own = keep(one, lease, now)
            return own ? [[one.id, own]] : []
          }),
        )
      },
      get seesToAll() {
        return kept.length + handed.length + left.length > 0
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
  requestSealed: webhook.request_sealed,
  webhook,
  eventType: event.type,
  eventTime: event.createdAt,
  payload: event.payload,
  traceparent: event.traceparent,
})
