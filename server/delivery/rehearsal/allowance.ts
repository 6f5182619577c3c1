import { TidingsError } from '../../../shared/errors.ts'

/** The most requests that the rehearsals of a token send in a minute, in each process: some twenty whole ones. */
const REQUESTS_A_MINUTE = 6_000
const MINUTE_MS = 60_000

/** What rehearsals may still send: a scene has many requests, and the endpoint need not be the caller's own. */
export class Allowance {
  readonly #spent = new Map<string, number>()
  #beginsMs = Number.NEGATIVE_INFINITY

  /** Throws RATE_LIMITED, and takes nothing, if there are fewer than so many requests left. */
  take(tokenId: string, requests: number): void {
    const nowMs = performance.now()
    if (nowMs - this.#beginsMs >= MINUTE_MS) {
      this.#spent.clear()
      this.#beginsMs = nowMs
    }
    const spent = this.#spent.get(tokenId) ?? 0
    if (spent + requests > REQUESTS_A_MINUTE) {
      const seconds = Math.ceil((this.#beginsMs + MINUTE_MS - nowMs) / 1000)
      throw new TidingsError(
        'RATE_LIMITED',
        `The rehearsals of this access token have sent ${spent} requests in this minute, of at most ` +
          `${REQUESTS_A_MINUTE}. Nothing was sent. Try again in ${seconds} s.`,
        { limit: REQUESTS_A_MINUTE, retryAfterSeconds: seconds },
      )
    }
    this.#spent.set(tokenId, spent + requests)
  }
}
