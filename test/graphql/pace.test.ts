import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { after, before, describe, it, mock } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { type GraphQLResolveInfo, type OperationDefinitionNode, parse } from 'graphql'
import { otherWork } from '../../server/event-loop.ts'
import { Budget } from '../../server/graphql/budget.ts'
import { Pace } from '../../server/graphql/pace.ts'
import type { Row } from '../../server/mango/documents.ts'
import { eventually } from '../support/eventually.ts'

// The milliseconds that requests hold the process are counted, not measured.
let nowMs = 0

/** Works for so many milliseconds, as one request, in turns with others; returns its pace. */
const work = (name: string, ms: number, done: (name: string) => void): Pace => {
  const pace = new Pace()
  const run = async () => {
    for (let worked = 0; worked < ms; worked++) {
      nowMs += 1
      await pace.turn()
    }
    pace.end()
    done(name)
  }
  run()
  return pace
}

describe('requests take turns', () => {
  // Other files may share the process.
  let clock: { mock: { restore(): void } }
  before(() => {
    clock = mock.method(performance, 'now', () => nowMs)
  })
  after(() => clock.mock.restore())

  it('a request that has held the process for less passes by those that have held it for longer', async () => {
    const done: string[] = []
    work('large', 120, name => done.push(name))
    work('another', 100, name => done.push(name))
    for (let n = 0; n < 20; n++) await otherWork()
    work('middling', 30, name => done.push(name))
    await otherWork()
    work('small', 10, name => done.push(name))
    await eventually('all to be done', () => done.length === 4, Boolean)
    assert.deepEqual(done, ['small', 'middling', 'another', 'large'])
  })

  it('other work of the process has its turn between those of a request', async () => {
    let isDone = false
    work('large', 60, () => {
      isDone = true
    })
    let turns = 0
    for (; !isDone; turns++) await otherWork()
    assert.ok(turns >= 20, `${turns} turns in 60 ms`)
  })

  it('what is over has no turn any more, and does not keep others from theirs', async () => {
    const done: string[] = []
    const over = work('over', 60, name => done.push(name))
    over.end()
    over.nextTurn().then(() => done.push('again'))
    work('other', 60, name => done.push(name))
    await eventually('the other to be done', () => done.length > 0, Boolean)
    for (let n = 0; n < 100; n++) await otherWork()
    assert.deepEqual(done, ['other'])
  })

  const row = { id: 'row' }
  const rowsOf = (count: number): Row[] => Array.from({ length: count }, () => row)
  /** A list with twenty fields. */
  const info = (() => {
    const [{ selectionSet }] = parse(`{ rows { ${'id '.repeat(20)} } }`).definitions as [OperationDefinitionNode]
    return { fieldNodes: selectionSet.selections, fragments: {} } as unknown as GraphQLResolveInfo
  })()

  it('a long list is answered in turns with other work, and a short one at once', async () => {
    const budget = new Budget()
    const short = rowsOf(10)
    assert.equal(budget.answer(info, short), short)
    let rows = 0
    let turns = 0
    const reading = (async () => {
      for await (const each of budget.answer(info, rowsOf(5_000)) as AsyncIterable<Row>) {
        assert.equal(each, row)
        rows += 1
        nowMs += 0.1
      }
    })()
    for (; rows < 5_000; turns++) await otherWork()
    await reading
    assert.ok(turns >= 100, `${turns} turns in 500 ms`)
  })

  it('lists that come together are answered in turns, however short they are', async () => {
    const budget = new Budget()
    await otherWork()
    budget.answer(info, rowsOf(1))
    nowMs += 5
    const listed = budget.answer(info, rowsOf(1))
    assert.ok(listed instanceof Promise)
    assert.deepEqual(await listed, [row])
  })

  it('what the rows of lists need is loaded once, when all of them are answered', async () => {
    const budget = new Budget()
    let rows = 0
    let loads = 0
    const load = () => {
      assert.equal(rows, 8_000)
      loads += 1
    }
    const read = async () => {
      for await (const _ of budget.answer(info, rowsOf(4_000)) as AsyncIterable<Row>) {
        rows += 1
        nowMs += 0.1
        if (rows === 1) budget.loadTogether(load)
      }
    }
    await Promise.all([read(), read()])
    await eventually('the load', () => loads === 1, Boolean)
  })

  it('a list that nobody reads to its end keeps nothing from being loaded', async () => {
    const budget = new Budget()
    for await (const _ of budget.answer(info, rowsOf(4_000)) as AsyncIterable<Row>) break
    await new Promise<void>(resolve => budget.loadTogether(resolve))
  })

  it('the rest of a list is not answered once its request is over', async () => {
    const budget = new Budget()
    let rows = 0
    const answered = budget.within(async () => {
      for await (const _ of budget.answer(info, rowsOf(5_000)) as AsyncIterable<Row>) {
        rows += 1
        nowMs += 0.1
      }
    })
    await otherWork()
    await otherWork()
    budget.end(new Error('over'))
    await assert.rejects(answered, /over/)
    const before = rows
    for (let n = 0; n < 20; n++) await otherWork()
    assert.ok(before > 0 && before < 1_000, `${before} rows`)
    assert.equal(rows, before)
  })

  it('a search that waits for its turn ends with its request', async () => {
    const budget = new Budget()
    const answered = budget.within(() => new Promise(() => {}))
    const paused = budget.pause()
    budget.end(new Error('over'))
    await assert.rejects(paused, /over/)
    await assert.rejects(answered, /over/)
    await assert.rejects(budget.pause(), /over/)
  })

  it('a request is called large once, as soon as it has spent more than a small one does', () => {
    const spend: Record<string, (budget: Budget, isMore: boolean) => void> = {
      rows: (budget, isMore) => budget.load(rowsOf(isMore ? 501 : 500)),
      characters: (budget, isMore) => budget.load([{ id: 'x'.repeat(isMore ? 500_001 : 500_000) }]),
      values: (budget, isMore) => budget.answer(info, rowsOf(isMore ? 801 : 800)),
      bytes: (budget, isMore) => budget.text(isMore ? 200_001 : 200_000),
      instructions: (budget, isMore) => budget.compile(isMore ? 101 : 100),
      statements(budget, isMore) {
        for (let n = 0; n < (isMore ? 16 : 15); n++) budget.proceed()
      },
    }
    for (const [what, spendSome] of Object.entries(spend)) {
      const times = [false, true].map(isMore => {
        const budget = new Budget()
        let called = 0
        budget.onLarge = () => {
          called += 1
        }
        spendSome(budget, isMore)
        if (isMore) spendSome(budget, isMore)
        return called
      })
      assert.deepEqual(times, [0, 1], what)
    }
    const slow = new Budget()
    slow.onLarge = () => assert.fail('time alone makes a request large')
    slow.match(5_000)
  })

  it('while memory is tight, the largest goes on alone until it is over, and small ones pass by', async () => {
    const file = fileURLToPath(new URL('../support/tight-pace.ts', import.meta.url))
    const { stdout } = await promisify(execFile)(process.execPath, [
      '--max-old-space-size=64',
      '--max-semi-space-size=2',
      '--disable-warning=ExperimentalWarning',
      file,
    ])
    const { loose, tight, afterLargest } = JSON.parse(stdout) as Record<'loose' | 'tight' | 'afterLargest', string[]>
    assert.deepEqual(loose, ['small', 'later', 'largest'])
    assert.deepEqual(tight, ['small', 'largest', 'later'])
    assert.deepEqual(afterLargest, ['largest', 'later'])
  })
})
