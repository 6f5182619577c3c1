import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { runEach } from '../../scripts/suite/schedule.js'
import { eventually } from '../support/eventually.ts'

const files = Array.from({ length: 12 }, (_, number) => `test/${number}.test.ts`)
const times = Object.fromEntries(files.map((file, number): [string, [number, number]] => [file, [number, 1]]))

/** Runs `files`, each until it is told to end. */
const schedule = (busyShare: () => number, { slots = 8 } = {}) => {
  const begun: { file: string; end: () => void }[] = []
  const stopping = new AbortController()
  const work = (file: string) => {
    const { promise, resolve } = Promise.withResolvers<void>()
    begun.push({ file, end: resolve })
    return promise
  }
  const given = { times, cores: 2, slots, busyShare, lookMs: 1, work, stopping: stopping.signal }
  return { begun, stopping, done: runEach(files, given) }
}

describe('the schedule of the tests', () => {
  it('runs one file for each core where the machine is busy, those that take longest first', async () => {
    let looks = 0
    const { begun, done } = schedule(() => {
      looks++
      return 0.9
    })
    await eventually(
      'many looks',
      () => looks,
      count => count > 20,
    )
    assert.deepEqual(
      begun.map(({ file }) => file),
      ['test/11.test.ts', 'test/10.test.ts'],
    )
    begun[0]!.end()
    await eventually(
      'the next',
      () => begun.length,
      count => count === 3,
    )
    for (let next = 0; next < files.length; next++) {
      await eventually(
        'it to begin',
        () => begun[next],
        it => it !== undefined,
      )
      begun[next]!.end()
    }
    await done
    assert.equal(begun.length, files.length)
  })

  it('begins more while the machine has time left, up to the slots', async () => {
    let looks = 0
    const { begun, done, stopping } = schedule(() => {
      looks++
      return 0.1
    })
    await eventually(
      'more looks than slots',
      () => looks,
      count => count > 20,
    )
    assert.equal(begun.length, 8)
    stopping.abort()
    for (const { end } of begun) end()
    await done
    assert.equal(begun.length, 8)
  })
})
