import { type Database, isOutage } from '../database/connect.ts'
import { LEASE_MS, newLease } from './leases.ts'
import type { Claimable, Places } from './places.ts'
import { claim, forgetClaim, type Head, headOfEach, type Job, newlyDue, tenantsOf } from './queue.ts'
import type { DeliveryWatch } from './watch.ts'

/** Rows of one claim: enough to share the cost of a commit, few enough to keep it short. */
const BATCH = 256
/** When to look again for due rows that could not be claimed because another process holds them. */
export const ELSEWHERE_MS = 100
const NOT_UNTIL_WOKEN = Number.POSITIVE_INFINITY
/** When to look again at a webhook that is held or swept. */
const PASSED_MS = 1_000
const MOST_TENANTS = 100_000

/** All heads are read again after this many times the duration of the last full read. */
const READ_PART = 8
/** How late a row that falls due may become visible between full reads, since its transaction may be slow. */
const LATE_COMMIT_MS = 500

const lineOf = ({ webhookId, epoch, recovered }: Omit<Head, 'dueAt'>): string =>
  `${webhookId} ${epoch} ${recovered ? 'recovered' : 'new'}`
const keyOf = ({ webhookId, epoch }: { webhookId: string; epoch: number }): string => `${webhookId} ${epoch}`

/** If a webhook has deliveries of several epochs, those of the last one. */
const presentOf = <T extends Head>(heads: T[]): T[] => {
  const last = new Map<string, number>()
  for (const { webhookId, epoch } of heads) last.set(webhookId, Math.max(epoch, last.get(webhookId) ?? 0))
  return heads.filter(({ webhookId, epoch }) => epoch === last.get(webhookId))
}

type Given = {
  database: Database
  places: Places
  onPast: () => void
  watch?: DeliveryWatch | undefined
}

/**
 * Claims for the places of this process: the longest due rows first, or webhooks in turn if one has reached its share.
 *
 * Rejected: one transaction for a settle and the next claim. Of 10,000 deliveries it would save half of 91 commits, and
 * with commits that cost nothing the rate is 0.57 of the bare client's instead of 0.53 (decision 19).
 */
export class Claims {
  readonly #given: Given
  #crowded = false
  /** Webhooks that receive nothing now, and until when they are skipped. */
  readonly #passed = new Map<string, number>()
  readonly #tenants = new Map<string, string>()
  /** Leases that may have been written, with their ends. */
  readonly #doubtful = new Map<string, number>()
  readonly #heads = new Map<string, Head & Claimable>()
  #readAgainAt = 0
  #lookedAt = 0

  /** @param given.onPast called when it meets rows of past epochs, which have to be swept */
  constructor(given: Given) {
    this.#given = given
  }

  /**
   * Whether due rows were skipped because their webhook or tenant has reached its share or is held. Then claims take
   * turns, and a free place is a reason to look.
   */
  get isCrowded(): boolean {
    return this.#crowded
  }

  /** Reports that a due delivery has no place. */
  crowd(): void {
    this.#crowded = true
  }

  /** Whether older deliveries of a webhook in this epoch are known to be due and unclaimed. */
  isBehind(webhook: { webhookId: string; epoch: number }, now: number): boolean {
    const head = this.#crowded && this.#heads.get(lineOf({ ...webhook, recovered: false }))
    return head ? head.dueAt <= now : false
  }

  /**
   * Claims deliveries that are due at `now` for the free places.
   *
   * @returns milliseconds until there may be more to claim: 0 for now; undefined if the head of the queue decides
   */
  async claimDue(now: number): Promise<number | undefined> {
    if (this.#given.places.room > 0) return this.#crowded ? this.#claimByTurns(now) : this.#claimOldest(now)
    this.#crowded = true
    return NOT_UNTIL_WOKEN
  }

  /** Gives back rows that it may have claimed when the connection broke, because no other process knows of them. */
  async forgetDoubtful(now: number): Promise<void> {
    for (const [lease, end] of this.#doubtful) {
      if (end > now) await forgetClaim(this.#given.database, { lease, end, now })
      this.#doubtful.delete(lease)
    }
  }

  async #claimOldest(now: number): Promise<number | undefined> {
    const limit = Math.min(BATCH, this.#given.places.room)
    const { found, left, passedOver } = await this.#claimInto(now, limit)
    this.#crowded = left || passedOver.length > 0
    return this.#crowded || found === limit ? 0 : undefined
  }

  /**
   * Claims for tenants and their webhooks in turn. Skips those that have reached their share, are held, or are being
   * swept, so that others do not wait behind their backlog.
   */
  async #claimByTurns(now: number): Promise<number | undefined> {
    const isFresh = await this.#readHeads(now)
    const due = presentOf([...this.#heads.values()].filter(head => head.dueAt <= now))
    for (const [key, until] of this.#passed) if (until <= now) this.#passed.delete(key)
    const open = due.filter(head => !this.#passed.has(keyOf(head)))
    const quotas = this.#given.places.quotas(open, BATCH)
    this.#crowded = quotas.size < due.length
    if (quotas.size > 0) {
      const { found, foundOf } = await this.#claimInto(now, BATCH, quotas)
      for (const [head, quota] of quotas) if ((foundOf.get(lineOf(head)) ?? 0) < quota) this.#heads.delete(lineOf(head))
      return found === 0 && isFresh ? ELSEWHERE_MS : 0
    }
    if (!this.#crowded) return undefined
    let next = NOT_UNTIL_WOKEN
    for (const { dueAt } of this.#heads.values()) if (dueAt > now) next = Math.min(next, dueAt)
    for (const until of this.#passed.values()) next = Math.min(next, until)
    return Math.max(1, next - now)
  }

  /**
   * Reads the heads of all webhooks, or only of those that have fallen due since, so that full reads stay a small part
   * of the work. Returns whether it has read all.
   */
  async #readHeads(now: number): Promise<boolean> {
    const startedAt = performance.now()
    const isFresh = startedAt >= this.#readAgainAt
    const read = isFresh
      ? await headOfEach(this.#given.database)
      : await newlyDue(this.#given.database, this.#lookedAt - LATE_COMMIT_MS, now)
    this.#lookedAt = now
    if (isFresh) {
      this.#heads.clear()
      this.#readAgainAt = performance.now() + READ_PART * (performance.now() - startedAt)
    }
    const strangers = new Set(read.map(head => head.webhookId).filter(id => !this.#tenants.has(id)))
    if (strangers.size > 0) {
      if (this.#tenants.size > MOST_TENANTS) this.#tenants.clear()
      for (const [id, tenantId] of await tenantsOf(this.#given.database, [...strangers]))
        this.#tenants.set(id, tenantId)
    }
    for (const head of read) {
      const line = lineOf(head)
      if (!this.#heads.has(line)) this.#heads.set(line, { ...head, tenantId: this.#tenants.get(head.webhookId) ?? '' })
    }
    return isFresh
  }

  async #claimInto(now: number, limit: number, quotas?: ReadonlyMap<Head, number>) {
    this.#given.places.dropExpired(now)
    const given = {
      lease: newLease(now),
      now,
      limit,
      leaseMs: LEASE_MS,
      triage: (due: Job[]) => this.#given.places.triage(due),
    }
    const startedAt = performance.now()
    const claimed = await claim(this.#given.database, quotas ? { ...given, quotas } : given).catch(error => {
      if (isOutage(error)) this.#doubtful.set(given.lease, now + LEASE_MS)
      throw error
    })
    this.#given.watch?.claimed((performance.now() - startedAt) / 1000, claimed.takenOver)
    const foundOf = new Map<string, number>()
    for (const job of claimed.found) foundOf.set(lineOf(job), (foundOf.get(lineOf(job)) ?? 0) + 1)
    for (const job of claimed.taken) this.#given.places.add(job, now + LEASE_MS, startedAt)
    if (claimed.hasPast) this.#given.onPast()
    // A change of the webhook may lift the hold.
    for (const over of claimed.passedOver) this.#passed.set(keyOf(over), Math.min(over.until, now + PASSED_MS))
    return { ...claimed, found: claimed.found.length, foundOf }
  }
}
