import type { FailureReason } from '../../shared/vocabulary.ts'
import { parseRetryAfter } from './retry-after.ts'

/**
 * The result of an attempt. `body` is the beginning of the answer as text; `retryAfter` and `challenge` are the headers
 * Retry-After and WWW-Authenticate as received.
 */
export type AttemptResult =
  | { kind: 'response'; statusCode: number; retryAfter?: string; challenge?: string; body: string }
  | { kind: 'failure'; reason: FailureReason; detail: string }

/** The history of a delivery before this attempt. */
export type History = {
  /** Failed attempts; a 429 with Retry-After does not count. */
  failureCount: number
  /** When this delivery was first answered 429 with Retry-After; null if it never was. */
  throttledSinceMs: number | null
}

/** What happens to a delivery and its webhook. */
export type Outcome =
  | { status: 'delivered' }
  /** `handledBefore`: the receiver claims it. This counts only if an earlier attempt left it open (`settle.ts`). */
  | { status: 'rejected'; handledBefore?: true }
  | { status: 'dropped'; reason: 'retries_exhausted' | 'throttled_too_long' }
  /** The webhook becomes inactive, which cancels this delivery and all others that are pending for it. */
  | { status: 'cancelled'; deactivateWebhook: 'throttled_without_retry_after' }
  /** Retried in `retryInMs`. For `holdWebhookMs` the webhook receives nothing at all. */
  | ({ status: 'pending'; retryInMs: number; holdWebhookMs?: number } & History)

const SECOND_MS = 1000
const HOUR_MS = 3600 * SECOND_MS
/** The longest wait for a Retry-After. */
export const LONGEST_THROTTLE_MS = 24 * HOUR_MS
/** The shortest wait for a Retry-After: "0" or a past date must not cause a tight loop. */
export const SHORTEST_THROTTLE_MS = SECOND_MS
/** A delivery that has been answered 429 with Retry-After for this long is dropped at the next one. */
export const LONGEST_THROTTLED_MS = 72 * HOUR_MS

/** The rules of acknowledgement: what an answer means for the delivery. `scheduleMs` has one wait for each retry. */
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
  // 5XX, and statuses that are no answer to a delivery: 1XX, 3XX (redirects are not followed), and numbers that HTTP
  // does not define.
  return failed(given)
}

/**
 * Whether the receiver reports a replay, which means that it has handled the `jti`. This matters for a retry only: the
 * answer to an earlier attempt was lost, came too late, or was a gateway's.
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
