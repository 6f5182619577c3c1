import { accessSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import os from 'node:os'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { aftercare } from '../../scripts/aftercare.js'
import { startThrowAwayDatabase } from '../../scripts/throw-away-database.js'
import { listCases, runCases } from './case-runner.ts'
import { planFaults } from './faults.ts'
import { type Chaos, runChaos } from './run.ts'
import { createDatabase } from './world.ts'

const HELP = `npm run chaos -- [flags]

Runs server processes under load while they are killed and frozen, their database is restarted, and their endpoints
refuse, reset, hang, flood and talk nonsense; then checks that nothing was lost, doubled or misreported. Exits with 1 if
anything was.

  --minutes N         how long the load lasts (2)
  --servers N         server processes (3; on SQLite 1)
  --rate N            mutations a second (100)
  --kills             server processes are killed every few seconds, and nothing else happens
  --seed N            of the faults, to have the same again (by the time)
  --database WHERE    a private server is started, ended and frozen: the one found on this machine, or the mariadbd
                      or mysqld at a path; mysql://… is a running one, that is left alone; sqlite is a file
  --help

npm run chaos -- --case NAME[,NAME…] [flags]

Runs meetings of two or three things, each made on purpose, and says what was seen. They run on the servers that
TIDINGS_TEST_DATABASE_URLS names, or else on one that is started for it, and on SQLite. Exits with 1 if one is red.

  --case all          all of them, one after the other
  --list              their names, and what must hold
  --engine NAMES      mysql, mariadb, sqlite; all that there are if not given
  --size N            of those cases that have one, such as rows in the history
  --repeat N          each so many times (1)
  --own-servers       nobody else uses the servers that are named: they may be made read-only`

const { values } = parseArgs({
  options: {
    minutes: { type: 'string', default: '2' },
    servers: { type: 'string' },
    rate: { type: 'string', default: '100' },
    kills: { type: 'boolean', default: false },
    seed: { type: 'string', default: String(Date.now() % 1_000_000) },
    database: { type: 'string', default: '' },
    help: { type: 'boolean', default: false },
    case: { type: 'string', multiple: true },
    list: { type: 'boolean', default: false },
    engine: { type: 'string', default: '' },
    size: { type: 'string' },
    repeat: { type: 'string', default: '1' },
    'own-servers': { type: 'boolean', default: false },
  },
})

const OFFENDERS_SHOWN = 10

const main = async (): Promise<number> => {
  const folder = await mkdtemp(path.join(os.tmpdir(), 'tidings-chaos-'))
  const care = aftercare(folder)
  const { database } = values
  const isSqlite = database === 'sqlite'
  const isPrivate = !isSqlite && !database.startsWith('mysql:')
  if (isPrivate && database) accessSync(database)
  const instance = isPrivate ? await startThrowAwayDatabase(database || undefined) : undefined
  try {
    const seed = Number(values.seed)
    const loadMs = Number(values.minutes) * 60_000
    const servers = isSqlite ? 1 : Number(values.servers ?? 3)
    const onlyKills = values.kills
    const faults = planFaults({ seed, durationMs: loadMs, servers, withDatabase: isPrivate, onlyKills })
    const chaos: Chaos = {
      databaseUrl: isSqlite
        ? `sqlite:${path.join(folder, 'tidings.sqlite')}`
        : await createDatabase(instance?.url ?? database),
      folder,
      seed,
      servers,
      rate: Number(values.rate),
      loadMs,
      faults,
      care,
      onProgress: line => console.log(line),
      ...(instance && { instance }),
    }
    console.log(
      `seed ${seed}, ${servers} server processes, ${values.rate} mutations/s, ${values.minutes} min, ` +
        `${faults.length} faults`,
    )
    const { findings, figures } = await runChaos(chaos)
    for (const [name, value] of Object.entries(figures)) console.log(`  ${name}: ${value}`)
    for (const [sentence, wrong] of findings) {
      console.log(`${wrong.length === 0 ? '✓' : '✗'} ${sentence}${wrong.length > 0 ? ` (${wrong.length})` : ''}`)
      for (const line of wrong.slice(0, OFFENDERS_SHOWN)) console.log(`    ${line}`)
    }
    return [...findings.values()].every(wrong => wrong.length === 0) ? 0 : 1
  } finally {
    await instance?.stop()
    await care.end()
    await rm(folder, { recursive: true, force: true })
  }
}

const splitList = (text: string): string[] => text.split(',').filter(Boolean)

if (values.help) console.log(HELP)
else if (values.list) console.log(listCases())
else if (values.case) {
  const isGreen = await runCases({
    names: values.case.flatMap(splitList),
    engines: splitList(values.engine),
    size: values.size === undefined ? undefined : Number(values.size),
    repeat: Number(values.repeat),
    ownsServers: values['own-servers'],
    servers: splitList(process.env.TIDINGS_TEST_DATABASE_URLS ?? ''),
    say: console.log,
  })
  process.exit(isGreen ? 0 : 1)
} else process.exitCode = await main()
