import { requireClock, requireGiven } from './given.ts'

/**
 * What a claim came to: it is the caller's to handle, and `owner` proves it; another one is handling it now; or it was
 * handled before, and `receipt` is what was recorded then.
 */
export type Claim =
  | { status: 'claimed'; owner: string }
  | { status: 'in_progress' }
  | { status: 'handled'; receipt: string }

/**
 * Remembers which deliveries have been handled, by a key: the `jti`, or the event's id with `dedupe: 'event'`. Several
 * processes that receive for one endpoint share one store. When `claim` rejects, the delivery is answered 503 and comes
 * again. `replayStoreCases` of `@tidings/receiver/testing` is what every store must pass.
 */
export interface ReplayStore {
  /**
   * Takes the key for handling, unless it is taken or handled; atomically. A claim lapses by itself after `seconds`,
   * and every claim has an owner of its own.
   */
  claim(key: string, seconds: number): Claim | Promise<Claim>
  /**
   * The event was handled: for `seconds` from now, every claim answers `handled` with `receipt`, a text of up to 200
   * printable ASCII characters. False, and nothing is changed, where somebody else has the key by now; a claim that has
   * lapsed and that nobody took since is still its owner's to record.
   */
  record(key: string, owner: string, receipt: string, seconds: number): boolean | Promise<boolean>
  /**
   * The event was not handled: it may be claimed again. False,
   * and nothing is changed, where the claim is not the owner's.
   */
  release(key: string, owner: string): boolean | Promise<boolean>
}

/**
 * A store in this process's memory, forgotten when it ends. Only events whose tokens were valid get into it, so
 * untrusted senders cannot fill it.
 *
 * @param options.maxEntries handled events that are remembered at most (about 250 bytes each); the oldest give way
 * @param options.now the time in epoch milliseconds
 * @throws TypeError when one of them is wrong
 */
export const memoryReplayStore = ({
  maxEntries = 100_000,
  now = Date.now,
}: {
  maxEntries?: number
  now?: () => number
} = {}): ReplayStore => {
  const isCount = Number.isSafeInteger(maxEntries) && maxEntries > 0
  requireGiven(isCount, 'maxEntries', maxEntries, 'a whole number above 0')
  requireClock(now)
  // Each has the oldest first. `untilMs` is epoch milliseconds.
  const claims = new Map<string, { owner: string; untilMs: number }>()
  const handled = new Map<string, { receipt: string; untilMs: number }>()

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
      const owner = crypto.randomUUID()
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
      handled.set(key, { receipt, untilMs: now() + seconds * 1000 })
      forgetOldest(handled, maxEntries)
      return true
    },
    release(key, owner) {
      if (inForce(claims, key)?.owner !== owner) return false
      return claims.delete(key)
    },
  }
}
