import { randomBytes } from 'node:crypto'
import { mkdirSync, mkdtempSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { aftercare } from './aftercare.js'
import { buildLibraries } from './build-libraries.js'
import { buildPages } from './build-pages.js'
import { buildProgram } from './build-program.js'
import { shareCompiled } from './compile-cache.js'
import { ADVICE, NoServerError } from './database-server.js'
import { testsOfChange } from './suite/changed.js'
import { cpuS } from './suite/cpu.js'
import { readOptions, testFiles } from './suite/options.js'
import { createReport, summary } from './suite/report.js'
import { readTimes, runEach } from './suite/schedule.js'
import { createWorkers } from './suite/workers.js'
import { startThrowAwayDatabase } from './throw-away-database.js'

/** Of one file, on a machine that has others to serve too. */
const FILE_TIMEOUT_MS = 300_000
const FILE_AT_FULL_SIZE_TIMEOUT_MS = 2_400_000

const startedAt = performance.now()
const root = fileURLToPath(new URL('..', import.meta.url))
const timesFile = (/** @type {boolean} */ isAll) =>
  path.join(root, 'test', isAll ? 'times-at-full-size.json' : 'times.json')
const folder = mkdtempSync(path.join(os.tmpdir(), 'tidings-test-'))
const care = aftercare(folder)
/** Marks the databases of this run, so that those of a killed test can be found. */
const run = randomBytes(4).toString('hex')
const stopping = new AbortController()
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => stopping.abort(signal))

const main = async () => {
  const options = readOptions(process.argv.slice(2), root)
  const { files, note: ofChange } = await wantedFiles(options)
  const { urls, isSqliteOnly } = wantedDatabases()
  await buildPages()
  await buildLibraries()
  await buildProgram()
  const { server, note } = isSqliteOnly || urls.length > 0 ? {} : await ownServer()
  let ran
  try {
    await prepare(server ? [server.url] : urls, options.isAll)
    const { dropLeftovers, engines } = await import('../test/support/databases.ts')
    console.error(
      `tidings: Testing on ${engines.join(', ')}${isSqliteOnly ? ' only, as TIDINGS_TEST_ENGINES says' : ''}.`,
    )
    ran = await runTests(files, options)
    if (!server) await dropLeftovers()
  } finally {
    await server?.stop()
  }
  if (stopping.signal.aborted) return exitCodeOf(stopping.signal.reason)
  const wallS = (performance.now() - startedAt) / 1000
  const notes = [ofChange, note].filter(each => each !== undefined)
  console.log(summary(ran.results, { ...ran, notes, wallS, cpuS: cpuS() }))
  return ran.results.some(({ failures }) => failures.length > 0) ? 1 : 0
}

/**
 * @param {import('./suite/options.js').Options} options
 * @returns {Promise<{ files: string[], note?: string }>}
 */
const wantedFiles = async ({ files: named, changedSince }) => {
  if (changedSince === undefined) return { files: named.length > 0 ? named : testFiles(root) }
  const { changed, files, left } = await testsOfChange(root, changedSince, testFiles(root), readTimes(timesFile(false)))
  console.error(`tidings: ${changed.length} files have changed since ${changedSince}.`)
  if (left === 0) return { files }
  return { files, note: `${left} more test files reach what has changed: \`npm test\` runs all.` }
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

/** A server for this run. Where none is to be had, SQLite alone is tested, and the end of the run says so. */
const ownServer = async () => {
  try {
    return { server: await startThrowAwayDatabase(undefined, { stopping: stopping.signal }) }
  } catch (error) {
    if (!(error instanceof NoServerError) || /^(1|true)$/.test(process.env.CI ?? '')) throw error
    console.error(`tidings: ${error.reason}`)
    return { note: `Tested on SQLite alone: ${error.reason} ${ADVICE}` }
  }
}

/**
 * Hides the settings and profiles of the person who runs the tests, gives the tests a temporary folder that is removed
 * at the end, and makes the databases that theirs are copies of.
 *
 * @param {string[]} databaseUrls
 * @param {boolean} isAll
 */
const prepare = async (databaseUrls, isAll) => {
  for (const name of Object.keys(process.env))
    if (/^TIDINGS_(?!WALKS$)|^NODE_ENV$|_proxy$/i.test(name)) delete process.env[name]
  const templates = path.join(folder, 'templates.json')
  Object.assign(process.env, {
    TIDINGS_TEST_DATABASE_URLS: databaseUrls.join(','),
    TIDINGS_TEST_RUN: run,
    ...(isAll && { TIDINGS_TEST_ALL: '1' }),
    NODE_COMPILE_CACHE: shareCompiled(folder),
    XDG_CONFIG_HOME: path.join(folder, 'config'),
    TMPDIR: folder,
  })
  const { writeTemplates } = await import('../test/support/templates.ts')
  await writeTemplates(templates)
  process.env.TIDINGS_TEST_TEMPLATES = templates
}

/**
 * @param {string[]} files
 * @param {import('./suite/options.js').Options} options
 */
const runTests = async (files, { isAll, slots, timeoutMs: given, only, forNode, writesTimes }) => {
  const timeoutMs = given ?? (isAll ? FILE_AT_FULL_SIZE_TIMEOUT_MS : FILE_TIMEOUT_MS)
  const times = readTimes(timesFile(isAll))
  const isShown = files.length === 1
  const report = createReport({ files, times, isShown })
  const own = path.join(folder, 'files')
  mkdirSync(own)
  const { signal } = stopping
  const how = { root, folder: own, options: forNode, only, timeoutMs, isShown, care }
  const workers = createWorkers({ ...how, stopping: signal })
  await runEach(files, {
    times,
    cores: os.availableParallelism(),
    ...(slots && { slots }),
    stopping: signal,
    work: async file => {
      report.begin(file)
      const result = await workers.runFile(file)
      if (!signal.aborted) report.end(result)
    },
  })
  report.close()
  await workers.end()
  if (writesTimes) writeFileSync(timesFile(isAll), timesOf({ ...times }, report.results))
  return { results: report.results, isShown }
}

/**
 * @param {import('./suite/schedule.js').Times} times
 * @param {import('./suite/workers.js').FileResult[]} results
 */
const timesOf = (times, results) => {
  for (const { file, wallS, cpuS } of results) times[file] = [Number(wallS.toFixed(1)), Number(cpuS.toFixed(1))]
  const lines = testFiles(root).flatMap(file => (times[file] ? [`  "${file}": [${times[file].join(', ')}]`] : []))
  return `{\n${lines.join(',\n')}\n}\n`
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
