import { Costs } from './costs.ts'
import type { Job, Reader } from './jobs.ts'
import { isLightOne, type Share } from './shares.ts'
import type { Tenants } from './tenants.ts'

/**
 * A query that has occupied its reader for so long is heavy; one of a light token may be slow as the machine is. While
 * others wait for a place, it is sooner: a crowd whose queries were all small until now would have every place.
 */
const LONG_MS = { unknown: 250, known: 500, awaited: 100 }
/** The first queries of a reader take longer: its code is not compiled yet. */
const NEW_UNTIL = 4

/** Who is light and who is heavy, by what the queries of each token and tenant have cost lately. */
export class Standing {
  readonly #tenants: Tenants
  readonly #costs: Costs
  readonly #costsOfTenants: Costs

  constructor(tenants: Tenants, now: () => number) {
    this.#tenants = tenants
    this.#costs = new Costs(now)
    this.#costsOfTenants = new Costs(now)
  }

  /** `reader`: where it runs, if it does. What has taken long there is not light any more. */
  shareOf(job: Job, reader?: Reader): Share {
    const { tokenId, isMatching } = job
    const party = this.partyOf(job)
    const isSuspect = job.ended > 0
    const isHeavy = job.isHeavy || isSuspect || this.#costs.isHeavy(tokenId)
    const hasTakenLong = reader !== undefined && this.#costs.isHeavy(tokenId, reader.costOf(job))
    const isKnown = this.#isKnown(job) && !job.isLarge && !hasTakenLong
    return { party, isKnown, isHeavy, isMatching, isSuspect }
  }

  partyOf({ tenantId, tokenId }: Job): string {
    return this.#tenants.areSeveral ? tenantId : tokenId
  }

  /** Beside other tenants, a token is not light that has asked little itself where others of its tenant ask much. */
  #isKnown({ tokenId, tenantId }: Job): boolean {
    const isOfHeavy = this.#tenants.areSeveral && this.#costsOfTenants.isHeavy(tenantId)
    return this.#costs.isKnown(tokenId) && !isOfHeavy
  }

  /** Whether some in a reader are not light. */
  isMixed(reader: Reader): boolean {
    return [...reader.running.values()].some(job => !isLightOne(this.shareOf(job, reader)))
  }

  /** Whether a query that runs has become heavy. `isAwaited`: others wait for a place. */
  isLong(job: Job, reader: Reader, isAwaited: boolean): boolean {
    const occupiedMs = reader.costOf(job)
    const longMs = isAwaited ? LONG_MS.awaited : this.#isKnown(job) ? LONG_MS.known : LONG_MS.unknown
    return occupiedMs > longMs && this.#costs.isHeavy(job.tokenId, occupiedMs)
  }

  expectedMs({ tokenId }: Job): number {
    return this.#costs.expectedMs(tokenId)
  }

  /** A query leaves its reader. `tookMs`: of one that was answered. */
  noteEnd(job: Job, reader: Reader, tookMs: number | undefined): void {
    const { isHeavy } = job
    if (tookMs === undefined && (!isHeavy || job.waitsToMatch)) return
    const [isNew, isMixed] = [reader.begun <= NEW_UNTIL, this.isMixed(reader)]
    const end = { tookMs, shareMs: reader.costOf(job), isHeavy, isNew, isMixed }
    this.#costs.noteEnd(job.tokenId, end)
    this.#costsOfTenants.noteEnd(job.tenantId, end)
  }
}
