import type { Clock } from '../clock.ts'
import { heldUntilOf } from '../domain/pull-time.ts'
import { createEndpointHistory } from './endpoint-history.ts'
import { type Endpoint, enterState, type Lane, Lanes, type Place, type Pool, type Tenant } from './lanes.ts'
import type { Job, Settlement, Triage } from './queue.ts'
import { mayTake } from './shares.ts'

export type { Place } from './lanes.ts'

/** The target of a claim: the new or recovered deliveries of a webhook in its present epoch. */
export type Claimable = Endpoint & { tenantId: string; recovered: boolean }

/** Places that a claim is about to take. */
type Draft = {
  all: number
  lanes: Map<string, number>
  recovered: Map<string, number>
  tenants: Map<string, number>
  /** Probed endpoints that have a place. */
  probed: number
}

/** What places report. */
type Reports = {
  /** Attempts have been set aside. */
  onRoom: () => void
  /** Waiting jobs may not be sent for long and have to be given back. */
  onStuck: (stuck: Place[]) => void
}

const ASIDE_AFTER_MS = 500
const TICK_MS = 100

/** The places of this process, by the rules of `shares.ts`. */
export class Places {
  readonly #clock: Clock
  readonly #sizes: Record<Pool | 'aside', number>
  readonly #mostProbed: number
  readonly #reports: Reports
  readonly #history = createEndpointHistory()
  readonly #lanes = new Lanes()
  readonly #places = new Set<Place>()
  readonly #reserved = new Set<Place>()
  /** Attempts that have not been set aside, the oldest first. */
  readonly #sending = new Set<Place>()
  #timer: NodeJS.Timeout | undefined

  constructor({
    clock,
    concurrency,
    onRoom = () => {},
    onStuck = () => {},
  }: { clock: Clock; concurrency: number } & Partial<Reports>) {
    this.#clock = clock
    this.#sizes = { memory: 2 * concurrency, sending: concurrency, aside: 4 * concurrency }
    this.#mostProbed = Math.max(1, concurrency / 4)
    this.#reports = { onRoom, onStuck }
  }

  /** How many more jobs there is a place for. */
  get room(): number {
    return Math.max(0, this.#sizes.memory - this.#lanes.all.memory)
  }

  get count(): number {
    return this.#places.size
  }

  /** The number of places reserved for deliveries that are being queued. */
  get reserved(): number {
    return this.#reserved.size
  }

  /** The number of webhooks with jobs here. */
  get webhooks(): number {
    return this.#lanes.size
  }

  get all(): Place[] {
    return [...this.#places]
  }

  /** Decides about due deliveries: those of a held webhook are postponed, those beyond a share are left. */
  triage(due: Job[]): Triage {
    const now = this.#clock.now()
    const draft = this.#newDraft()
    const triage: Triage = { take: [], later: [] }
    for (const job of due) {
      const dueAt = this.#heldUntil(job)
      const claimable = claimableOf(job)
      if (dueAt > now) triage.later.push({ job, dueAt })
      else if (this.#mayTake('memory', claimable, draft)) {
        triage.take.push(job)
        this.#draw(draft, claimable)
      }
    }
    return triage
  }

  /**
   * How many more of each of these may be taken, up to `limit` in total: tenants in turn, then their webhooks, new
   * before recovered; none for those that have reached their share.
   */
  quotas<T extends Claimable>(claimables: T[], limit: number): Map<T, number> {
    const quotas = new Map<T, number>()
    const draft = this.#newDraft()
    const inMemory = (tenantId: string): number => this.#lanes.tenant(tenantId)?.memory ?? 0
    const rings = [...Map.groupBy(claimables, ({ tenantId }) => tenantId)]
      .toSorted(([a], [b]) => inMemory(a) - inMemory(b))
      .map(([, own]) => [...own.filter(({ recovered }) => !recovered), ...own.filter(({ recovered }) => recovered)])
    for (let hungry = rings.map(ring => ({ ring, at: 0 })); hungry.length > 0; ) {
      hungry = hungry.filter(turn => {
        for (; turn.at < turn.ring.length && draft.all < limit; turn.at++) {
          const claimable = turn.ring[turn.at]!
          if (!this.#mayTake('memory', claimable, draft)) continue
          this.#draw(draft, claimable)
          quotas.set(claimable, (quotas.get(claimable) ?? 0) + 1)
          turn.ring.push(claimable)
          turn.at += 1
          return true
        }
        return false
      })
    }
    return quotas
  }

  /** A job waits for its turn, whose claim began at `checkedAt`. */
  add(job: Job, leaseEnd: number, checkedAt: number): void {
    this.#lanes.wait(this.#enter(job, leaseEnd, 'waiting', checkedAt))
  }

  /**
   * Reserves a place, until `fill` or `leave`, for a job that is being queued under a lease of this process, if it may
   * be sent now and its webhook and tenant may have one more.
   */
  reserve(job: Job, leaseEnd: number): Place | undefined {
    const isHeld = this.#heldUntil(job) > this.#clock.now()
    return !isHeld && this.hasRoom(job) ? this.#enter(job, leaseEnd, 'reserved', 0) : undefined
  }

  /** Whether the job would get a place. */
  hasRoom(job: Job): boolean {
    const draft = this.#history.isProbed(job) ? this.#newDraft() : undefined
    return this.#mayTake('memory', claimableOf(job), draft)
  }

  /**
   * Adds a queued job whose place was reserved; it waits for its turn.
   *
   * @param checkedAt when the transaction that queued it had checked it
   * @returns until when its webhook receives nothing, if it has become held meanwhile
   */
  fill(place: Place, checkedAt: number): number {
    enterState(place, 'waiting')
    place.checkedAt = checkedAt
    this.#reserved.delete(place)
    this.#places.add(place)
    this.#lanes.wait(place)
    return this.#heldUntil(place.job)
  }

  /** Adds a job that has a place elsewhere and so does not wait, such as a ping. */
  startNow(job: Job, leaseEnd: number, checkedAt: number): Place {
    return this.#enter(job, leaseEnd, 'ping', checkedAt)
  }

  /** Takes the next job to send, tenants in turn, if there is a free place and a job that may have it. */
  next(isFresh: (place: Place) => boolean = () => true): Place | undefined {
    for (let place = this.#nextWaiting(isFresh); place; place = this.#nextWaiting(isFresh)) {
      // The process was frozen past the lease: another process may have the delivery now.
      if (place.leaseEnd > this.#clock.now()) return this.#begin(place)
      this.leave(place)
    }
    return undefined
  }

  /** Notes that the attempt has ended. The job keeps its place in memory until it is recorded. */
  ended(place: Place, settlement?: Settlement): void {
    const { lane, state } = place
    if (settlement) {
      this.#history.judge(lane, settlement)
      if (settlement.result.kind === 'response') lane.answeredAt = performance.now()
    }
    if (state === 'ping') return
    enterState(place, 'ended')
    this.#lanes.count(place, state === 'aside' ? 'aside' : 'sending', -1)
    if (state === 'aside') this.#lanes.count(place, 'memory', 1)
    lane.setAside.delete(place)
    this.#sending.delete(place)
  }

  /** Removes a job that was recorded or given up, or was not queued after all. */
  leave(place: Place): void {
    if (!this.#places.delete(place) && !this.#reserved.delete(place)) return
    if (place.state !== 'ping') this.#lanes.count(place, 'memory', -1)
    this.#lanes.leave(place.lane)
  }

  /** Sends nothing to the endpoint of this place until then. Returns its waiting jobs, which have to be given back. */
  holdWebhook({ lane }: Place, until: number): Place[] {
    lane.heldUntil = Math.max(lane.heldUntil, until)
    return this.#lanes.takeOut(lane, () => true)
  }

  /** Removes and returns its waiting jobs, which have to be given back. */
  withdraw(given: Place[]): Place[] {
    const wanted = new Set(given)
    const lanes = new Set(given.map(({ lane }) => lane))
    return [...lanes].flatMap(lane => this.#lanes.takeOut(lane, place => wanted.has(place)))
  }

  /** Removes and returns all waiting jobs, which have to be given back. */
  withdrawWaiting(): Place[] {
    return this.#lanes.waiting.flatMap(lane => this.#lanes.takeOut(lane, () => true))
  }

  /** Drops waiting jobs whose lease has run out, before the same deliveries are claimed again. */
  dropExpired(now: number): void {
    for (const lane of this.#lanes.waiting) {
      for (const place of this.#lanes.takeOut(lane, place => place.leaseEnd <= now)) this.leave(place)
    }
  }

  #enter(job: Job, leaseEnd: number, state: 'reserved' | 'waiting' | 'ping', checkedAt: number): Place {
    const place: Place = { job, lane: this.#lanes.enter(job), leaseEnd, state, checkedAt, begunAt: 0 }
    if (state === 'reserved') this.#reserved.add(place)
    else this.#places.add(place)
    if (state !== 'ping') this.#lanes.count(place, 'memory', 1)
    return place
  }

  #nextWaiting(isFresh: (place: Place) => boolean): Place | undefined {
    return this.#lanes.shift(place => isFresh(place) && this.#mayTake('sending', claimableOf(place.job)))
  }

  #begin(place: Place): Place {
    enterState(place, 'sending')
    place.begunAt = performance.now()
    this.#lanes.count(place, 'sending', 1)
    this.#sending.add(place)
    this.#timer ??= setInterval(() => this.#tick(), TICK_MS).unref()
    return place
  }

  #heldUntil(job: Job): number {
    return Math.max(heldUntilOf(job.webhook.held_until), this.#lanes.lane(job)?.heldUntil ?? 0)
  }

  /** Whether one more job fits into `pool`, in addition to the present ones and those of `draft`. */
  #mayTake(pool: Pool, claimable: Claimable, draft?: Draft): boolean {
    const { webhookId, tenantId, recovered } = claimable
    const lane = this.#lanes.lane(claimable)
    const tenant = lane?.tenant ?? this.#lanes.tenant(tenantId)
    const drafted = draft?.lanes.get(webhookId) ?? 0
    const own = (lane ? lane[pool] + lane.aside : 0) + drafted
    const ofRecovered = lane ? lane.recovered[pool] + lane.recovered.aside : 0
    return mayTake({
      free: this.#sizes[pool] - this.#lanes.all[pool] - (draft?.all ?? 0),
      ofTenant: (tenant?.[pool] ?? 0) + (draft?.tenants.get(tenantId) ?? 0),
      own,
      aside: lane?.aside ?? 0,
      hasAnswered: this.#history.hasAnswered(claimable),
      probe: this.#history.isProbed(claimable)
        ? {
            // For `sending`, its only job in memory is the one to be sent.
            others: pool === 'memory' ? own : (lane?.sending ?? 0) + (lane?.aside ?? 0),
            hasRoom: !draft || draft.probed < this.#mostProbed,
          }
        : undefined,
      silent: lane && isSilent(lane) ? this.#silent(pool, claimable, lane, drafted) : undefined,
      recovered: recovered ? ofRecovered + (draft?.recovered.get(webhookId) ?? 0) : undefined,
    })
  }

  #silent(pool: Pool, claimable: Claimable, lane: Lane, drafted: number): { waits: boolean; asideLeft: number } {
    const isWaiting = lane.fresh.length + lane.behind.length + drafted > 0
    // It has as much in memory as it may send at once.
    const waits = pool === 'memory' && (isWaiting || !this.#mayTake('sending', claimable))
    return { waits, asideLeft: this.#asideLeft(lane.tenant) }
  }

  #asideLeft(tenant: Tenant): number {
    return (7 * (this.#sizes.aside - this.#lanes.all.aside) - tenant.aside) / 8
  }

  #newDraft(): Draft {
    let probed = 0
    for (const endpoint of this.#history.probed()) {
      const lane = this.#lanes.lane(endpoint)
      if (lane && lane.memory + lane.aside > 0) probed += 1
    }
    return { all: 0, lanes: new Map(), recovered: new Map(), tenants: new Map(), probed }
  }

  #draw(draft: Draft, claimable: Claimable): void {
    const { webhookId, tenantId, recovered } = claimable
    const more = (map: Map<string, number>, key: string): void => void map.set(key, (map.get(key) ?? 0) + 1)
    draft.all += 1
    more(draft.lanes, webhookId)
    more(draft.tenants, tenantId)
    if (recovered) more(draft.recovered, webhookId)
    if (this.#history.isProbed(claimable)) draft.probed += 1
  }

  /** Sets aside attempts that have had no answer for long, while their tenant has room for that. */
  #tick(): void {
    const began = performance.now() - ASIDE_AFTER_MS
    const before = this.#lanes.all.aside
    for (const place of this.#sending) {
      if (place.begunAt > began) break
      if (this.#asideLeft(place.lane.tenant) > 0) this.#setAside(place)
    }
    if (this.#sending.size === 0) {
      clearInterval(this.#timer)
      this.#timer = undefined
    }
    const stuck = this.#lanes.waiting
      .filter(lane => this.#isStuck(lane))
      .flatMap(lane => this.#lanes.takeOut(lane, () => true))
    if (stuck.length > 0) this.#reports.onStuck(stuck)
    if (this.#lanes.all.aside > before) this.#reports.onRoom()
  }

  #setAside(place: Place): void {
    enterState(place, 'aside')
    this.#sending.delete(place)
    place.lane.setAside.add(place)
    this.#lanes.count(place, 'sending', -1)
    this.#lanes.count(place, 'memory', -1)
    this.#lanes.count(place, 'aside', 1)
  }

  #isStuck(lane: Lane): boolean {
    if (!this.#history.isProbed(lane) && !isSilent(lane)) return false
    return !this.#mayTake('sending', claimableOf((lane.fresh[0] ?? lane.behind[0])!.job))
  }
}

const claimableOf = ({ webhookId, epoch, webhook, recovered }: Job): Claimable => ({
  webhookId,
  epoch,
  tenantId: webhook.access_token_id,
  recovered,
})

/** It has attempts that were set aside, and no answer since they began. */
const isSilent = ({ setAside, answeredAt }: Lane): boolean => {
  const [first] = setAside
  return first !== undefined && answeredAt < first.begunAt
}
