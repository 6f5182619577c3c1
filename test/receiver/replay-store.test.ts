import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import v8 from 'node:v8'
import vm from 'node:vm'
import { memoryReplayStore, type ReplayStore } from '../../receiver/index.ts'
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

describe('the requirement that a record lapses after its time', () => {
  const meetsIt = async (record: (store: ReplayStore) => ReplayStore['record']): Promise<void> => {
    const store = memoryReplayStore()
    const cases = replayStoreCases(() => ({ ...store, record: record(store) }))
    await cases.find(({ name }) => name === 'a record lapses after its time')!.run()
  }

  test('is met by a store that takes longer than the shortest of them', () =>
    meetsIt(store => async (key, owner, receipt, seconds) => {
      const isRecorded = await store.record(key, owner, receipt, seconds)
      await wait(350)
      return isRecorded
    }))

  test('is not met by a store that drops parts of a second', () =>
    assert.rejects(
      meetsIt(store => (key, owner, receipt, seconds) => store.record(key, owner, receipt, Math.floor(seconds))),
      /Expected "handled"/,
    ))

  test('is not met by a store whose records stay', () =>
    assert.rejects(
      meetsIt(store => (key, owner, receipt) => store.record(key, owner, receipt, 60)),
      /was not granted/,
    ))
})
