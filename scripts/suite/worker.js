// A process that runs test files, one after the other, and tells its parent what becomes of them.
import { flushCompileCache } from 'node:module'
import path from 'node:path'
import { run } from 'node:test'
import { spec } from 'node:test/reporters'
import { cpuS } from './cpu.js'
import { events } from './events.js'

/**
 * What it is told: a test file, whether it is the last one, after which the process ends as soon as nothing keeps it,
 * whether its results are shown, and what of it runs.
 *
 * @typedef {{ file: string, isLast: boolean, isShown: boolean, only: Only }} Order
 * @typedef {{ testNamePatterns?: string[], testSkipPatterns?: string[] }} Only
 *
 * What it tells: each event, and the end with the processor seconds of the file, 0 where the system does not tell.
 *
 * @typedef {{ is: 'ended', cpuS: number, residentMB: number }} End
 * @typedef {import('./events.js').TestEvent | End} Told
 */

// What is tested must not take this process for one that Tidings itself has started.
const send = /** @type {NonNullable<typeof process.send>} */ (process.send).bind(process)
Reflect.deleteProperty(process, 'send')
const tell = (/** @type {Told} */ told) => send(told, () => {})

const env = { ...process.env }
const folder = process.cwd()

process.on('message', async (/** @type {Order} */ { file, isLast, isShown, only }) => {
  // The end of a file is when nothing keeps its process any more.
  process.channel?.unref()
  const before = cpuS()
  // As if it were run by itself.
  process.argv[1] = path.resolve(file)
  const tests = run({ files: [path.resolve(file)], isolation: 'none', ...only })
  if (isShown) tests.compose(new spec()).pipe(process.stdout)
  for await (const event of events(tests)) tell(event)
  for (const name of Object.keys(process.env)) if (!(name in env)) delete process.env[name]
  Object.assign(process.env, env)
  process.chdir(folder)
  process.exitCode = 0
  // Node writes what it has compiled at the end of a process, and this one is killed.
  flushCompileCache()
  if (!isLast) process.channel?.ref()
  tell({ is: 'ended', cpuS: cpuS() - before, residentMB: process.memoryUsage.rss() / 2 ** 20 })
})
