import assert from 'node:assert/strict'
import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { availableParallelism, loadavg } from 'node:os'
import { after, describe, it } from 'node:test'
import { fileURLToPath } from 'node:url'
import { engines } from '../support/databases.ts'
import { isAtFullSize } from '../support/size.ts'
import { namedServers } from '../support/templates.ts'
import type { Order, Report } from './case-worker.ts'
import { cases } from './cases/index.ts'

/** Most cases wait, for a lease or a stall. Beyond the least, one begins at a look that finds few threads running. */
const AT_ONCE = { least: 5, most: 10 }
const LOOK_MS = 2_000
/** Threads of the machine that run or could, in the mean of some looks, for one case more. */
const MOST_RUNNABLE = 3 * availableParallelism()
const LOOKS_OF_MEAN = 5
/** Of cases whose own size takes minutes. */
const SIZES: Record<string, number> = {
  'pending-429': 5_000,
  'history-429': 50_000,
  'healing-killed': 250,
  'healing-frozen': 250,
  'healing-restarted': 250,
  'healing-ordered': 250,
  plans: 20_000,
  races: 1_000,
  'recovery-latency': 8,
  starting: 6,
}

/**
 * What takes longest begins first, so that nothing is waited for alone; those that start many processes at once, one
 * after the other, and after these what measures how late something is.
 */
const LONGEST = [
  ...['interrupted', 'terminated', 'sent-again', 'migrate-killed', 'sent-again-killed', 'raced-webhooks'],
  ...['stop-statements', 'ping-disabled', 'cancelled-delivered', 'start-statements', 'redeliver-purged'],
  ...['migrate-statements', 'url-changed', 'revoke-statements', 'held-elsewhere', 'rotate-statements'],
  ...['healing-frozen', 'reseal-statements', 'healing-killed', 'disabled', 'sight-lost-token', 'sight-lost-project'],
  ...['dark-mutation', 'history-429', 'pending-429', 'recovery-behind'],
]
const placeOf = (name: string): number => (LONGEST.includes(name) ? LONGEST.indexOf(name) : LONGEST.length)

const families = engines.map(name => name.split(' ')[0]!)

const WORKER = fileURLToPath(new URL('case-worker.ts', import.meta.url))
const LIBRARIES = fileURLToPath(new URL('../../bin/libraries.js', import.meta.url))
const idle: ChildProcess[] = []

const startWorker = (): ChildProcess =>
  fork(WORKER, { execArgv: ['--disable-warning=ExperimentalWarning', '--require', LIBRARIES] })

/** Runs a case as `npm run chaos` does. One that changes a whole server gets a server of its own. */
const runCase = async (name: string, engine: string, isOwn = false, size = SIZES[name]) => {
  const worker = idle.pop() ?? startWorker()
  const order: Order = { names: [name], engines: [engine], size, servers: isOwn ? [] : namedServers }
  worker.send(order)
  const heard = new AbortController()
  const ended = once(worker, 'exit', { signal: heard.signal }).then(([code, signal]) => [
    { isGreen: false, said: `It ended: ${signal ?? code}` },
  ])
  const [{ isGreen, said }] = (await Promise.race([once(worker, 'message'), ended])) as [Report]
  ended.catch(() => {})
  heard.abort()
  if (worker.connected) idle.push(worker)
  assert.ok(isGreen, said)
}

const waiting: (() => void)[] = []
let running = 0
let runnable = MOST_RUNNABLE

const beginOne = (most: number): void => {
  if (running >= most || waiting.length === 0) return
  running += 1
  waiting.shift()!()
}

/** Runs it when it is its turn. */
const inTurn = async (work: () => Promise<void>): Promise<void> => {
  const turn = new Promise<void>(begin => waiting.push(begin))
  beginOne(AT_ONCE.least)
  await turn
  try {
    await work()
  } finally {
    running -= 1
    beginOne(AT_ONCE.least)
  }
}

/** Linux tells how many there are now (proc_loadavg(5)), other systems the mean of a minute. */
const countRunnable = (): number => {
  try {
    return Number(/(\d+)\//.exec(readFileSync('/proc/loadavg', 'utf8'))![1])
  } catch {
    return loadavg()[0]!
  }
}

const looking = setInterval(() => {
  runnable += (countRunnable() - runnable) / LOOKS_OF_MEAN
  beginOne(runnable < MOST_RUNNABLE ? AT_ONCE.most : AT_ONCE.least)
}, LOOK_MS)

after(() => {
  clearInterval(looking)
  for (const worker of idle) worker.disconnect()
})

if (isAtFullSize)
  describe('cases', { concurrency: true }, () => {
    for (const { name, says, engines: of, needsOwnServer = false } of cases.toSorted(
      (one, other) => placeOf(one.name) - placeOf(other.name),
    )) {
      for (const engine of families.filter(family => of.some(one => one === family))) {
        it(`${name} (${engine}): ${says}`, () => inTurn(() => runCase(name, engine, needsOwnServer)))
      }
    }
  })
else
  for (const engine of families.filter(family => /^(mysql|mariadb)$/.test(family))) {
    describe(`a process that starts (${engine})`, () => {
      it('is ready although another hangs in a commit of its start', () =>
        runCase('start-statements', engine, false, 1))
    })
  }
