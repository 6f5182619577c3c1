import { requireClock, requireGiven, requireOptions } from './given.ts'

/**
 * The result of a claim: the caller may handle the delivery and proves it by `owner`; another caller is handling it; or
 * it was handled before, with the `receipt` that was recorded then.
 */
export type Claim =
  | { status: 'claimed'; owner: string }
  | { status: 'in_progress' }
  | { status: 'handled'; receipt: string }

/**
 * Remembers which deliveries have been handled, by a key: the `jti`, or with `dedupe: 'event'` the event's id.
 * Processes that serve one endpoint share one store. If `claim` rejects, the delivery is answered 503 and comes again.
 * Every store must pass `replayStoreCases` of `@tidings/receiver/testing`.
 */
export interface ReplayStore {
  /**
   * Claims the key, atomically, unless it is claimed or handled. A claim lapses after `seconds`, and every claim has an
   * owner of its own.
   */
  claim(key: string, seconds: number): Claim | Promise<Claim>
  /**
   * Records that the event was handled: for `seconds` from now every claim answers `handled` with `receipt`, a text of
   * up to 200 printable ASCII characters. Returns false and changes nothing if another owner has the key by now. The
   * owner of a lapsed claim may still record if no other caller has claimed the key since.
   */
  record(key: string, owner: string, receipt: string, seconds: number): boolean | Promise<boolean>
  /**
   * Releases a claim whose event was not handled, so that it may be claimed again. Returns false and changes nothing if
   * the claim is not the owner's.
   */
  release(key: string, owner: string): boolean | Promise<boolean>
}

/** To V8, a text that was put together, is a tree of its pieces, four times as large. */
const inOnePiece = (text: string): string => JSON.parse(JSON.stringify(text))

/**
 * A store in the process's memory, lost when the process ends. Only events with valid tokens get into it, so untrusted
 * senders cannot fill it.
 *
 * @param options.maxEntries the most handled events to remember (about 300 bytes each); the oldest give way
 * @param options.now the current time in epoch milliseconds
 * @throws TypeError when an option is wrong
 * @example
 *   const replayStore = memoryReplayStore({ maxEntries: 10_000 })
 */
export const memoryReplayStore = (options: { maxEntries?: number; now?: () => number } = {}): ReplayStore => {
  requireOptions(options, ['maxEntries', 'now'])
  const { maxEntries = 100_000, now = Date.now } = options
  const isCount = Number.isSafeInteger(maxEntries) && maxEntries > 0
  requireGiven(isCount, 'maxEntries', maxEntries, 'a whole number above 0')
  requireClock(now)
  // Both maps are ordered from the oldest. `untilMs` is in epoch milliseconds.
  const claims = new Map<string, { owner: string; untilMs: number }>()
  const handled = new Map<string, { receipt: string; untilMs: number }>()

  /** How many claims there were: of one store, no two have the same owner. */
  let owners = 0

  const inForce = <Entry extends { untilMs: number }>(entries: Map<string, Entry>, key: string): Entry | undefined => {
    const entry = entries.get(key)
    return entry && entry.untilMs > now() ? entry : undefined
  }

  const forgetOldest = (entries: Map<string, { untilMs: number }>, most: number): void => {
    for (const [key, { untilMs }] of entries) {
      if (entries.size <= most && untilMs > now()) return
      entries.delete(key)
    }
  }

  return {
    claim(key, seconds) {
      const before = inForce(handled, key)
      if (before) return { status: 'handled', receipt: before.receipt }
      if (inForce(claims, key)) return { status: 'in_progress' }
      forgetOldest(claims, Number.POSITIVE_INFINITY)
      const owner = `${++owners}`
      claims.delete(key)
      claims.set(key, { owner, untilMs: now() + seconds * 1000 })
      return { status: 'claimed', owner }
    },
    record(key, owner, receipt, seconds) {
      if (inForce(handled, key)) return false
      const claim = inForce(claims, key)
      if (claim && claim.owner !== owner) return false
      claims.delete(key)
      handled.delete(key)
      handled.set(inOnePiece(key), { receipt: inOnePiece(receipt), untilMs: now() + seconds * 1000 })
      forgetOldest(handled, maxEntries)
      return true
    },
    release(key, owner) {
      if (inForce(claims, key)?.owner !== owner) return false
      return claims.delete(key)
    },
  }
}
