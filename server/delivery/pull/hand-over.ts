import { PULL_TIME, TAKEN_TIME } from '../../domain/pull-time.ts'
import { seesAnyway } from '../../domain/visibility.ts'
import type { Handing } from '../after-commit.ts'
import type { Job } from '../queue.ts'
import { BELIEVED_MS } from './seen.ts'
import { TAKEN_MS, takerJson } from './taken.ts'
import type { Taken, Waiting } from './waiting.ts'

// What this process queues while a client waits here is that client's from the start: the row is inserted as taken by
// it, and the wait ends with the delivery after the commit, without a transaction of its own. If no client waits that
// may have it, the next that comes takes it.

/** The most clients that are tried for a delivery, so that it is not for its transaction to try thousands. */
const MOST_TRIED = 100

export class HandOver {
  readonly #lines: ReadonlyMap<string, ReadonlySet<Waiting>>
  readonly #leave: (one: Waiting) => void
  readonly #giveBack: (taken: Taken) => void
  readonly #onHanded: (webhookId: string) => void
  /** Who has which delivery that is being queued, by its id. */
  readonly #owing = new Map<string, Waiting>()
  /** When tokens were last found valid, by id and `performance.now()`. */
  readonly #valid = new Map<string, number>()

  /**
   * @param given.lines who waits, in the order in which they came, by webhook
   * @param given.leave ends the wait of one that has as much as it can take
   * @param given.giveBack makes due again what nobody has got
   * @param given.onHanded called when clients that wait for a webhook have got deliveries
   */
  constructor(given: {
    lines: ReadonlyMap<string, ReadonlySet<Waiting>>
    leave: (one: Waiting) => void
    giveBack: (taken: Taken) => void
    onHanded: (webhookId: string) => void
  }) {
    this.#lines = given.lines
    this.#leave = given.leave
    this.#giveBack = given.giveBack
    this.#onHanded = given.onHanded
  }

  /** Reports that a token was found valid, in a state that was read after `at`, by `performance.now()`. */
  believe(tokenId: string, at: number): void {
    this.#valid.set(tokenId, Math.max(at, this.#valid.get(tokenId) ?? 0))
  }

  /** Forgets tokens that are believed no longer. */
  forget(): void {
    for (const id of this.#valid.keys()) if (!this.#isBelieved(id)) this.#valid.delete(id)
  }

  #isBelieved(tokenId: string): boolean {
    return performance.now() - (this.#valid.get(tokenId) ?? Number.NEGATIVE_INFINITY) < BELIEVED_MS
  }

  /** Gives a delivery that is being queued to a client that waits here; undefined if none may have it now. */
  reserve(job: Job, now: number): Handing | undefined {
    const { held_until } = job.webhook
    if (held_until !== null && held_until > PULL_TIME + now) return undefined
    const one = (this.#lines.get(job.webhookId) ?? new Set())
      .values()
      .take(MOST_TRIED)
      .find(each => this.#mayHave(each, job))
    if (!one) return undefined
    one.owed += 1
    this.#owing.set(job.deliveryId, one)
    const lease = { id: job.lease, end: TAKEN_TIME + now + TAKEN_MS, taken: takerJson(one, job.epoch) }
    return { job, lease }
  }

  #mayHave(one: Waiting, { webhook }: Job): boolean {
    const hasRoom = one.jobs.length + one.owed < one.limit
    return one.isActive && one.isMarked && hasRoom && this.#isBelieved(one.token.id) && seesAnyway(one.token, webhook)
  }

  /** Hands committed deliveries to the clients that have them, or to another of the same token and address. */
  hand(handings: Handing[]): void {
    this.#giveBackAll(handings.filter(handing => !this.#handOne(handing)))
    for (const id of new Set(handings.map(({ job }) => job.webhookId))) this.#onHanded(id)
  }

  #handOne(handing: Handing): boolean {
    const one = this.#client(this.#owed(handing))
    if (!one) return false
    one.jobs.push(handing.job)
    one.leaseEnd = Math.min(one.leaseEnd, endOfLease(handing))
    if (one.jobs.length >= one.limit) this.#leave(one)
    return true
  }

  #client(own: Waiting): Waiting | undefined {
    const line = this.#lines.get(own.webhookId)
    if (!line || line.has(own)) return line && own
    const isLike = (one: Waiting) => one.token.id === own.token.id && one.address === own.address
    return line.values().find(one => isLike(one) && one.isActive && one.isMarked && one.jobs.length < one.limit)
  }

  #owed({ job }: Handing): Waiting {
    const own = this.#owing.get(job.deliveryId)!
    this.#owing.delete(job.deliveryId)
    own.owed -= 1
    return own
  }

  /** Deliveries were not queued, or it is in doubt whether they are: then they are given back if so. */
  release(handings: Handing[], isInDoubt: boolean): void {
    for (const handing of handings) this.#owed(handing)
    if (isInDoubt) this.#giveBackAll(handings)
  }

  /** Those of one webhook together: an outage puts many in doubt at once. */
  #giveBackAll(handings: Handing[]): void {
    for (const [webhookId, own] of Map.groupBy(handings, ({ job }) => job.webhookId)) {
      this.#giveBack({ webhookId, jobs: own.map(({ job }) => job), leaseEnd: Math.min(...own.map(endOfLease)) })
    }
  }
}

const endOfLease = ({ lease }: Handing): number => lease.end - TAKEN_TIME
