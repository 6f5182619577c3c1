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
  assert.deepEqual([time.since(first), time.end(second)], [20, 10])
  now = 35
  assert.deepEqual([time.since(first), time.end(first)], [25, 25])
  now = 1_000
  const third = time.begin()
  now = 1_001
  assert.equal(time.end(third), 1)
})
