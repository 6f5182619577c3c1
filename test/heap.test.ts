import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { test } from 'node:test'
import { promisify } from 'node:util'

const heap = new URL('../server/heap.ts', import.meta.url)
const pace = new URL('support/pace.ts', import.meta.url)

/** Loads for a while, rests, and prints how many megabytes its heap had before and has then. */
const RESTING = `
  import { setTimeout as wait } from 'node:timers/promises'
  import { compactHeapAtRest } from '${heap}'
  import { startAlone } from '${pace}'
  compactHeapAtRest({ firstMs: 100, restMs: 100 })
  const committedMb = () => process.memoryUsage().heapTotal / 2 ** 20
  const until = performance.now() + 500
  let kept = []
  while (performance.now() < until) {
    kept = Array.from({ length: 1_000_000 }, (_, value) => ({ value }))
    await wait(1)
  }
  kept = []
  const loaded = committedMb()
  const aloneMs = startAlone()
  while (committedMb() > loaded / 2 && aloneMs() < 7_000) await wait(50)
  console.log(JSON.stringify({ loaded, rested: committedMb() }))
`

test('a process gives the memory of a load back when it is at rest, sooner than V8 would', async () => {
  const args = ['--disable-warning=ExperimentalWarning', '--input-type=module', '-e', RESTING]
  const { stdout } = await promisify(execFile)(process.execPath, args)
  const { loaded, rested } = JSON.parse(stdout)
  assert.ok(rested < loaded / 2, `${loaded} MB after the load and ${rested} MB at rest`)
})

/** Makes what a start makes and does not need, and prints whether its heap becomes half as large at rest. */
const STARTED = `
  import { setTimeout as wait } from 'node:timers/promises'
  import { compactHeapAtRest } from '${heap}'
  import { startAlone } from '${pace}'
  const committedMb = () => process.memoryUsage().heapTotal / 2 ** 20
  const start = () => Array.from({ length: 1_000_000 }, (_, value) => ({ value })).length
  start()
  await wait(100)
  const loaded = committedMb()
  if (process.argv[1] === 'compact') compactHeapAtRest({ firstMs: 100, restMs: 100 })
  const aloneMs = startAlone()
  while (committedMb() > loaded / 2 && aloneMs() < 1_500) await wait(50)
  console.log(committedMb() < loaded / 2)
`

test('a process gives the memory of its start back soon after it, where nothing has come yet', async () => {
  const isGivenBack = async (...given: string[]) => {
    const args = ['--disable-warning=ExperimentalWarning', '--input-type=module', '-e', STARTED, ...given]
    return JSON.parse((await promisify(execFile)(process.execPath, args)).stdout)
  }
  assert.deepEqual([await isGivenBack(), await isGivenBack('compact')], [false, true])
})

/** Makes garbage of which much survives a collection, and prints how large its space of young objects has become. */
const YOUNG = `
  import { getHeapSpaceStatistics } from 'node:v8'
  import { setTimeout as wait } from 'node:timers/promises'
  import { boundYoungSpace } from '${heap}'
  if (process.argv[1] === 'bound') boundYoungSpace()
  const youngMb = () =>
    getHeapSpaceStatistics().find(({ space_name }) => space_name === 'new_space').space_size / 2 ** 20
  let kept = []
  for (let n = 0; n < 400; n++) {
    for (let made = 0; made < 20_000; made++) kept.push({ made, many: [made] })
    if (n % 100 === 0) kept = []
    await wait()
  }
  console.log(youngMb())
`

test('the young objects of a process have a quarter of the space that V8 would give them', async () => {
  const youngMb = async (...given: string[]) => {
    // V8 derives its own limit from this one, and this one from the machine's memory.
    const heapOfLargeMachine = '--max-old-space-size=4096'
    const args = [
      heapOfLargeMachine,
      '--disable-warning=ExperimentalWarning',
      '--input-type=module',
      '-e',
      YOUNG,
      ...given,
    ]
    return Number((await promisify(execFile)(process.execPath, args)).stdout)
  }
  assert.deepEqual([await youngMb(), await youngMb('bound')], [128, 32])
})

/** Answers requests, and prints how many bytes each has left among the old objects when young ones are collected. */
const ANSWERING = `
  import { once } from 'node:events'
  import { Agent, createServer, get } from 'node:http'
  import { getHeapSpaceStatistics } from 'node:v8'
  import Koa from 'koa'
  import { requestId } from '${new URL('../server/http/request-id.ts', import.meta.url)}'
  const app = new Koa().use(requestId({ log: { info() {} } })).use(ctx => (ctx.body = "x"))
  const server = createServer(app.callback()).listen(0, '127.0.0.1')
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  const ask = () =>
    new Promise(resolve =>
      get({ port: server.address().port, host: '127.0.0.1', agent }, answer => answer.resume().once('end', resolve)),
    )
  const answer = async count => {
    for (let n = 1; n <= count; n++) {
      await ask()
      if (n % 50 === 0) gc({ type: 'minor' })
    }
  }
  await once(server, 'listening')
  const oldBytes = () => getHeapSpaceStatistics().find(({ space_name }) => space_name === 'old_space').space_used_size
  await answer(1000)
  gc()
  const before = oldBytes()
  await answer(1000)
  console.log(Math.round((oldBytes() - before) / 1000))
  process.exit()
`

test('an answered request goes with the young objects, and leaves next to nothing among the old ones', async () => {
  const args = ['--disable-warning=ExperimentalWarning', '--expose-gc', '--input-type=module', '-e', ANSWERING]
  const { stdout } = await promisify(execFile)(process.execPath, args)
  assert.ok(Number(stdout) < 1000, `${stdout.trim()} bytes of each request`)
})

test('this version of V8 can be told not to give memory back in each pause', async () => {
  const { stdout } = await promisify(execFile)(process.execPath, ['--v8-options'])
  assert.match(stdout, /--gc-memory-reducer-start-delay-ms /)
})
