import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { type AttemptResult, type Outcome, outcome } from '../../server/delivery/outcome.ts'
import { RETRY_SCHEDULE_MS as scheduleMs } from '../../shared/retry-schedule.ts'
import type { FailureReason } from '../../shared/vocabulary.ts'

const HOUR_MS = 3_600_000
const nowMs = Date.parse('2026-11-21T00:40:00Z')
const fresh: Parameters<typeof outcome>[1] = { attempt: 1, failureCount: 0, throttledSinceMs: null, nowMs, scheduleMs }
const response = (statusCode: number, retryAfter?: string): AttemptResult =>
  retryAfter === undefined
    ? { kind: 'response', statusCode, body: '' }
    : { kind: 'response', statusCode, retryAfter, body: '' }
const retried: Outcome = { status: 'pending', retryInMs: 5000, failureCount: 1, throttledSinceMs: null }

const expected = (statusCode: number): Outcome => {
  if (statusCode === 429) return { status: 'cancelled', deactivateWebhook: 'throttled_without_retry_after' }
  if (statusCode >= 200 && statusCode <= 299) return { status: 'delivered' }
  if (statusCode >= 400 && statusCode <= 499) return { status: 'rejected' }
  return retried
}

describe('what becomes of a delivery', () => {
  for (const hundreds of [1, 2, 3, 4, 5]) {
    it(`that is answered with any of ${hundreds}00 to ${hundreds}99`, () => {
      for (let statusCode = hundreds * 100; statusCode < hundreds * 100 + 100; statusCode++) {
        assert.deepEqual(outcome(response(statusCode), fresh), expected(statusCode), `${statusCode}`)
      }
    })
  }

  it('does not depend on Retry-After, except with 429', () => {
    for (let statusCode = 100; statusCode < 600; statusCode++) {
      if (statusCode === 429) continue
      assert.deepEqual(outcome(response(statusCode, '60'), fresh), expected(statusCode), `${statusCode}`)
    }
  })

  it('that is answered with a number beyond HTTP’s is a retry', () => {
    for (const statusCode of [0, 99, 600, 999]) assert.deepEqual(outcome(response(statusCode), fresh), retried)
  })

  const reasons: Record<FailureReason, true> = {
    connection_refused: true,
    connection_reset: true,
    connect_timeout: true,
    timeout: true,
    unreachable: true,
    dns_error: true,
    tls_error: true,
    address_not_allowed: true,
    malformed_response: true,
    invalid_url: true,
    connection_failed: true,
  }
  for (const reason of Object.keys(reasons) as FailureReason[]) {
    it(`that is not answered, by ${reason}, is a retry`, () => {
      assert.deepEqual(outcome({ kind: 'failure', reason, detail: '' }, fresh), retried)
    })
  }
})

describe('a delivery that is refused with 401', () => {
  const refused = (challenge: string): AttemptResult => ({ kind: 'response', statusCode: 401, challenge, body: '' })
  const replay = 'Bearer error="invalid_token", error_description="replay"'

  for (const challenge of [replay, 'bearer error=invalid_token,error_description=replay']) {
    it(`as a replay (${challenge}) was handled before, if it is a retry`, () => {
      const handled: Outcome = { status: 'rejected', handledBefore: true }
      assert.deepEqual(outcome(refused(challenge), { ...fresh, attempt: 2 }), handled)
      assert.deepEqual(outcome(refused(challenge), fresh), { status: 'rejected' })
    })
  }

  for (const challenge of [
    'Bearer error="invalid_token", error_description="expiry"',
    'Bearer error="invalid_token", error_description="no replay"',
    'Bearer x_error_description="replay"',
    'Bearer error="replay"',
    '',
  ]) {
    it(`with ${JSON.stringify(challenge)} as its reason is rejected, and no more`, () => {
      assert.deepEqual(outcome(refused(challenge), { ...fresh, attempt: 2 }), { status: 'rejected' })
    })
  }

  it('with another status is rejected, and no more', () => {
    const result: AttemptResult = { kind: 'response', statusCode: 403, challenge: replay, body: '' }
    assert.deepEqual(outcome(result, { ...fresh, attempt: 2 }), { status: 'rejected' })
  })
})

describe('a delivery that keeps failing', () => {
  it('is attempted eleven times, after the waits of the specification, and then dropped', () => {
    const waits: number[] = []
    let history = { failureCount: 0, throttledSinceMs: null as number | null }
    for (;;) {
      const next = outcome(response(503), { ...fresh, ...history })
      if (next.status !== 'pending') {
        assert.deepEqual(next, { status: 'dropped', reason: 'retries_exhausted' })
        break
      }
      waits.push(next.retryInMs / 1000)
      history = next
    }
    assert.deepEqual(waits, [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560])
  })

  it('is dropped at once where the schedule has no waits', () => {
    assert.equal(outcome(response(500), { ...fresh, scheduleMs: [] }).status, 'dropped')
  })

  it('can still be delivered by its last retry', () => {
    assert.equal(outcome(response(200), { ...fresh, failureCount: 10 }).status, 'delivered')
  })

  it('does not hold up its webhook', () => {
    assert.equal('holdWebhookMs' in outcome(response(500), fresh), false)
  })
})

describe('a delivery answered with 429', () => {
  const throttled = (retryAfter: string, given: Partial<typeof fresh> = {}) =>
    outcome(response(429, retryAfter), { ...fresh, ...given })

  it('and seconds to wait is sent again then, its webhook waits too, and it is no failure', () => {
    assert.deepEqual(throttled('90', { failureCount: 3 }), {
      status: 'pending',
      retryInMs: 90_000,
      holdWebhookMs: 90_000,
      failureCount: 3,
      throttledSinceMs: nowMs,
    })
  })

  it('and a date is sent again at that date', () => {
    const next = throttled('Sat, 21 Nov 2026 01:00:00 GMT')
    assert.equal(next.status === 'pending' && next.retryInMs, 20 * 60_000)
  })

  it('is sent again after 24 hours, however far ahead Retry-After lies', () => {
    for (const far of ['86401', '9999999999', 'Sat, 21 Nov 2099 01:00:00 GMT']) {
      const next = throttled(far)
      assert.equal(next.status === 'pending' && next.retryInMs, 24 * HOUR_MS)
    }
  })

  it('and no wait, or one gone by, is not sent again in a tight loop', () => {
    for (const near of ['0', '-1', 'Sun, 06 Nov 1994 08:49:37 GMT']) {
      const next = throttled(near)
      assert.equal(next.status === 'pending' && next.retryInMs, 1000)
    }
  })

  it('again and again remembers the first time', () => {
    const since = nowMs - 71 * HOUR_MS
    const next = throttled('60', { throttledSinceMs: since })
    assert.equal(next.status === 'pending' && next.throttledSinceMs, since)
  })

  it('for 72 hours is dropped, and not a moment before', () => {
    assert.equal(throttled('60', { throttledSinceMs: nowMs - 72 * HOUR_MS + 1 }).status, 'pending')
    assert.deepEqual(throttled('60', { throttledSinceMs: nowMs - 72 * HOUR_MS }), {
      status: 'dropped',
      reason: 'throttled_too_long',
    })
  })

  it('does not use up its retries, nor a failure its time', () => {
    const next = outcome(response(500), { ...fresh, throttledSinceMs: nowMs - HOUR_MS })
    assert.deepEqual(next, { ...retried, throttledSinceMs: nowMs - HOUR_MS })
    assert.equal(throttled('60', { failureCount: 10 }).status, 'pending')
  })

  for (const retryAfter of [undefined, '', 'soon']) {
    const given = retryAfter === undefined ? 'no' : JSON.stringify(retryAfter)
    it(`and ${given} Retry-After deactivates its webhook and is not sent again`, () => {
      assert.deepEqual(outcome(response(429, retryAfter), fresh), {
        status: 'cancelled',
        deactivateWebhook: 'throttled_without_retry_after',
      })
    })
  }
})
