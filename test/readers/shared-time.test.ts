import assert from 'node:assert/strict'
import { it } from 'node:test'
import { SharedTime } from '../../server/readers/shared-time.ts'

it('what runs at once shares the time, and what runs alone has all of it', () => {
  let now = 0
  const time = new SharedTime(() => now)
  const first = time.begin()
  now = 10
  const second = time.begin()
  now = 30
  assert.deepEqual([time.since(first), time.since(second)], [20, 10])
  time.end()
  now = 35
  assert.deepEqual([time.since(first), time.since(second)], [25, 15])
  time.end()
  now = 1_000
  assert.equal(time.since(first), 25)
})
