import type { Clock } from '../clock.ts'
import type { Job, Triage } from './queue.ts'

// Who gets the places of one process. There are `concurrency` of them to send in, and twice as many in memory, waiting
// and unrecorded attempts included.
//
// A webhook may take one more place while it has less than a third of those that are free. Alone it comes to a quarter
// of all; of n that hang, each comes to 1 in n + 3, and three times that stays free: whoever is next finds room,
// however many hang.
//
// Several processes share the queue, and each has shares of its own. So over all of them too a webhook has at most a
// quarter of the places, each delivery is in the hands of one process, and a webhook that asked to be left alone (429)
// is left alone by all: the hold is in the database, and each process meets it with its next claim. Not promised: that
// a webhook's connections are fewer than its share times the number of processes; that what another process has taken
// already for a webhook that was held this moment is not sent, at most its share there; and any order of deliveries.

/** A claimed job in this process, from its claim to its record. */
export type Place = { job: Job; lane: Lane; leaseEnd: number }

/** A webhook's places. */
type Lane = {
  count: number
  inFlight: number
  waiting: Place[]
  /** Not sent to before; only until the database knows, and says so with each claim. */
  heldUntil: number
}

export type Places = ReturnType<typeof createPlaces>

export const createPlaces = ({ clock, concurrency }: { clock: Clock; concurrency: number }) => {
  const capacity = 2 * concurrency
  const lanes = new Map<string, Lane>()
  const places = new Set<Place>()
  /** Lanes with something waiting, the one whose last turn was longest ago first. */
  const waitingLanes = new Set<Lane>()
  let inFlight = 0

  const laneOf = (webhookId: string): Lane => {
    let lane = lanes.get(webhookId)
    if (!lane) {
      lane = { count: 0, inFlight: 0, waiting: [], heldUntil: 0 }
      lanes.set(webhookId, lane)
    }
    return lane
  }

  const mayTakeOneMore = (taken: number, free: number): boolean => free > 0 && taken < Math.max(1, free / 3)

  const enter = (job: Job, leaseEnd: number): Place => {
    const lane = laneOf(job.webhookId)
    const place = { job, lane, leaseEnd }
    places.add(place)
    lane.count += 1
    return place
  }

  const begin = (place: Place): Place => {
    place.lane.inFlight += 1
    inFlight += 1
    return place
  }

  const remove = (place: Place): void => {
    const { lane, job } = place
    places.delete(place)
    lane.count -= 1
    if (lane.count === 0) lanes.delete(job.webhookId)
  }

  const withdraw = (lane: Lane): Place[] => {
    waitingLanes.delete(lane)
    return lane.waiting.splice(0)
  }

  return {
    /** How many more jobs there is a place for. */
    room: (): number => Math.max(0, capacity - places.size),

    count: (): number => places.size,

    /** How many webhooks it has something of. */
    webhooks: (): number => lanes.size,

    all: (): Place[] => [...places],

    /**
     * What becomes of deliveries that are due: those of a webhook that is held are put off, those beyond its share
     * left.
     */
    triage(due: Job[]): Triage {
      const now = clock.now()
      const taken = new Map<string, number>()
      const triage: Triage = { take: [], later: [] }
      for (const job of due) {
        const lane = lanes.get(job.webhookId)
        const heldUntil = Math.max(job.webhook.held_until ?? 0, lane?.heldUntil ?? 0)
        const count = taken.get(job.webhookId) ?? lane?.count ?? 0
        if (heldUntil > now) triage.later.push({ job, dueAt: heldUntil })
        else if (mayTakeOneMore(count, capacity - places.size - triage.take.length)) {
          triage.take.push(job)
          taken.set(job.webhookId, count + 1)
        }
      }
      return triage
    },

    /**
     * How many more each of some webhooks may have, by turns up to `limit` together; none for those that have their
     * share.
     */
    quotas(webhookIds: string[], limit: number): Map<string, number> {
      const quotas = new Map<string, number>()
      let free = capacity - places.size
      let left = limit
      let hungry = webhookIds
      while (hungry.length > 0) {
        hungry = hungry.filter(id => {
          const quota = quotas.get(id) ?? 0
          if (left === 0 || !mayTakeOneMore((lanes.get(id)?.count ?? 0) + quota, free)) return false
          quotas.set(id, quota + 1)
          free -= 1
          left -= 1
          return true
        })
      }
      return quotas
    },

    /** A claimed job waits for its turn. */
    add(job: Job, leaseEnd: number): void {
      const place = enter(job, leaseEnd)
      place.lane.waiting.push(place)
      waitingLanes.add(place.lane)
    },

    /** A job that somebody waits for does not wait. */
    startNow: (job: Job, leaseEnd: number): Place => begin(enter(job, leaseEnd)),

    /** Takes the next place to send in, if there is one and somebody may have it: each webhook in turn. */
    next(): Place | undefined {
      for (const lane of waitingLanes) {
        if (!mayTakeOneMore(lane.inFlight, concurrency - inFlight)) continue
        const place = lane.waiting.shift()!
        waitingLanes.delete(lane)
        if (lane.waiting.length > 0) waitingLanes.add(lane)
        // A process that was frozen past its lease: by now the delivery may be another's.
        if (place.leaseEnd > clock.now()) return begin(place)
        remove(place)
      }
      return undefined
    },

    /** An attempt has been made; the job keeps its place in memory until it has been recorded. */
    ended({ lane }: Place): void {
      lane.inFlight -= 1
      inFlight -= 1
    },

    /** A job has been recorded, or given up. */
    leave: remove,

    /** Nothing is sent to the webhook of this place until then. Returns what waits for it, to be given back. */
    holdWebhook({ lane }: Place, until: number): Place[] {
      lane.heldUntil = Math.max(lane.heldUntil, until)
      return withdraw(lane)
    },

    /** Returns what waits for the webhook of this place, to be given back. */
    withdrawWebhook: ({ lane }: Place): Place[] => withdraw(lane),

    /** Returns all that waits, to be given back. */
    withdrawWaiting: (): Place[] => [...waitingLanes].flatMap(withdraw),

    /** Drops what waits under a lease that has run out, before the same deliveries are claimed again. */
    dropExpired(now: number): void {
      for (const lane of waitingLanes) {
        const expired = lane.waiting.filter(place => place.leaseEnd <= now)
        if (expired.length === 0) continue
        lane.waiting = lane.waiting.filter(place => place.leaseEnd > now)
        if (lane.waiting.length === 0) waitingLanes.delete(lane)
        for (const place of expired) remove(place)
      }
    },
  }
}
