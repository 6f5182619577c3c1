import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Allowance } from '../../server/delivery/rehearsal/allowance.ts'
import { deliveryVectors } from '../../server/delivery/rehearsal/delivery-vectors.ts'
import { scenes } from '../../server/delivery/rehearsal/scenes.ts'

test('a rehearsal sends each delivery vector once, but for those that a connection cannot carry', () => {
  const sent = Object.values(scenes).flatMap(steps => steps.flatMap(({ vector }) => vector?.name ?? []))
  assert.equal(new Set(sent).size, sent.length)
  const missing = deliveryVectors.map(({ name }) => name).filter(name => !sent.includes(name))
  assert.deepEqual(missing, [
    // The first scenes send them.
    'a token as jose makes it',
    // They need a clock that stands still.
    'a token not valid for a minute yet',
    // Its key is not published.
    'a token by a key that shares its kid with one of another kind',
    'a token made by a clock that is a minute ahead',
    'a token in its last second',
    // Servers of HTTP limit headers by themselves.
    'a token of 16 KiB',
    'a token of a length that no token has',
    'a token that has just expired',
    'a token that expired a second ago',
    'a token made in the future',
    'a token made in the future, but valid already',
    'an event of a type that came later',
    'an event with more in its payload',
    'a ping',
  ])
})

test('what a token’s rehearsals send in a minute is limited, and others have their own', () => {
  const allowance = new Allowance()
  allowance.take('one', 5_990)
  assert.throws(() => allowance.take('one', 11), { code: 'RATE_LIMITED', message: /have sent 5990 requests/ })
  allowance.take('one', 10)
  allowance.take('another', 6_000)
})

test('the allowance is whole again after a minute', t => {
  const present = performance.now.bind(performance)
  let aheadMs = 0
  t.mock.method(performance, 'now', () => present() + aheadMs)
  const allowance = new Allowance()
  allowance.take('one', 6_000)
  aheadMs = 61_000
  allowance.take('one', 6_000)
})
