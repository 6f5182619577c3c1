import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Delivery, describeDelivery, describeState } from '../../cli/resources/timeline.ts'

const colours = new Proxy({}, { get: () => String }) as Parameters<typeof describeDelivery>[2]
const at = '2026-11-21T00:40:01.123+00:00'
const attempt = { number: 1, startedAt: at, durationMs: 12, failureDetail: null, response: null, retryAfter: null }
const delivery: Delivery = {
  id: 'd1',
  webhookId: 'w1',
  webhook: { id: 'w1', url: 'https://receiver.example/hooks', status: 'active', statusReason: null },
  eventType: 'token_expired',
  event: { id: 'e1', payload: {} },
  status: 'rejected',
  attemptCount: 2,
  nextAttemptAt: null,
  createdAt: at,
  finishedAt: at,
  attempts: [
    { ...attempt, statusCode: null, failure: 'timeout' },
    { ...attempt, number: 2, statusCode: 401, failure: null },
  ],
}

test('the story of a delivery that was handled before says so, and does not advise to send it again', () => {
  const handled = { ...delivery, handledBefore: true }
  const story = describeDelivery(handled, Date.parse(at), colours)
  assert.match(story, /Handled before, acknowledged late/)
  assert.doesNotMatch(story, /redeliver|verify/)
  assert.equal(describeState(handled, Date.parse(at)), 'handled before')
})

test('the story of a delivery that was rejected says what to do', () => {
  const story = describeDelivery(delivery, Date.parse(at), colours)
  assert.match(story, /401 means that it did not accept the token.*tidings deliveries redeliver d1/)
})

test('the story of a dropped delivery says where it is told when it is sent again, if its webhook heals itself', () => {
  const dropped = { ...delivery, status: 'dropped' as const }
  assert.match(describeDelivery(dropped, Date.parse(at), colours), /is not sent again by itself\..*redeliver d1/)
  const healing = { ...dropped, webhook: { ...delivery.webhook!, recovery: 'automatic' as const } }
  const story = describeDelivery(healing, Date.parse(at), colours)
  assert.match(story, /heals itself: .*tidings why w1 e1/)
  assert.doesNotMatch(story, /redeliver|not sent again/)
  const ping = { ...healing, eventType: 'ping' }
  assert.match(describeDelivery(ping, Date.parse(at), colours), /is not sent again by itself/)
})

test('the story of a delivery that waits for its turn says which one it waits for, and when that is sent next', () => {
  const waiting = { ...delivery, status: 'pending' as const, attemptCount: 0, attempts: [], finishedAt: null }
  const waitsFor = { id: 'd0', attemptCount: 2, nextAttemptAt: '2026-11-21T00:41:00.000+00:00' }
  const story = describeDelivery({ ...waiting, waitsFor }, Date.parse(at), colours)
  assert.match(story, /when its turn comes\. It waits for delivery d0, .*order of its project.*attempt 3, at .*00\)/s)
  assert.match(story, /tidings deliveries show d0/)
  assert.equal(describeState(waiting, Date.parse(at)), 'waits for its turn')
  // Where the caller does not see the other one, or it has ended at this moment.
  assert.match(describeDelivery({ ...waiting, waitsFor: null }, Date.parse(at), colours), /when its turn comes\.\n/)
})
