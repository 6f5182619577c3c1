import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import { startThrowAwayDatabase } from '../../scripts/throw-away-database.js'

// Runs one benchmark by its name, or all of them that need neither arguments nor an hour. They run on SQLite and on the servers
// named in TIDINGS_TEST_DATABASE_URLS; without any on a private MariaDB, unless TIDINGS_TEST_ENGINES is `sqlite`. What stands
// behind the name goes to the benchmark.
//
//   npm run bench -- --list
//   npm run bench [-- NAME [options]]

type Benchmark = { file: string; args?: string[]; about: string; isAlone?: true }

const benchmarks: Record<string, Benchmark> = {
  'end-to-end': {
    file: 'end-to-end.ts',
    about: 'CPU, statements, rate and latency of an event from its mutation to its receipt',
  },
  statements: { file: 'statements.ts', about: 'every statement that one event costs, in order (MySQL and MariaDB)' },
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
  fuzz: { file: 'fuzz.ts', isAlone: true, about: 'a hundred thousand random requests on two worlds' },
}

const list = (): string => {
  const width = Math.max(...Object.keys(benchmarks).map(name => name.length))
  return Object.entries(benchmarks)
    .map(([name, { about, isAlone }]) => `${name.padEnd(width)}  ${about}${isAlone ? ' (by name only)' : ''}`)
    .join('\n')
}

/** Runs a benchmark in a process of its own, and returns its exit code. */
const run = async (name: string, args: string[], urls: string): Promise<number> => {
  const { file, args: given = [] } = benchmarks[name]!
  const program = fileURLToPath(new URL(file, import.meta.url))
  const child = spawn(process.execPath, ['--disable-warning=ExperimentalWarning', program, ...given, ...args], {
    stdio: 'inherit',
    env: { ...process.env, TIDINGS_TEST_DATABASE_URLS: urls },
  })
  const [code] = await once(child, 'exit')
  return code ?? 1
}

const main = async (): Promise<number> => {
  const [name, ...args] = process.argv.slice(2)
  if (name === '--list') {
    console.log(list())
    return 0
  }
  if (name !== undefined && !benchmarks[name]) {
    console.error(`There is no benchmark "${name}". There are:\n${list()}`)
    return 2
  }
  const isSqliteOnly = process.env.TIDINGS_TEST_ENGINES === 'sqlite'
  const named = isSqliteOnly ? '' : (process.env.TIDINGS_TEST_DATABASE_URLS ?? '')
  const server = isSqliteOnly || named ? undefined : await startThrowAwayDatabase(undefined, { isDurable: true })
  try {
    const wanted = name === undefined ? Object.keys(benchmarks).filter(each => !benchmarks[each]!.isAlone) : [name]
    let worst = 0
    for (const each of wanted) {
      if (name === undefined) console.log(`\n${each}: ${benchmarks[each]!.about}`)
      worst = Math.max(worst, await run(each, args, server?.url ?? named))
    }
    return worst
  } finally {
    await server?.stop()
  }
}

// A Ctrl-C reaches the benchmark too, which is then waited for.
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => {})
process.exitCode = await main()
