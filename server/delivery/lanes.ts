import type { Job } from './queue.ts'

/**
 * `reserved`: for a job that is being queued. `waiting`: for its turn to be sent. `sending`, then `aside` if it has had
 * no answer for long. `ended`: until it is recorded. `ping`: has a place elsewhere.
 */
type PlaceState = 'reserved' | 'waiting' | 'sending' | 'aside' | 'ended' | 'ping'

const NEXT: Record<PlaceState, readonly PlaceState[]> = {
  reserved: ['waiting'],
  waiting: ['sending'],
  sending: ['aside', 'ended'],
  aside: ['ended'],
  ended: [],
  ping: [],
}

/** A claimed job in this process, from its claim to its record. */
export type Place = {
  job: Job
  lane: Lane
  leaseEnd: number
  state: PlaceState
  /** When it was last known that it may be sent, by `performance.now()`, as `begunAt`. */
  checkedAt: number
  begunAt: number
}

/** Throws for a state that cannot follow. */
export const enterState = (place: Place, state: PlaceState): void => {
  if (!NEXT[place.state].includes(state)) throw new Error(`A place that is ${place.state} cannot be ${state}`)
  place.state = state
}

/** The number of jobs in memory (without those set aside), being sent, and set aside. */
export type Counts = { memory: number; sending: number; aside: number }
export type Pool = 'memory' | 'sending'

/** A webhook in an epoch: with a new URL it is another endpoint, which what the old one did says nothing about. */
export type Endpoint = { webhookId: string; epoch: number }

/** An endpoint's places. */
export type Lane = Counts &
  Endpoint & {
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
    /** Until when it receives nothing; needed only until the database knows, and every claim reads it. */
    heldUntil: number
  }

export type Tenant = Counts & {
  id: string
  lanes: Set<Lane>
  /** Lanes with waiting jobs, least recently served first. */
  waiting: Set<Lane>
}

const none = (): Counts => ({ memory: 0, sending: 0, aside: 0 })

/** The endpoints and tenants that have places in this process, how many, and which of their jobs wait. */
export class Lanes {
  /** By webhook. Those of a past epoch are there as long as they have places. */
  readonly #lanes = new Map<string, Lane[]>()
  readonly #tenants = new Map<string, Tenant>()
  readonly #waiting = new Set<Tenant>()
  /** The counts of all together. */
  readonly all = none()

  /** The number of webhooks. */
  get size(): number {
    return this.#lanes.size
  }

  lane({ webhookId, epoch }: Endpoint): Lane | undefined {
    return this.#lanes.get(webhookId)?.find(lane => lane.epoch === epoch)
  }

  tenant(id: string): Tenant | undefined {
    return this.#tenants.get(id)
  }

  /** The lane of a job that gets a place. */
  enter(job: Job): Lane {
    const lane = this.lane(job) ?? this.#laneFor(job)
    lane.all += 1
    return lane
  }

  #laneFor({ webhookId, epoch, webhook }: Job): Lane {
    const tenantId = webhook.access_token_id
    const tenant = this.#tenants.get(tenantId) ?? { id: tenantId, ...none(), lanes: new Set(), waiting: new Set() }
    this.#tenants.set(tenantId, tenant)
    const lane: Lane = {
      webhookId,
      epoch,
      tenant,
      ...none(),
      recovered: none(),
      fresh: [],
      behind: [],
      all: 0,
      setAside: new Set(),
      answeredAt: 0,
      heldUntil: 0,
    }
    this.#lanes.set(webhookId, [...(this.#lanes.get(webhookId) ?? []), lane])
    tenant.lanes.add(lane)
    return lane
  }

  /** A lane without places is forgotten, and so is a tenant without lanes. */
  leave(lane: Lane): void {
    lane.all -= 1
    if (lane.all > 0) return
    const { webhookId, tenant } = lane
    const others = this.#lanes.get(webhookId)!.filter(other => other !== lane)
    if (others.length > 0) this.#lanes.set(webhookId, others)
    else this.#lanes.delete(webhookId)
    tenant.lanes.delete(lane)
    if (tenant.lanes.size === 0) this.#tenants.delete(tenant.id)
  }

  count({ lane, job }: Place, what: keyof Counts, change: 1 | -1): void {
    const counted = [this.all, lane, lane.tenant, ...(job.recovered ? [lane.recovered] : [])]
    for (const counts of counted) counts[what] += change
  }

  /** The lanes whose jobs wait. */
  get waiting(): Lane[] {
    return [...this.#waiting].flatMap(({ waiting }) => [...waiting])
  }

  wait(place: Place): void {
    const { lane, job } = place
    ;(job.recovered ? lane.behind : lane.fresh).push(place)
    this.#queue(lane)
  }

  /** Takes the first waiting job that may be sent: tenants in turn, then their webhooks, new jobs before recovered. */
  shift(maySend: (place: Place) => boolean): Place | undefined {
    for (const tenant of this.#waiting) {
      for (const lane of tenant.waiting) {
        const place = this.#shiftOf(lane, maySend)
        if (place) return place
      }
    }
    return undefined
  }

  #shiftOf(lane: Lane, maySend: (place: Place) => boolean): Place | undefined {
    for (const line of [lane.fresh, lane.behind]) {
      const first = line[0]
      if (!first || !maySend(first)) continue
      line.shift()
      this.#unqueue(lane)
      if (lane.fresh.length + lane.behind.length > 0) this.#queue(lane)
      // Its tenant comes after the others.
      if (this.#waiting.delete(lane.tenant)) this.#waiting.add(lane.tenant)
      return first
    }
    return undefined
  }

  /** Removes and returns waiting jobs of a lane. */
  takeOut(lane: Lane, isMeant: (place: Place) => boolean): Place[] {
    const found = [...lane.fresh, ...lane.behind].filter(isMeant)
    lane.fresh = lane.fresh.filter(place => !isMeant(place))
    lane.behind = lane.behind.filter(place => !isMeant(place))
    if (lane.fresh.length + lane.behind.length === 0) this.#unqueue(lane)
    return found
  }

  #queue(lane: Lane): void {
    lane.tenant.waiting.add(lane)
    this.#waiting.add(lane.tenant)
  }

  #unqueue(lane: Lane): void {
    lane.tenant.waiting.delete(lane)
    if (lane.tenant.waiting.size === 0) this.#waiting.delete(lane.tenant)
  }
}
