import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { aftercare } from '../../scripts/aftercare.js'
import { startThrowAwayDatabase } from '../../scripts/throw-away-database.js'

// Runs one benchmark by its name, or every one that needs neither arguments nor an hour. They run on SQLite and on the
// servers named in TIDINGS_TEST_DATABASE_URLS; without any on a private MariaDB, unless TIDINGS_TEST_ENGINES is
// `sqlite`. Arguments after the name go to the benchmark.
//
//   npm run bench -- --list
//   npm run bench [-- NAME [options]]
//   npm run bench -- --plot [options]

type Benchmark = { file: string; args?: string[]; about: string; isAlone?: true }

const benchmarks: Record<string, Benchmark> = {
  'end-to-end': {
    file: 'end-to-end.ts',
    about: 'CPU, statements, rate and latency of an event from its mutation to its receipt',
  },
  pull: {
    file: 'pull.ts',
    about: 'CPU and latency of deliveries that one client and ten pull, beside the same pushed, and clients that wait',
  },
  overload: {
    file: 'overload.ts',
    about: 'more events offered than can be taken: what is taken, how soon the rest is refused',
  },
  statements: { file: 'statements.ts', about: 'every statement that one event costs, in order (MySQL and MariaDB)' },
  evidence: {
    file: 'evidence.ts',
    isAlone: true,
    about: 'CPU of an event with the evidence of its attempt and without, in one server',
  },
  profile: {
    file: 'profile.ts',
    about: 'where the CPU of an event goes, in the server by package, in MySQL by statement',
  },
  readers: {
    file: 'readers.ts',
    isAlone: true,
    about: "another tenant's small queries and mutations beside the heaviest queries of 1 to 20 tokens",
  },
  isolation: {
    file: 'isolation.ts',
    about: 'the worst requests that can be found, beside 100 deliveries a second of another tenant',
  },
  'claim-crowd': {
    file: 'claim-crowd.ts',
    about: "others' deliveries while one webhook over its share has 100,000 due",
  },
  verification: {
    file: 'verification.ts',
    about: 'the verification of a delivery by the receiver kit, beside Ed25519 by hand and standardwebhooks',
  },
  hanging: { file: 'hanging.ts', about: "others' events while webhooks and pings hang at TIDINGS_CONCURRENCY=100" },
  healing: {
    file: 'healing.ts',
    about: "others' events while a thousand dead endpoints of a tenant are pinged, and one gets 20,000 missed events",
  },
  delivery: {
    file: 'delivery.ts',
    about: 'deliveries a second beside the same client without a database, and their latency',
  },
  claims: {
    file: 'delivery.ts',
    args: ['claims'],
    isAlone: true,
    about: 'as delivery, and a claim beside 1,000,000 not yet due',
  },
  fairness: {
    file: 'fairness.ts',
    about: 'two endpoints of a hundred that hang and flood, and the latency of the others',
  },
  mango: { file: 'mango.ts', about: 'selectors over 1,000,000 rows beside the SQL that one would write by hand' },
  counts: {
    file: 'mango.ts',
    args: ['--organisations', '1000', '--projects', '1000', '--only', 'counts'],
    about: 'counts of 1,000,000 deliveries beside the GROUP BY that one would write by hand',
  },
  reads: {
    file: 'reads.ts',
    about: 'what support asks of many deliveries, as an admin and as a token of few organisations, beside SQL by hand',
  },
  why: {
    file: 'why.ts',
    about: '`why`, `stats` and counts by hour from request to answer, beside SQL by hand; --deliveries 5000000',
  },
  schedule: {
    file: 'schedule.ts',
    isAlone: true,
    about: "100 deliveries a second alone, and beside a purge, tokens' expiry and the opening of reports",
  },
  faults: {
    file: 'faults.ts',
    isAlone: true,
    about: 'mutations done of 720 while three processes are killed, clocks jump, and ways to the database break',
  },
  graphql: {
    file: 'graphql.ts',
    about: 'authenticated queries beside graphql-yoga and Apollo Server without authentication',
  },
  cli: { file: 'cli.ts', about: 'the start of the command line beside a bare Node' },
  memory: {
    file: 'memory.ts',
    isAlone: true,
    about: 'ten minutes of load with a million waiting: memory.ts mysql://… [minutes]',
  },
  growth: {
    file: 'growth.ts',
    isAlone: true,
    about: 'two million events in one go while the purge works: memory, files, bytes and CPU a minute',
  },
  bytes: {
    file: 'bytes.ts',
    about: 'bytes of a delivery in tables and indexes, before the retention purge and after it',
  },
  plots: {
    file: 'plots.ts',
    isAlone: true,
    about: 'the figures of docs/performance.md and their plots; `--plot` for short',
  },
  fuzz: {
    file: 'fuzz.ts',
    isAlone: true,
    about: 'a hundred thousand random requests, which show nobody what is hidden',
  },
}

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
    if (!server) await (await import('../support/databases.ts')).dropLeftovers()
    await server?.stop()
  }
}

try {
  process.exitCode = await main()
} finally {
  await care.end()
}
