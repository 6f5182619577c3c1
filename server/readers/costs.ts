/** A query of a token that was never seen is expected to occupy a reader for this long. */
const UNKNOWN_MS = 25
/** What is expected to occupy a reader for longer is heavy. */
const LIGHT_MS = 120
/** Of a query that took longer, this much is remembered: otherwise one would count against its token for minutes. */
const MOST_MS = 1_000
/** What is remembered counts half after so long: of what to expect of a token, and of what it is known for. */
const HALF_LIFE_MS = { lately: 3_000, known: 30_000 }
/** When a token is forgotten that asks nothing. */
const FORGET_MS = 600_000
const MOST_TOKENS = 10_000
/** What the reader or others may have added to a query counts at most for so much. */
const MOST_ADDED_TO_MS = 25

/**
 * A query that has ended. `tookMs`: what its reader says, if it was answered: its share of the processor's time, and of
 * the waiting for the database. `shareMs`: its share of all of the reader's time, in which others may have had the
 * processor. `isHeavy`: it was found to be heavy. `isNew`: of a reader that has just started. `isMixed`: some in its
 * reader are not light.
 */
export type End = { tookMs: number | undefined; shareMs: number; isHeavy: boolean; isNew: boolean; isMixed: boolean }

type Sums = { ms: number; squares: number }
type Cost = { lately: Sums; known: Sums; at: number }

const NONE: Sums = { ms: 0, squares: 0 }
const UNSEEN: Cost = { lately: NONE, known: NONE, at: Number.NEGATIVE_INFINITY }

/**
 * How long the queries of each token have occupied readers lately: the mean of the durations, each weighted by itself.
 * That is the length of the query that others meet who come at any moment, so that a long one among many short ones
 * counts.
 */
export class Costs {
  /** The least recently used first. */
  readonly #costs = new Map<string, Cost>()
  readonly #now: () => number

  constructor(now: () => number = () => performance.now()) {
    this.#now = now
  }

  /**
   * What a new reader adds to a query does not count against it, nor what runs beside one of a token that is known to
   * be light. Of any other token a query counts with its share: otherwise many of them would vouch for each other.
   */
  noteEnd(tokenId: string, end: End): void {
    this.note(tokenId, this.#countedMs(tokenId, end))
  }

  #countedMs(tokenId: string, { tookMs, shareMs, isHeavy, isNew, isMixed }: End): number {
    const isKnown = this.isKnown(tokenId)
    if (tookMs === undefined) return shareMs
    if (isHeavy) return isKnown ? tookMs : Math.max(tookMs, shareMs)
    if (this.isHeavy(tokenId)) return tookMs
    if (isNew || (isKnown && isMixed)) return Math.min(tookMs, MOST_ADDED_TO_MS)
    return isKnown ? tookMs : Math.min(tookMs, shareMs)
  }

  note(tokenId: string, ms: number): void {
    const noted = Math.min(ms, MOST_MS)
    const plus = (sums: Sums): Sums => ({ ms: sums.ms + noted, squares: sums.squares + noted ** 2 })
    const [lately, known] = [plus(this.#sums(tokenId, 'lately')), plus(this.#sums(tokenId, 'known'))]
    this.#costs.delete(tokenId)
    this.#costs.set(tokenId, { lately, known, at: this.#now() })
    const [oldest] = this.#costs.keys()
    if (this.#costs.size > MOST_TOKENS) this.#costs.delete(oldest!)
  }

  /** How long a query of the token is expected to take, if one has run for `ms` already. */
  expectedMs(tokenId: string, ms = 0): number {
    return mean(this.#sums(tokenId, 'lately'), ms)
  }

  isHeavy(tokenId: string, ms = 0): boolean {
    return this.expectedMs(tokenId, ms) > LIGHT_MS
  }

  /** Whether the token is known to be light: one that was heavy has to be light for some time. */
  isKnown(tokenId: string): boolean {
    const { at } = this.#costs.get(tokenId) ?? UNSEEN
    return this.#now() - at < FORGET_MS && mean(this.#sums(tokenId, 'known'), 0) <= LIGHT_MS
  }

  #sums(tokenId: string, memory: keyof typeof HALF_LIFE_MS): Sums {
    const { at, [memory]: sums } = this.#costs.get(tokenId) ?? UNSEEN
    const left = 0.5 ** ((this.#now() - at) / HALF_LIFE_MS[memory])
    return { ms: sums.ms * left, squares: sums.squares * left }
  }
}

const mean = ({ ms, squares }: Sums, occupiedMs: number): number =>
  (squares + UNKNOWN_MS ** 2 + occupiedMs ** 2) / (ms + UNKNOWN_MS + occupiedMs)
