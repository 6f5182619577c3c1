import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import v8 from 'node:v8'
import vm from 'node:vm'
import { memoryReplayStore } from '../../receiver/index.ts'
import { replayStoreCases } from '../../receiver/testing/replay-store-cases.ts'
import { testClock } from '../support/clock.ts'

// In a process of its own: it measures the heap.

v8.setFlagsFromString('--expose-gc')
const collect: () => void = vm.runInNewContext('gc')

describe('the store in memory', () => {
  const clock = testClock()
  const store = memoryReplayStore({ now: clock.now })
  for (const { name, run } of replayStoreCases(() => store, { wait: clock.advance })) test(name, run)

  test('forgets the oldest of more handled events than it may hold', async () => {
    const small = memoryReplayStore({ maxEntries: 3 })
    for (const key of ['a', 'b', 'c', 'd']) await small.record(key, 'nobody else', 'r', 1000)
    const claims = await Promise.all(['a', 'b', 'c', 'd'].map(key => small.claim(key, 60)))
    assert.deepEqual(
      claims.map(({ status }) => status),
      ['claimed', 'handled', 'handled', 'handled'],
    )
  })

  test('takes an event that was handled again, long after, for its newest', async () => {
    const time = testClock()
    const small = memoryReplayStore({ maxEntries: 2, now: time.now })
    await small.record('a', 'nobody else', 'r', 1)
    await small.record('b', 'nobody else', 'r', 1000)
    time.advance(2000)
    for (const key of ['a', 'c']) await small.record(key, 'nobody else', 'r', 1000)
    const claims = await Promise.all(['a', 'b', 'c'].map(key => small.claim(key, 60)))
    assert.deepEqual(
      claims.map(({ status }) => status),
      ['handled', 'claimed', 'handled'],
    )
  })

  test('takes at most 300 bytes for an event that was handled, however its id was made', async () => {
    const most = 20_000
    const many = memoryReplayStore({ maxEntries: most, now: clock.now })
    collect()
    const before = process.memoryUsage().heapUsed
    for (let n = 0; n < most; n++) {
      const key = crypto.randomUUID()
      const claim = await many.claim(key, 60)
      assert.ok(claim.status === 'claimed' && (await many.record(key, claim.owner, `1795221601 ${key}`, 1000)))
    }
    collect()
    const bytes = (process.memoryUsage().heapUsed - before) / most
    assert.ok(bytes < 300, `${bytes} bytes`)
    assert.equal((await many.claim('one more', 60)).status, 'claimed')
  })

  test('keeps no claim that has lapsed', async () => {
    const time = testClock()
    const many = memoryReplayStore({ now: time.now })
    for (let n = 0; n < 300_000; n++) await many.claim(`key-${n}`, 60)
    collect()
    const before = process.memoryUsage().heapUsed
    time.advance(60_000)
    await many.claim('one more', 60)
    collect()
    assert.ok(before - process.memoryUsage().heapUsed > 30e6)
  })
})
