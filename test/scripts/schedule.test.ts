import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { runEach, secondsLeft } from '../../scripts/suite/schedule.js'
import { eventually } from '../support/eventually.ts'

const files = Array.from({ length: 12 }, (_, number) => `test/${number}.test.ts`)

/**
 * Runs `files`, each until it is told to end.
 *
 * @param given.need the cores that each keeps busy
 */
const schedule = (busyShare: () => number, { slots = 8, need = 1 } = {}) => {
  const times = Object.fromEntries(
    files.map((file, number): [string, [number, number]] => [file, [number + 1, need * (number + 1)]]),
  )
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

  it('begins more where they need no more than the cores together, however busy the machine is', async () => {
    const { begun, done, stopping } = schedule(() => 1, { need: 0.4 })
    assert.equal(begun.length, 5)
    begun[0]!.end()
    await eventually(
      'the next',
      () => begun.length,
      count => count === 6,
    )
    stopping.abort()
    for (const { end } of begun) end()
    await done
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

describe('the time that is left', () => {
  const table: Record<string, [number, number]> = { long: [100, 100], one: [10, 10], other: [10, 10] }
  const leftAfter = (elapsedS: number, done: string[], running: [string, number][], waiting: string[]) =>
    secondsLeft(table, { done, running: new Map(running), waiting, elapsedS })

  it('is not told as long as little is done', () => {
    assert.equal(leftAfter(1, [], [['long', 1]], ['one', 'other']), undefined)
  })

  it('counts what has been done of a file that runs', () => {
    assert.equal(leftAfter(70, ['one', 'other'], [['long', 50]], []), 50)
  })

  it('is never none while a file runs that takes longer than before', () => {
    assert.equal(Math.round(leftAfter(230, ['one', 'other'], [['long', 280]], [])!), 10)
  })
})
