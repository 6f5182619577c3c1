import { setTimeout as wait } from 'node:timers/promises'
import { inspect } from 'node:util'

/** So long that only what never comes about fails, on a machine that has much else to do. */
export const PATIENCE_MS = 60_000

/** What takes long is looked at less often: a look costs processor time, and is a tenth of the wait late at most. */
const LATE_BY = 0.1
const LONGEST_PAUSE_MS = 250

/**
 * Repeats a look until its result is as expected, and returns that. An error counts as unexpected. Throws at the
 * deadline, with what was waited for and what was seen last.
 *
 * @param what completes "waited for", such as "every delivery to be claimed"
 */
export const eventually = async <Seen>(
  what: string,
  look: () => Seen | Promise<Seen>,
  isSo: (seen: Seen) => boolean,
  { timeoutMs = PATIENCE_MS, everyMs = 10 }: { timeoutMs?: number; everyMs?: number } = {},
): Promise<Seen> => {
  const startedAt = performance.now()
  const deadlineMs = startedAt + timeoutMs
  for (;;) {
    let last: unknown
    try {
      const seen = await look()
      if (isSo(seen)) return seen
      last = seen
    } catch (error) {
      last = error
    }
    if (performance.now() > deadlineMs) {
      const told = typeof last === 'string' ? last : inspect(last, { depth: 4 })
      throw new Error(`Waited ${timeoutMs} ms for ${what}. Seen last: ${told}`)
    }
    const pauseMs = Math.min((performance.now() - startedAt) * LATE_BY, LONGEST_PAUSE_MS)
    await wait(Math.max(everyMs, pauseMs))
  }
}
