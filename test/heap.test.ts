import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { test } from 'node:test'
import { promisify } from 'node:util'

const heap = new URL('../server/heap.ts', import.meta.url)

/** Loads for a while, rests, and prints how many megabytes its heap had before and has then. */
const RESTING = `
  import { setTimeout as wait } from 'node:timers/promises'
  import { compactHeapAtRest } from '${heap}'
  compactHeapAtRest(100)
  const committedMb = () => process.memoryUsage().heapTotal / 2 ** 20
  const until = performance.now() + 500
  let kept = []
  while (performance.now() < until) {
    kept = Array.from({ length: 1_000_000 }, (_, value) => ({ value }))
    await wait(1)
  }
  kept = []
  const loaded = committedMb()
  const before = performance.now()
  while (committedMb() > loaded / 2 && performance.now() - before < 7_000) await wait(50)
  console.log(JSON.stringify({ loaded, rested: committedMb() }))
`

test('a process gives the memory of a load back when it is at rest, sooner than V8 would', async () => {
  const args = ['--disable-warning=ExperimentalWarning', '--input-type=module', '-e', RESTING]
  const { stdout } = await promisify(execFile)(process.execPath, args)
  const { loaded, rested } = JSON.parse(stdout)
  assert.ok(rested < loaded / 2, `${loaded} MB after the load and ${rested} MB at rest`)
})

test('this version of V8 can be told not to give memory back in each pause', async () => {
  const { stdout } = await promisify(execFile)(process.execPath, ['--v8-options'])
  assert.match(stdout, /--gc-memory-reducer-start-delay-ms /)
})
