import type { Clock } from '../clock.ts'
import { createEndpointHistory } from './endpoint-history.ts'
import type { Job, Settlement, Triage } from './queue.ts'

// Shares out the places of one process. There are `concurrency` places for attempts in flight, and twice as many for
// jobs in memory, which include waiting and unrecorded attempts.
//
// Tenants. A tenant (the access token that created a webhook) may take one more place while it has less than three
// times the free ones. Alone it reaches three quarters. If n tenants take all they can, each has 3 of 3n + 1 places,
// and one of 3n + 1 stays free for the next tenant. Places go to the tenants in turn, then to their webhooks in turn.
//
// Webhooks. A webhook may take one more place while it has less than half of what its tenant may still take. Alone it
// reaches a quarter of all places. However many webhooks of a tenant take all they can, twice the share of one stays
// free for the next.
//
// Endpoints that do not answer. An attempt without an answer for half a second is set aside: it continues, and its
// place becomes free. Four times `concurrency` attempts may be set aside. A webhook is silent if it has attempts aside
// and no answer since they began: it may have less than an eighth of the remaining places aside. The last eighth of a
// tenant's places is for webhooks that have answered this process. An endpoint that has timed out repeatedly, or has
// just answered 429, is only probed until it answers: one attempt at a time, and all probed endpoints together a
// quarter of the places.
//
// Recovered deliveries come after new ones: they take less than a sixteenth of the free places at a time, a quarter of
// what a webhook may have alone.
//
// Pings have separate places (pings.ts), and appear here only for their leases.
//
// Several processes share the queue, each with its own shares. So a webhook has at most a quarter of all places, and
// one process holds each delivery. A hold (429) is in the database, and each process respects it from its next claim
// on. There is no guarantee that a webhook has fewer connections than its share times the number of processes; that a
// process stops deliveries that it took before a hold, at most its share; or of any order of deliveries.

/** A claimed job in this process, from its claim to its record. */
export type Place = {
  job: Job
  lane: Lane
  leaseEnd: number
  state: 'reserved' | 'waiting' | 'sending' | 'aside' | 'ended' | 'ping'
  /** By `performance.now()`. */
  begunAt: number
}

/** The number of jobs in memory (without those set aside), being sent, and set aside. */
type Counts = { memory: number; sending: number; aside: number }
type Pool = 'memory' | 'sending'

/** A webhook's places. */
type Lane = Counts & {
  webhookId: string
  tenant: Tenant
  recovered: Counts
  fresh: Place[]
  /** Behind `fresh`. */
  behind: Place[]
  /** All of its places, pings included. */
  all: number
  /** In the order in which they began. */
  setAside: Set<Place>
  answeredAt: number
  /**
   * Until when a webhook receives nothing, in an epoch; needed only until the database knows, and every claim reads it.
   */
  held: { epoch: number; until: number }
}

type Tenant = Counts & {
  id: string
  lanes: Set<Lane>
  /** Lanes with waiting jobs, least recently served first. */
  waiting: Set<Lane>
}

/** The target of a claim: the new or recovered deliveries of a webhook in its present epoch. */
export type Claimable = { webhookId: string; tenantId: string; recovered: boolean }

/** Places that a claim is about to take. */
type Draft = {
  all: number
  lanes: Map<string, number>
  recovered: Map<string, number>
  tenants: Map<string, number>
  /** Probed webhooks that have a place. */
  probed: number
}

export type Places = ReturnType<typeof createPlaces>

const ASIDE_AFTER_MS = 500
const TICK_MS = 100
const none = (): Counts => ({ memory: 0, sending: 0, aside: 0 })
const total = ({ memory, aside }: Counts): number => memory + aside

/**
 * @param given.onRoom called when attempts have been set aside
 * @param given.onStuck called with waiting jobs that may not be sent for long and have to be given back
 */
export const createPlaces = ({
  clock,
  concurrency,
  onRoom = () => {},
  onStuck = () => {},
}: {
  clock: Clock
  concurrency: number
  onRoom?: () => void
  onStuck?: (stuck: Place[]) => void
}) => {
  const sizes = { memory: 2 * concurrency, sending: concurrency }
  const asideSize = 4 * concurrency
  const mostProbed = Math.max(1, concurrency / 4)
  const history = createEndpointHistory()
  const lanes = new Map<string, Lane>()
  const tenants = new Map<string, Tenant>()
  const places = new Set<Place>()
  const reserved = new Set<Place>()
  const all = none()
  /** Attempts that have not been set aside, the oldest first. */
  const sending = new Set<Place>()
  const waitingTenants = new Set<Tenant>()
  let timer: NodeJS.Timeout | undefined

  const tenantOf = (id: string): Tenant => {
    let tenant = tenants.get(id)
    if (!tenant) {
      tenant = { id, ...none(), lanes: new Set(), waiting: new Set() }
      tenants.set(id, tenant)
    }
    return tenant
  }

  const laneOf = ({ webhookId, webhook }: Job): Lane => {
    let lane = lanes.get(webhookId)
    if (!lane) {
      const tenant = tenantOf(webhook.access_token_id)
      lane = {
        webhookId,
        tenant,
        ...none(),
        recovered: none(),
        fresh: [],
        behind: [],
        all: 0,
        setAside: new Set(),
        answeredAt: 0,
        held: { epoch: 0, until: 0 },
      }
      lanes.set(webhookId, lane)
      tenant.lanes.add(lane)
    }
    return lane
  }

  const add = ({ lane, job }: Place, what: keyof Counts, change: 1 | -1): void => {
    const counted = [all, lane, lane.tenant, ...(job.recovered ? [lane.recovered] : [])]
    for (const counts of counted) counts[what] += change
  }

  /** Probed lanes that have a place. */
  const probed = (): number => {
    let count = 0
    for (const id of history.probed()) if (total(lanes.get(id) ?? none()) > 0) count += 1
    return count
  }

  const isSilent = ({ setAside, answeredAt }: Lane): boolean => {
    const [first] = setAside
    return first !== undefined && answeredAt < first.begunAt
  }

  const asideLeft = (tenant: Counts): number => (7 * (asideSize - all.aside) - tenant.aside) / 8

  /** Whether one more job fits into `pool`, in addition to the present ones and those of `draft`. */
  const mayTake = (pool: Pool, { webhookId, tenantId, recovered }: Claimable, draft?: Draft): boolean => {
    const lane = lanes.get(webhookId)
    const tenant = lane?.tenant ?? tenants.get(tenantId)
    const free = sizes[pool] - all[pool] - (draft?.all ?? 0)
    if (free <= 0) return false
    const drafted = draft?.lanes.get(webhookId) ?? 0
    const own = (lane ? lane[pool] + lane.aside : 0) + drafted
    if (history.isProbed(webhookId)) {
      // For `sending`, its only job in memory is the one to be sent.
      const others = pool === 'memory' ? own : (lane?.sending ?? 0) + (lane?.aside ?? 0)
      return others === 0 && (!draft || draft.probed < mostProbed)
    }
    if (lane && isSilent(lane)) {
      const isWaiting = lane.fresh.length + lane.behind.length + drafted > 0
      // It has as much in memory as it may send at once.
      if (pool === 'memory' && (isWaiting || !mayTake('sending', { webhookId, tenantId, recovered }))) return false
      if (own >= Math.max(1, asideLeft(lane.tenant) / 8)) return false
    }
    const ofTenant = (tenant?.[pool] ?? 0) + (draft?.tenants.get(tenantId) ?? 0)
    const ofTenantLeft = (3 * free - ofTenant) / 4
    const reserve = history.hasAnswered(webhookId) ? 0 : (ofTenant + ofTenantLeft) / 8
    const left = ofTenantLeft - reserve
    // A webhook without any place gets one while its tenant has one left.
    if (ofTenant > 0 && left <= 0) return false
    if (own >= Math.max(1, (left - (lane?.aside ?? 0)) / 2)) return false
    if (!recovered) return true
    const ofRecovered =
      (lane ? lane.recovered[pool] + lane.recovered.aside : 0) + (draft?.recovered.get(webhookId) ?? 0)
    return ofRecovered < Math.max(1, free / 16)
  }

  const newDraft = (): Draft => ({
    all: 0,
    lanes: new Map(),
    recovered: new Map(),
    tenants: new Map(),
    probed: probed(),
  })

  const take = (draft: Draft, { webhookId, tenantId, recovered }: Claimable): void => {
    const more = (map: Map<string, number>, key: string): void => void map.set(key, (map.get(key) ?? 0) + 1)
    draft.all += 1
    more(draft.lanes, webhookId)
    more(draft.tenants, tenantId)
    if (recovered) more(draft.recovered, webhookId)
    if (history.isProbed(webhookId)) draft.probed += 1
  }

  const claimableOf = ({ webhookId, webhook, recovered }: Job): Claimable => ({
    webhookId,
    tenantId: webhook.access_token_id,
    recovered,
  })

  const enter = (job: Job, leaseEnd: number, state: Place['state']): Place => {
    const place: Place = { job, lane: laneOf(job), leaseEnd, state, begunAt: 0 }
    if (state === 'reserved') reserved.add(place)
    else places.add(place)
    place.lane.all += 1
    if (state !== 'ping') add(place, 'memory', 1)
    return place
  }

  const heldUntil = ({ webhookId, webhook, epoch }: Job): number => {
    const held = lanes.get(webhookId)?.held
    return Math.max(webhook.held_until ?? 0, held && held.epoch === epoch ? held.until : 0)
  }

  const hasRoom = (job: Job): boolean =>
    mayTake('memory', claimableOf(job), history.isProbed(job.webhookId) ? newDraft() : undefined)

  const wait = (place: Place): void => {
    const { lane, job } = place
    ;(job.recovered ? lane.behind : lane.fresh).push(place)
    queue(lane)
  }

  const begin = (place: Place): Place => {
    place.state = 'sending'
    place.begunAt = performance.now()
    add(place, 'sending', 1)
    sending.add(place)
    timer ??= setInterval(tick, TICK_MS).unref()
    return place
  }

  /** Sets aside attempts that have had no answer for long, while their tenant has room for that. */
  const tick = (): void => {
    const began = performance.now() - ASIDE_AFTER_MS
    const before = all.aside
    for (const place of sending) {
      if (place.begunAt > began) break
      if (asideLeft(place.lane.tenant) <= 0) continue
      place.state = 'aside'
      sending.delete(place)
      place.lane.setAside.add(place)
      add(place, 'sending', -1)
      add(place, 'memory', -1)
      add(place, 'aside', 1)
    }
    if (sending.size === 0) {
      clearInterval(timer)
      timer = undefined
    }
    const stuck = [...waitingTenants].flatMap(({ waiting }) => [...waiting].filter(isStuck).flatMap(withdraw))
    if (stuck.length > 0) onStuck(stuck)
    if (all.aside > before) onRoom()
  }

  const isStuck = (lane: Lane): boolean =>
    (history.isProbed(lane.webhookId) || isSilent(lane)) && !mayTake('sending', claimableOf(firstOf(lane).job))

  const firstOf = (lane: Lane): Place => (lane.fresh[0] ?? lane.behind[0])!

  const remove = (place: Place): void => {
    const { lane } = place
    if (!places.delete(place) && !reserved.delete(place)) return
    lane.all -= 1
    if (place.state !== 'ping') add(place, 'memory', -1)
    forget(lane)
  }

  const forget = (lane: Lane): void => {
    if (lane.all > 0) return
    lanes.delete(lane.webhookId)
    const { tenant } = lane
    tenant.lanes.delete(lane)
    if (tenant.lanes.size === 0) tenants.delete(tenant.id)
  }

  const queue = (lane: Lane): void => {
    lane.tenant.waiting.add(lane)
    waitingTenants.add(lane.tenant)
  }

  const unqueue = (lane: Lane): void => {
    lane.tenant.waiting.delete(lane)
    if (lane.tenant.waiting.size === 0) waitingTenants.delete(lane.tenant)
  }

  const withdraw = (lane: Lane): Place[] => {
    unqueue(lane)
    return [...lane.fresh.splice(0), ...lane.behind.splice(0)]
  }

  /** Removes and returns the waiting jobs of a lane. */
  const takeOut = (lane: Lane, isMeant: (place: Place) => boolean): Place[] => {
    const found = [...lane.fresh, ...lane.behind].filter(isMeant)
    lane.fresh = lane.fresh.filter(place => !isMeant(place))
    lane.behind = lane.behind.filter(place => !isMeant(place))
    if (lane.fresh.length + lane.behind.length === 0) unqueue(lane)
    return found
  }

  /**
   * Removes and returns the next waiting job of a lane that may send; a recovered one only if no new one may be sent.
   */
  const shiftOf = (lane: Lane): Place | undefined => {
    for (const line of [lane.fresh, lane.behind]) {
      const first = line[0]
      if (!first || !mayTake('sending', claimableOf(first.job))) continue
      line.shift()
      const { tenant } = lane
      unqueue(lane)
      if (lane.fresh.length + lane.behind.length > 0) queue(lane)
      // Its tenant comes after the others.
      if (waitingTenants.delete(tenant)) waitingTenants.add(tenant)
      return first
    }
    return undefined
  }

  const nextWaiting = (): Place | undefined => {
    for (const tenant of waitingTenants) {
      for (const lane of tenant.waiting) {
        const place = shiftOf(lane)
        if (place) return place
      }
    }
    return undefined
  }

  return {
    /** How many more jobs there is a place for. */
    room: (): number => Math.max(0, sizes.memory - all.memory),

    count: (): number => places.size,

    /** The number of places reserved for deliveries that are being queued. */
    reserved: (): number => reserved.size,

    /** The number of webhooks with jobs here. */
    webhooks: (): number => lanes.size,

    all: (): Place[] => [...places],

    /** Decides about due deliveries: those of a held webhook are postponed, those beyond a share are left. */
    triage(due: Job[]): Triage {
      const now = clock.now()
      const draft = newDraft()
      const triage: Triage = { take: [], later: [] }
      for (const job of due) {
        const dueAt = heldUntil(job)
        const claimable = claimableOf(job)
        if (dueAt > now) triage.later.push({ job, dueAt })
        else if (mayTake('memory', claimable, draft)) {
          triage.take.push(job)
          take(draft, claimable)
        }
      }
      return triage
    },

    /**
     * How many more of each of these may be taken, up to `limit` in total: tenants in turn, then their webhooks, new
     * before recovered; none for those that have reached their share.
     */
    quotas<T extends Claimable>(claimables: T[], limit: number): Map<T, number> {
      const quotas = new Map<T, number>()
      const draft = newDraft()
      const rings = [...Map.groupBy(claimables, ({ tenantId }) => tenantId)]
        .toSorted(([a], [b]) => (tenants.get(a)?.memory ?? 0) - (tenants.get(b)?.memory ?? 0))
        .map(([, own]) => [...own.filter(({ recovered }) => !recovered), ...own.filter(({ recovered }) => recovered)])
      for (let hungry = rings.map(ring => ({ ring, at: 0 })); hungry.length > 0; ) {
        hungry = hungry.filter(turn => {
          for (; turn.at < turn.ring.length && draft.all < limit; turn.at++) {
            const claimable = turn.ring[turn.at]!
            if (!mayTake('memory', claimable, draft)) continue
            take(draft, claimable)
            quotas.set(claimable, (quotas.get(claimable) ?? 0) + 1)
            turn.ring.push(claimable)
            turn.at += 1
            return true
          }
          return false
        })
      }
      return quotas
    },

    /** A claimed job waits for its turn. */
    add(job: Job, leaseEnd: number): void {
      wait(enter(job, leaseEnd, 'waiting'))
    },

    /**
     * Reserves a place, until `fill` or `leave`, for a job that is being queued under a lease of this process, if it
     * may be sent now and its webhook and tenant may have one more.
     */
    reserve(job: Job, leaseEnd: number): Place | undefined {
      return heldUntil(job) <= clock.now() && hasRoom(job) ? enter(job, leaseEnd, 'reserved') : undefined
    },

    /** Whether the job got a place. */
    hasRoom,

    /**
     * Adds a queued job whose place was reserved; it waits for its turn.
     *
     * @returns until when its webhook receives nothing, if it has become held meanwhile
     */
    fill(place: Place): number {
      reserved.delete(place)
      places.add(place)
      place.state = 'waiting'
      wait(place)
      return heldUntil(place.job)
    },

    /** Adds a job that has a place elsewhere and so does not wait, such as a ping. */
    startNow: (job: Job, leaseEnd: number): Place => enter(job, leaseEnd, 'ping'),

    /** Takes the next job to send, tenants in turn, if there is a free place and a job that may have it. */
    next(): Place | undefined {
      for (let place = nextWaiting(); place; place = nextWaiting()) {
        // The process was frozen past the lease: another process may have the delivery now.
        if (place.leaseEnd > clock.now()) return begin(place)
        remove(place)
      }
      return undefined
    },

    /** Notes that the attempt has ended. The job keeps its place in memory until it is recorded. */
    ended(place: Place, settlement?: Settlement): void {
      const { lane, state } = place
      if (settlement) {
        history.judge(lane.webhookId, settlement)
        if (settlement.result.kind === 'response') lane.answeredAt = performance.now()
      }
      if (state === 'ping') return
      if (state === 'aside') {
        lane.setAside.delete(place)
        add(place, 'aside', -1)
        add(place, 'memory', 1)
      } else {
        sending.delete(place)
        add(place, 'sending', -1)
      }
      place.state = 'ended'
    },

    /** Removes a job that was recorded or given up, or was not queued after all. */
    leave: remove,

    /**
     * Sends nothing to the webhook of this place, in its epoch, until then. Returns its waiting jobs, which have to be
     * given back.
     */
    holdWebhook({ lane, job: { epoch } }: Place, until: number): Place[] {
      if (epoch > lane.held.epoch) lane.held = { epoch, until }
      else if (epoch === lane.held.epoch) lane.held.until = Math.max(lane.held.until, until)
      return takeOut(lane, place => place.job.epoch === epoch)
    },

    /** Removes and returns its waiting jobs, which have to be given back. */
    withdraw(given: Place[]): Place[] {
      const wanted = new Set(given)
      return [...Map.groupBy(given, ({ lane }) => lane).keys()].flatMap(lane =>
        takeOut(lane, place => wanted.has(place)),
      )
    },

    /** Removes and returns all waiting jobs, which have to be given back. */
    withdrawWaiting: (): Place[] => [...waitingTenants].flatMap(({ waiting }) => [...waiting].flatMap(withdraw)),

    /** Drops waiting jobs whose lease has run out, before the same deliveries are claimed again. */
    dropExpired(now: number): void {
      for (const lane of [...waitingTenants].flatMap(({ waiting }) => [...waiting])) {
        for (const place of takeOut(lane, place => place.leaseEnd <= now)) remove(place)
      }
    },
  }
}
