import assert from 'node:assert/strict'
import { afterEach, beforeEach, describe, it, mock } from 'node:test'
import { atBeat, BEAT_MS, eachBeat, rest } from '../server/beat.ts'

describe('a beat', () => {
  let nowMs = 0
  let called: [name: string, at: number][] = []
  const note = (name: string) => () => void called.push([name, nowMs])
  /** The times at which the process wakes. */
  let woken: number[] = []

  beforeEach(() => {
    mock.timers.enable({ apis: ['setTimeout'] })
    mock.method(performance, 'now', () => nowMs)
    const { setTimeout } = globalThis
    mock.method(globalThis, 'setTimeout', (work: () => void, ms: number) =>
      setTimeout(() => {
        woken.push(nowMs)
        work()
      }, ms),
    )
    nowMs = 1_000_000
    called = []
    woken = []
  })
  afterEach(() => {
    mock.restoreAll()
    mock.timers.reset()
  })

  const pass = (ms: number): void => {
    for (const until = nowMs + ms; nowMs < until; ) {
      nowMs += 1
      mock.timers.tick(1)
    }
  }

  it('wakes the process once for all that is due in that second, whenever it was asked for', () => {
    const stops = [eachBeat(BEAT_MS, note('each')), eachBeat(2 * BEAT_MS, note('each second one'))]
    for (const name of ['a', 'b', 'c']) {
      pass(100)
      atBeat(BEAT_MS, note(name))
    }
    pass(2 * BEAT_MS - 300)
    for (const stop of stops) stop()
    pass(5 * BEAT_MS)
    assert.deepEqual(woken, [1_001_000, 1_002_000])
    const at = (time: number) => called.flatMap(([name, at]) => (at === time ? [name] : []))
    assert.deepEqual(
      [at(1_001_000), at(1_002_000)].map(names => names.toSorted()),
      [
        ['a', 'b', 'c', 'each'],
        ['each', 'each second one'],
      ],
    )
    assert.equal(called.length, 6)
  })

  it('comes before the time is over, except where that is the one that has just been', () => {
    pass(300)
    atBeat(2_500, note('later'))
    atBeat(100, note('at once'))
    pass(689)
    // A timer may fire a little early.
    atBeat(BEAT_MS, note('the next one'))
    pass(3 * BEAT_MS)
    assert.deepEqual(called, [
      ['at once', 1_001_000],
      ['later', 1_002_000],
      ['the next one', 1_002_000],
    ])
  })

  it('does not come once it is cancelled, or the signal of a rest was given', async () => {
    const stopping = new AbortController()
    const cancel = atBeat(BEAT_MS, note('cancelled'))
    const rested = rest(60_000, stopping.signal)
    cancel()
    stopping.abort()
    await rested
    await rest(60_000, stopping.signal)
    pass(70_000)
    assert.deepEqual([called, woken], [[], []])
  })

  it('ends a rest, even if the process stood still over it', async () => {
    const rested = rest(2 * BEAT_MS, new AbortController().signal)
    nowMs += 60_000
    mock.timers.tick(60_000)
    await rested
    assert.deepEqual(woken, [1_060_000])
  })
})
