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

  /** A query begins. `waiting`: the keys that wait, this one among them. */
  begin(key: string, expectedMs: number, waiting: Iterable<string>): void {
    this.#leastMs = Math.min(...Array.from(waiting, id => this.hadMs(id)))
    this.#give(key, expectedMs)
  }

  /** It has ended, and took another time. */
  end(key: string, expectedMs: number, tookMs: number): void {
    this.#give(key, tookMs - expectedMs)
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

  /** Negative if `a` comes before `b`. */
  order(a: Asker, b: Asker): number {
    const ofTenants = this.#ofTenants.hadMs(a.tenantId) - this.#ofTenants.hadMs(b.tenantId)
    return ofTenants || this.#ofTokens.hadMs(a.tokenId) - this.#ofTokens.hadMs(b.tokenId)
  }

  /** `waiting`: who waits, this one among them. */
  begin({ tenantId, tokenId }: Asker, expectedMs: number, waiting: readonly Asker[]): void {
    this.#ofTenants.begin(
      tenantId,
      expectedMs,
      waiting.map(each => each.tenantId),
    )
    this.#ofTokens.begin(
      tokenId,
      expectedMs,
      waiting.map(each => each.tokenId),
    )
  }

  end({ tenantId, tokenId }: Asker, expectedMs: number, tookMs: number): void {
    this.#ofTenants.end(tenantId, expectedMs, tookMs)
    this.#ofTokens.end(tokenId, expectedMs, tookMs)
  }
}
