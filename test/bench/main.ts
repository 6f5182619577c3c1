import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { aftercare } from '../../scripts/aftercare.js'
import { shareCompiled } from '../../scripts/compile-cache.js'
import { startThrowAwayDatabase } from '../../scripts/throw-away-database.js'
import { benchmarks } from './benchmarks.ts'

// Runs one benchmark by its name, or every one that needs neither arguments nor an hour. They run on SQLite and on the
// servers named in TIDINGS_TEST_DATABASE_URLS; without any on a private MariaDB, unless TIDINGS_TEST_ENGINES is
// `sqlite`. Arguments after the name go to the benchmark.
//
//   npm run bench -- --list
//   npm run bench [-- NAME [options]]
//   npm run bench -- --plot [options]

const list = (): string => {
  const width = Math.max(...Object.keys(benchmarks).map(name => name.length))
  return Object.entries(benchmarks)
    .map(([name, { about, isAlone }]) => `${name.padEnd(width)}  ${about}${isAlone ? ' (by name only)' : ''}`)
    .join('\n')
}

/**
 * A benchmark has a folder and a process group of its own, so that nothing of it outlives this process, even if that is
 * killed.
 */
const folder = mkdtempSync(path.join(os.tmpdir(), 'tidings-bench-'))
shareCompiled(folder)
const care = aftercare(folder)
const stopping = new AbortController()
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => stopping.abort(signal))

/** Runs a benchmark in a process of its own, and returns its exit code. */
const run = async (name: string, args: string[]): Promise<number> => {
  const { file, args: given = [] } = benchmarks[name]!
  const program = fileURLToPath(new URL(file, import.meta.url))
  const child = spawn(process.execPath, ['--disable-warning=ExperimentalWarning', program, ...given, ...args], {
    stdio: ['ignore', 'inherit', 'inherit'],
    env: { ...process.env, TMPDIR: folder },
    detached: true,
  })
  care.include(-child.pid!)
  const stop = () => process.kill(-child.pid!, 'SIGKILL')
  stopping.signal.addEventListener('abort', stop)
  const [code] = await once(child, 'exit')
  stopping.signal.removeEventListener('abort', stop)
  return stopping.signal.aborted ? 128 + os.constants.signals[stopping.signal.reason as 'SIGINT'] : (code ?? 1)
}

const main = async (): Promise<number> => {
  const [given, ...args] = process.argv.slice(2)
  const name = given === '--plot' ? 'plots' : given
  if (name === '--list') {
    console.log(list())
    return 0
  }
  const isDrawing = args.includes('--draw')
  if (name !== undefined && !benchmarks[name]) {
    console.error(`There is no benchmark "${name}". There are:\n${list()}`)
    return 2
  }
  const isSqliteOnly = process.env.TIDINGS_TEST_ENGINES === 'sqlite' || isDrawing
  const named = isSqliteOnly ? '' : (process.env.TIDINGS_TEST_DATABASE_URLS ?? '')
  const server = isSqliteOnly || named ? undefined : await startThrowAwayDatabase(undefined, { isDurable: true })
  process.env.TIDINGS_TEST_DATABASE_URLS = server?.url ?? named
  process.env.TIDINGS_TEST_RUN = randomBytes(4).toString('hex')
  try {
    const wanted = name === undefined ? Object.keys(benchmarks).filter(each => !benchmarks[each]!.isAlone) : [name]
    let worst = 0
    for (const each of wanted) {
      if (stopping.signal.aborted) break
      if (name === undefined) console.log(`\n${each}: ${benchmarks[each]!.about}`)
      worst = Math.max(worst, await run(each, args))
    }
    return worst
  } finally {
    if (named) await (await import('../support/databases.ts')).dropLeftovers()
    await server?.stop()
  }
}

try {
  process.exitCode = await main()
} finally {
  await care.end()
}
