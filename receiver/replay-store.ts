/** What a claim of a `jti` came to: it is the caller's to handle, another one is handling it now, or it was handled before. */
export type Claim = 'claimed' | 'in_progress' | 'handled'

/**
 * Remembers which deliveries have been handled, by `jti`. Several processes that receive for one endpoint share one store. When a
 * method rejects, the delivery is answered 503 and comes again.
 */
export interface ReplayStore {
  /** Takes the `jti` for handling, unless it is taken or handled; atomically. A claim lapses by itself after `seconds`. */
  claim(jti: string, seconds: number): Claim | Promise<Claim>
  /** The event was handled: for `seconds` from now, every claim answers `handled`. */
  record(jti: string, seconds: number): unknown
  /** The event was not handled: it may be claimed again. */
  release(jti: string): unknown
}

/**
 * A store in this process's memory, forgotten when it ends. Only events whose tokens were valid get into it, so untrusted
 * senders cannot fill it.
 *
 * @param options.maxEntries handled events that are remembered at most (about 150 bytes each); the oldest give way
 * @param options.now the time in epoch milliseconds
 */
export const memoryReplayStore = ({
  maxEntries = 100_000,
  now = Date.now,
}: {
  maxEntries?: number
  now?: () => number
} = {}): ReplayStore => {
  /** When each lapses, in epoch milliseconds; `handled` has the oldest first. */
  const claims = new Map<string, number>()
  const handled = new Map<string, number>()

  const isIn = (entries: Map<string, number>, jti: string): boolean => (entries.get(jti) ?? 0) > now()

  const forgetOldest = (): void => {
    for (const [jti, untilMs] of handled) {
      if (handled.size <= maxEntries && untilMs > now()) return
      handled.delete(jti)
    }
  }

  return {
    claim(jti, seconds) {
      if (isIn(handled, jti)) return 'handled'
      if (isIn(claims, jti)) return 'in_progress'
      claims.set(jti, now() + seconds * 1000)
      return 'claimed'
    },
    record(jti, seconds) {
      claims.delete(jti)
      handled.delete(jti)
      handled.set(jti, now() + seconds * 1000)
      forgetOldest()
    },
    release(jti) {
      claims.delete(jti)
    },
  }
}
