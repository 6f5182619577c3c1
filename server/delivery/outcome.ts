import type { FailureReason } from '../../shared/vocabulary.ts'
import { parseRetryAfter } from './retry-after.ts'

/**
 * What an attempt yielded. `body` is the beginning of the answer as text; `retryAfter` and `challenge` are the headers
 * Retry-After and WWW-Authenticate as they came.
 */
export type AttemptResult =
  | { kind: 'response'; statusCode: number; retryAfter?: string; challenge?: string; body: string }
  | { kind: 'failure'; reason: FailureReason; detail: string }

/** What a delivery has been through before this attempt. */
export type History = {
  /** Attempts that failed; a 429 with Retry-After is none. */
  failureCount: number
  /** When this delivery was first answered 429 with Retry-After; null if it never was. */
  throttledSinceMs: number | null
}

/** What becomes of a delivery, and of its webhook. */
export type Outcome =
  | { status: 'delivered' }
  /** `handledBefore`: the receiver says so. It is believed if an earlier attempt left that open (`settle.ts`). */
  | { status: 'rejected'; handledBefore?: true }
  | { status: 'dropped'; reason: 'retries_exhausted' | 'throttled_too_long' }
  /** The webhook is set to inactive, which cancels this delivery and all else that is pending for it. */
  | { status: 'cancelled'; deactivateWebhook: 'throttled_without_retry_after' }
  /** Again in `retryInMs`. `holdWebhookMs`: nothing at all is sent to the webhook for so long. */
  | ({ status: 'pending'; retryInMs: number; holdWebhookMs?: number } & History)

const SECOND_MS = 1000
const HOUR_MS = 3600 * SECOND_MS
/** However far ahead a Retry-After lies, the next attempt is at most this far ahead. */
export const LONGEST_THROTTLE_MS = 24 * HOUR_MS
/** However near a Retry-After lies: an endpoint that says "0" or a date gone by must not be asked in a tight loop. */
export const SHORTEST_THROTTLE_MS = SECOND_MS
/** A delivery that has been answered 429 with Retry-After for so long is dropped at the next one. */
export const LONGEST_THROTTLED_MS = 72 * HOUR_MS

/**
 * The rules of acknowledgement: what an answer means for the delivery. `scheduleMs` has one wait for each retry after a
 * failure.
 */
export const outcome = (
  result: AttemptResult,
  given: History & { attempt: number; nowMs: number; scheduleMs: readonly number[] },
): Outcome => {
  if (result.kind === 'failure') return failed(given)
  const { statusCode } = result
  if (statusCode >= 200 && statusCode < 300) return { status: 'delivered' }
  if (statusCode === 429) return throttled(result.retryAfter, given)
  if (statusCode >= 400 && statusCode < 500) {
    return { status: 'rejected', ...(given.attempt > 1 && isReplay(result) && { handledBefore: true }) }
  }
  // 5XX, and what is no answer to a delivery: 1XX, 3XX (redirects are not followed), and numbers that HTTP does not
  // define.
  return failed(given)
}

/**
 * A receiver that knows the `jti` has handled it. That is news only of a retry: the answer to an earlier attempt was
 * lost, came too late, or was a gateway's.
 */
const isReplay = ({ statusCode, challenge }: { statusCode: number; challenge?: string }): boolean =>
  statusCode === 401 && /(^|[\s,])error_description\s*=\s*("replay"|replay)\s*(,|$)/i.test(challenge ?? '')

const failed = (given: History & { scheduleMs: readonly number[] }): Outcome => {
  const retryInMs = given.scheduleMs[given.failureCount]
  if (retryInMs === undefined) return { status: 'dropped', reason: 'retries_exhausted' }
  const { failureCount, throttledSinceMs } = given
  return { status: 'pending', retryInMs, failureCount: failureCount + 1, throttledSinceMs }
}

const throttled = (retryAfter: string | undefined, given: History & { nowMs: number }): Outcome => {
  const { nowMs, failureCount, throttledSinceMs } = given
  const askedMs = retryAfter === undefined ? undefined : parseRetryAfter(retryAfter, nowMs)
  if (askedMs === undefined) return { status: 'cancelled', deactivateWebhook: 'throttled_without_retry_after' }
  if (throttledSinceMs !== null && nowMs - throttledSinceMs >= LONGEST_THROTTLED_MS) {
    return { status: 'dropped', reason: 'throttled_too_long' }
  }
  const waitMs = Math.min(Math.max(askedMs, SHORTEST_THROTTLE_MS), LONGEST_THROTTLE_MS)
  return {
    status: 'pending',
    retryInMs: waitMs,
    holdWebhookMs: waitMs,
    failureCount,
    throttledSinceMs: throttledSinceMs ?? nowMs,
  }
}
