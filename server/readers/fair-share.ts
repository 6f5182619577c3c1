const MOST_KEYS = 10_000
/**
 * How far one may be before the one that has had the least: what it asked before the others came is forgotten. Each of
 * the others may come first until it has had as much, so with many of them it is less, and one waits for this in all.
 */
const MOST_AHEAD_MS = { ofEach: 50, ofAll: 200 }

/**
 * Start-time fair queueing (Goyal, Vin and Cheng, 1996): of those that wait, the one that has had the least time
 * comes first, so that one that asks little does not wait for all the queries of those that ask much. Who has asked
 * nothing for a while begins where those are that wait: nobody saves time for later.
 */
export class FairShare {
  /** Milliseconds that the one had that has had the least of those that wait. */
  #leastMs = 0
  #mostAheadMs = MOST_AHEAD_MS.ofEach
  /** Milliseconds that each has had; the least recently served first. */
  readonly #hadMs = new Map<string, number>()

  hadMs(key: string): number {
    return this.#bounded(this.#hadMs.get(key) ?? 0)
  }

  #bounded(ms: number): number {
    return Math.min(Math.max(this.#leastMs, ms), this.#leastMs + this.#mostAheadMs)
  }

  /**
   * A query begins. `waiting`: the keys that wait, this one among them. Returns what is to be called when it has ended,
   * with the time that it took: the key has had that, in place of what was expected and of no more than was counted.
   */
  begin(key: string, expectedMs: number, waiting: Iterable<string>): (tookMs: number) => void {
    const keys = new Set(waiting)
    this.#leastMs = Math.min(...keys.values().map(id => this.hadMs(id)))
    this.#mostAheadMs = Math.min(MOST_AHEAD_MS.ofEach, MOST_AHEAD_MS.ofAll / Math.max(1, keys.size - 1))
    const beforeMs = this.hadMs(key)
    this.#give(key, expectedMs)
    const givenMs = this.hadMs(key) - beforeMs
    return tookMs => this.#give(key, tookMs - givenMs)
  }

  #give(key: string, ms: number): void {
    const hadMs = this.#bounded(this.hadMs(key) + ms)
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
