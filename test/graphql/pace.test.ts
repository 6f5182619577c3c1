import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { after, it, mock } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { otherWork } from '../../server/database/turn.ts'
import { Pace } from '../../server/graphql/pace.ts'
import { eventually } from '../support/eventually.ts'

// The milliseconds that requests hold the process are counted, not measured.
let nowMs = 0
mock.method(performance, 'now', () => nowMs)
after(() => mock.restoreAll())

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
  work('over', 60, name => done.push(name)).end()
  work('other', 60, name => done.push(name))
  await eventually('the other to be done', () => done.length > 0, Boolean)
  for (let n = 0; n < 100; n++) await otherWork()
  assert.deepEqual(done, ['other'])
})

it('while memory is tight, the largest goes on alone until it is over, and small ones pass by', async () => {
  const file = fileURLToPath(new URL('../support/tight-pace.ts', import.meta.url))
  const { stdout } = await promisify(execFile)(process.execPath, [
    '--max-old-space-size=64',
    '--max-semi-space-size=2',
    '--disable-warning=ExperimentalWarning',
    file,
  ])
  const { loose, tight } = JSON.parse(stdout) as Record<'loose' | 'tight', string[]>
  assert.deepEqual(loose, ['small', 'later', 'largest'])
  assert.deepEqual(tight, ['small', 'largest', 'later'])
})
