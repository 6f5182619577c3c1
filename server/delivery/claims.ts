import { type Database, isOutage } from '../database/connect.ts'
import type { Claimable, Places } from './concurrency.ts'
import { LEASE_MS, newLease } from './leases.ts'
import { claim, forgetClaim, type Head, headOfEach, newlyDue, tenantsOf } from './queue.ts'
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

export type Claims = {
  /**
   * Whether due rows were skipped because their webhook or tenant has reached its share or is held. Then claims take
   * turns, and a free place is a reason to look.
   */
  readonly isCrowded: boolean
  /** Reports that a due delivery has no place. */
  crowd(): void
  /** Whether older deliveries of a webhook in this epoch are known to be due and unclaimed. */
  isBehind(webhook: { webhookId: string; epoch: number }, now: number): boolean
  /**
   * Claims deliveries that are due at `now` for the free places.
   *
   * @returns milliseconds until there may be more to claim: 0 for now; undefined if the head of the queue decides
   */
  claimDue(now: number): Promise<number | undefined>
  /** Gives back rows that it may have claimed when the connection broke, because no other process knows of them. */
  forgetDoubtful(now: number): Promise<void>
}

/**
 * Claims for the places of this process: the longest due rows first, or webhooks in turn if one has reached its share.
 *
 * @param given.onPast called when it meets rows of past epochs, which have to be swept
 */
export const createClaims = ({
  database,
  places,
  onPast,
  watch,
}: {
  database: Database
  places: Places
  onPast: () => void
  watch?: DeliveryWatch | undefined
}): Claims => {
  let crowded = false
  /** Webhooks that receive nothing now, and until when they are skipped. */
  const passed = new Map<string, number>()
  const tenants = new Map<string, string>()
  /** Leases that may have been written, with their ends. */
  const doubtful = new Map<string, number>()
  const heads = new Map<string, Head & Claimable>()
  let readAgainAt = 0
  let lookedAt = 0

  const claimOldest = async (now: number): Promise<number | undefined> => {
    const limit = Math.min(BATCH, places.room())
    const { found, left, passedOver } = await claimInto(now, limit)
    crowded = left || passedOver.length > 0
    return crowded || found === limit ? 0 : undefined
  }

  /**
   * Claims for tenants and their webhooks in turn. Skips those that have reached their share, are held, or are being
   * swept, so that others do not wait behind their backlog.
   */
  const claimByTurns = async (now: number): Promise<number | undefined> => {
    const isFresh = await readHeads(now)
    const due = presentOf([...heads.values()].filter(head => head.dueAt <= now))
    for (const [key, until] of passed) if (until <= now) passed.delete(key)
    const open = due.filter(head => !passed.has(keyOf(head)))
    const quotas = places.quotas(open, BATCH)
    crowded = quotas.size < due.length
    if (quotas.size > 0) {
      const { found, foundOf } = await claimInto(now, BATCH, quotas)
      for (const [head, quota] of quotas) if ((foundOf.get(lineOf(head)) ?? 0) < quota) heads.delete(lineOf(head))
      return found === 0 && isFresh ? ELSEWHERE_MS : 0
    }
    if (!crowded) return undefined
    let next = NOT_UNTIL_WOKEN
    for (const { dueAt } of heads.values()) if (dueAt > now) next = Math.min(next, dueAt)
    for (const until of passed.values()) next = Math.min(next, until)
    return Math.max(1, next - now)
  }

  /**
   * Reads the heads of all webhooks, or only of those that have fallen due since, so that full reads stay a small part
   * of the work. Returns whether it has read all.
   */
  const readHeads = async (now: number): Promise<boolean> => {
    const startedAt = performance.now()
    const isFresh = startedAt >= readAgainAt
    const read = isFresh ? await headOfEach(database) : await newlyDue(database, lookedAt - LATE_COMMIT_MS, now)
    lookedAt = now
    if (isFresh) {
      heads.clear()
      readAgainAt = performance.now() + READ_PART * (performance.now() - startedAt)
    }
    const strangers = new Set(read.map(head => head.webhookId).filter(id => !tenants.has(id)))
    if (strangers.size > 0) {
      if (tenants.size > MOST_TENANTS) tenants.clear()
      for (const [id, tenantId] of await tenantsOf(database, [...strangers])) tenants.set(id, tenantId)
    }
    for (const head of read) {
      const line = lineOf(head)
      if (!heads.has(line)) heads.set(line, { ...head, tenantId: tenants.get(head.webhookId) ?? '' })
    }
    return isFresh
  }

  const claimInto = async (now: number, limit: number, quotas?: ReadonlyMap<Head, number>) => {
    places.dropExpired(now)
    const given = { lease: newLease(now), now, limit, leaseMs: LEASE_MS, triage: places.triage }
    const startedAt = performance.now()
    const claimed = await claim(database, quotas ? { ...given, quotas } : given).catch(error => {
      if (isOutage(error)) doubtful.set(given.lease, now + LEASE_MS)
      throw error
    })
    watch?.claimed((performance.now() - startedAt) / 1000, claimed.takenOver)
    const foundOf = new Map<string, number>()
    for (const job of claimed.found) foundOf.set(lineOf(job), (foundOf.get(lineOf(job)) ?? 0) + 1)
    for (const job of claimed.taken) places.add(job, now + LEASE_MS)
    if (claimed.hasPast) onPast()
    // A change of the webhook may lift the hold.
    for (const over of claimed.passedOver) passed.set(keyOf(over), Math.min(over.until, now + PASSED_MS))
    return { ...claimed, found: claimed.found.length, foundOf }
  }

  return {
    get isCrowded() {
      return crowded
    },
    crowd() {
      crowded = true
    },
    isBehind(webhook, now) {
      const head = crowded && heads.get(lineOf({ ...webhook, recovered: false }))
      return head ? head.dueAt <= now : false
    },
    async claimDue(now) {
      if (places.room() > 0) return crowded ? claimByTurns(now) : claimOldest(now)
      crowded = true
      return NOT_UNTIL_WOKEN
    },
    async forgetDoubtful(now) {
      for (const [lease, end] of doubtful) {
        if (end > now) await forgetClaim(database, { lease, end, now })
        doubtful.delete(lease)
      }
    },
  }
}
