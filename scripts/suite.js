import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { globSync, mkdtempSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { aftercare } from './aftercare.js'
import { buildPages } from './build-pages.js'
import { startThrowAwayDatabase } from './throw-away-database.js'

const TEST_TIMEOUT_MS = 180_000

const root = fileURLToPath(new URL('..', import.meta.url))
const folder = mkdtempSync(path.join(os.tmpdir(), 'tidings-test-'))
const care = aftercare(folder)
/** Marks the databases of this run, so that those of a killed test can be found. */
const run = randomBytes(4).toString('hex')
const stopping = new AbortController()
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => stopping.abort(signal))

const main = async () => {
  const { urls, isSqliteOnly } = wantedDatabases()
  await buildPages()
  const server =
    isSqliteOnly || urls.length > 0 ? undefined : await startThrowAwayDatabase(undefined, { stopping: stopping.signal })
  try {
    setEnvironment(server ? [server.url] : urls)
    const { dropLeftovers, engines } = await import('../test/support/databases.ts')
    console.error(
      `tidings: Testing on ${engines.join(', ')}${isSqliteOnly ? ' only, as TIDINGS_TEST_ENGINES says' : ''}.`,
    )
    const code = await runTests()
    if (!server) await dropLeftovers()
    return code
  } finally {
    await server?.stop()
  }
}

const wantedDatabases = () => {
  const engines = process.env.TIDINGS_TEST_ENGINES
  if (engines && engines !== 'sqlite') {
    throw new Error(
      `TIDINGS_TEST_ENGINES is '${engines}'. It can be 'sqlite', to test on nothing else, or be left out.`,
    )
  }
  const urls = (process.env.TIDINGS_TEST_DATABASE_URLS ?? '').split(',').map(url => url.trim())
  return { isSqliteOnly: engines === 'sqlite', urls: engines === 'sqlite' ? [] : urls.filter(Boolean) }
}

/**
 * Hides the settings and profiles of the person who runs the tests, and gives the tests a temporary folder that is
 * removed at the end.
 *
 * @param {string[]} databaseUrls
 */
const setEnvironment = databaseUrls => {
  for (const name of Object.keys(process.env))
    if (/^TIDINGS_(?!WALKS$)|^NODE_ENV$|_proxy$/i.test(name)) delete process.env[name]
  Object.assign(process.env, {
    TIDINGS_TEST_DATABASE_URLS: databaseUrls.join(','),
    TIDINGS_TEST_RUN: run,
    NODE_COMPILE_CACHE: path.join(os.tmpdir(), 'node-compile-cache'),
    XDG_CONFIG_HOME: path.join(folder, 'config'),
    TMPDIR: folder,
  })
}

const runTests = async () => {
  if (stopping.signal.aborted) return exitCodeOf(stopping.signal.reason)
  const args = process.argv.slice(2)
  const files = args.some(arg => !arg.startsWith('-')) ? [] : globSync('test/**/*.test.ts', { cwd: root }).sort()
  const concurrency = Math.max(2, os.availableParallelism())
  // A process group of its own, so that processes left behind by tests end with it.
  const runner = spawn(
    process.execPath,
    [
      '--disable-warning=ExperimentalWarning',
      '--test',
      '--test-reporter=spec',
      `--test-concurrency=${concurrency}`,
      `--test-timeout=${TEST_TIMEOUT_MS}`,
      ...args,
      ...files.filter(file => !file.startsWith(path.join('test', 'bench'))),
    ],
    { cwd: root, stdio: ['ignore', 'inherit', 'inherit'], detached: true },
  )
  if (runner.pid) care.include(-runner.pid)
  const stop = () => runner.kill('SIGTERM')
  stopping.signal.addEventListener('abort', stop)
  const [code] = await once(runner, 'exit')
  stopping.signal.removeEventListener('abort', stop)
  return stopping.signal.aborted ? exitCodeOf(stopping.signal.reason) : (code ?? 1)
}

/** @param {NodeJS.Signals} signal */
const exitCodeOf = signal => 128 + os.constants.signals[signal]

try {
  process.exitCode = await main()
} catch (error) {
  console.error(`tidings: ${error instanceof Error ? error.message : error}`)
  process.exitCode = stopping.signal.aborted ? exitCodeOf(stopping.signal.reason) : 1
} finally {
  await care.end()
}
