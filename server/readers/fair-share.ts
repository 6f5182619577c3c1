const MOST_KEYS = 10_000
/** How far one may be before the one that has had the least: what it asked before the others came is forgotten. */
const MOST_AHEAD_MS = 50

/**
 * Start-time fair queueing (Goyal, Vin and Cheng, 1996): of those that wait, the one that has had the least time
 * comes first, so that one that asks little does not wait for all the queries of those that ask much. Who has asked
 * nothing for a while begins where those are that wait: nobody saves time for later.
 */
export class FairShare {
  /** Milliseconds that the one had that has had the least of those that wait. */
  #leastMs = 0
  /** Milliseconds that each has had; the least recently served first. */
  readonly #hadMs = new Map<string, number>()

  hadMs(key: string): number {
    return Math.max(this.#leastMs, this.#hadMs.get(key) ?? 0)
  }

  /**
   * A query begins. `waiting`: the keys that wait, this one among them. Returns what is to be called when it has ended,
   * with the time that it took: the key has had that, in place of what was expected and of no more than was counted.
   */
  begin(key: string, expectedMs: number, waiting: Iterable<string>): (tookMs: number) => void {
    this.#leastMs = Math.min(...Array.from(waiting, id => this.hadMs(id)))
    const beforeMs = this.hadMs(key)
    this.#give(key, expectedMs)
    const givenMs = this.hadMs(key) - beforeMs
    return tookMs => this.#give(key, tookMs - givenMs)
  }

  #give(key: string, ms: number): void {
    const hadMs = Math.min(this.hadMs(key) + ms, this.#leastMs + MOST_AHEAD_MS)
    this.#hadMs.delete(key)
    this.#hadMs.set(key, hadMs)
    const [oldest] = this.#hadMs.keys()
    if (this.#hadMs.size > MOST_KEYS) this.#hadMs.delete(oldest!)
  }
}

/** Whose query it is. */
type Asker = { tenantId: string; tokenId: string }

/** Whose turn it is: the tenants have their shares, and within one its tokens. */
export class FairTurns {
  readonly #ofTenants = new FairShare()
  readonly #ofTokens = new FairShare()

  /** What each had, the tenant and its token: the least comes first. */
  rankOf({ tenantId, tokenId }: Asker): [number, number] {
    return [this.#ofTenants.hadMs(tenantId), this.#ofTokens.hadMs(tokenId)]
  }

  /** As `FairShare.begin`. `waiting`: who waits, this one among them. */
  begin({ tenantId, tokenId }: Asker, expectedMs: number, waiting: readonly Asker[]): (tookMs: number) => void {
    const tenants = waiting.map(each => each.tenantId)
    const tokens = waiting.map(each => each.tokenId)
    const ends = [
      this.#ofTenants.begin(tenantId, expectedMs, tenants),
      this.#ofTokens.begin(tokenId, expectedMs, tokens),
    ]
    return tookMs => {
      for (const end of ends) end(tookMs)
    }
  }
}
