import assert from 'node:assert/strict'
import { test } from 'node:test'
import { memoryReplayStore } from '../../receiver/index.ts'
import { testClock } from '../support/clock.ts'

test('a jti is claimed once, until it is released', async () => {
  const store = memoryReplayStore()
  assert.equal(await store.claim('a', 60), 'claimed')
  assert.equal(await store.claim('a', 60), 'in_progress')
  assert.equal(await store.claim('b', 60), 'claimed')
  await store.release('a')
  assert.equal(await store.claim('a', 60), 'claimed')
})

test('a jti that was handled stays so for its time, and not longer', async () => {
  const clock = testClock()
  const store = memoryReplayStore({ now: clock.now })
  await store.claim('a', 60)
  await store.record('a', 1000)
  clock.advance(999_999)
  assert.equal(await store.claim('a', 60), 'handled')
  clock.advance(1)
  assert.equal(await store.claim('a', 60), 'claimed')
})

test('a claim lapses when its holder is never heard of again', async () => {
  const clock = testClock()
  const store = memoryReplayStore({ now: clock.now })
  await store.claim('a', 60)
  clock.advance(60_000)
  assert.equal(await store.claim('a', 60), 'claimed')
})

test('of more handled events than it may hold, the oldest are forgotten', async () => {
  const store = memoryReplayStore({ maxEntries: 3 })
  for (const jti of ['a', 'b', 'c', 'd']) await store.record(jti, 1000)
  assert.deepEqual(await Promise.all(['a', 'b', 'c', 'd'].map(jti => store.claim(jti, 60))), [
    'claimed',
    'handled',
    'handled',
    'handled',
  ])
})
