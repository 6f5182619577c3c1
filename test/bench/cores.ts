import { closeSync, fdatasyncSync, mkdtempSync, openSync, rmSync, writeSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as wait } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { type Fixture, startFixture } from '../delivery/fixture.ts'
import { masterKey, startServerProcess } from '../delivery/server-process.ts'
import { engines } from '../support/databases.ts'
import { untilEmpty } from './backlog.ts'
import { between, openCounters } from './database-counters.ts'
import { median, show, table } from './figures.ts'
import { cpuMs, databasePidOf } from './processes.ts'
import { type Demands, throughput } from './queueing.ts'
import { startReceivers } from './receivers.ts'

// How many deliveries a second more cores would do, by a model: a closed queueing network whose service times are
// measured here, with one and two server processes. Its one free figure, how many activities a process has under way,
// is fitted to one process; what it says of two is printed beside what they do. The log's sync is timed on the disk of
// the temporary folder, where a private database is.
//
//   npm run bench -- cores [--engine maria] [--deliveries 20000] [--rounds 3]

const { values: options } = parseArgs({
  options: {
    engine: { type: 'string', default: '' },
    deliveries: { type: 'string', default: '20000' },
    rounds: { type: 'string', default: '3' },
  },
})
const DELIVERIES = Number(options.deliveries)
const ROUNDS = Number(options.rounds)
const ENDPOINTS = 100
/** Server, database and endpoints share them. */
const CORES = availableParallelism()
const UNTIL_DUE_MS = 2_000
const MEASURED = [1, 2]
const MODELLED = [1, 2, 4, 8, 16, 32, 64]
const DATABASE_CORES = [1, 2, 4, 32]
const SYNCS = 300
const SYNCED_BYTES = 4_096

/** The median time of a sync after a small write, in milliseconds. */
const syncMs = (): number => {
  const folder = mkdtempSync(join(tmpdir(), 'tidings-bench-'))
  const file = openSync(join(folder, 'log'), 'w')
  const times = Array.from({ length: SYNCS }, () => {
    writeSync(file, Buffer.alloc(SYNCED_BYTES))
    const startedAt = performance.now()
    fdatasyncSync(file)
    return performance.now() - startedAt
  })
  closeSync(file)
  rmSync(folder, { recursive: true })
  return median(times)
}

type Round = Demands & { perSecond: number; syncs: number }

/** Sends a backlog by some server processes, and says what each delivery took of each station. */
const measure = async (fixture: Fixture, processes: number, receiversPid: number, logMs: number): Promise<Round> => {
  const { knex } = fixture.database
  await fixture.emit(DELIVERIES / ENDPOINTS)
  await knex('delivery_queue').update({ due_at: Date.now() + 3_600_000 })
  const env = { TIDINGS_ROLES: 'delivery' }
  const { url } = fixture.given
  const servers = await Promise.all(Array.from({ length: processes }, () => startServerProcess(url, env)))
  const counters = await openCounters(url)
  try {
    const due_at = Date.now() + UNTIL_DUE_MS
    await knex('delivery_queue').update({ due_at })
    await wait(due_at - Date.now())
    const databasePid = databasePidOf(url)!
    const now = () => [servers.reduce((sum, { pid }) => sum + cpuMs(pid), 0), cpuMs(databasePid), cpuMs(receiversPid)]
    const before = now()
    const counted = await counters.read()
    await untilEmpty(fixture)
    const tookMs = Date.now() - due_at
    const [server, database, receivers] = now().map((ms, n) => (ms - before[n]!) / DELIVERIES) as [
      number,
      number,
      number,
    ]
    const syncs = (between(counted, await counters.read()).logSyncs ?? 0) / DELIVERIES
    return { server, database, receivers, log: syncs * logMs, syncs, perSecond: (DELIVERIES / tookMs) * 1000 }
  } finally {
    await counters.close()
    for (const server of servers) await server.end('SIGTERM')
  }
}

const medians = (rounds: Round[]): Round =>
  Object.fromEntries(
    Object.keys(rounds[0]!).map(key => [key, median(rounds.map(round => round[key as keyof Round]))]),
  ) as Round

/** The number of activities of a process with which the model of this machine does what one process did. */
const fit = (demands: Round): number => {
  const off = (activities: number) =>
    Math.abs(throughput(demands, { processes: 1, activities, sharedCores: CORES }).perSecond - demands.perSecond)
  const candidates = Array.from({ length: 80 }, (_, n) => 1 + n / 10)
  return candidates.reduce((best, each) => (off(each) < off(best) ? each : best))
}

for (const engine of engines) {
  if (engine === 'sqlite' || !engine.startsWith(options.engine)) continue
  const receivers = await startReceivers(ENDPOINTS)
  const fixture = await startFixture(engine, { now: () => Date.now() }, { masterKey })
  try {
    const logMs = syncMs()
    const rounds = new Map<number, Round[]>(MEASURED.map(processes => [processes, []]))
    for (let n = 0; n < ROUNDS; n++) {
      for (const processes of MEASURED) {
        for (const url of receivers.urls) await fixture.webhook(url)
        rounds.get(processes)!.push(await measure(fixture, processes, receivers.pid, logMs))
        await fixture.reset()
      }
    }
    const one = medians(rounds.get(1)!)
    const activities = fit(one)
    console.log(`\n${engine}: a sync of the log takes ${show(logMs)} ms; a process has ${show(activities)} activities`)
    const measured = MEASURED.map(processes => {
      const is = medians(rounds.get(processes)!)
      const says = throughput(one, { processes, activities, sharedCores: CORES })
      const parts = [is.server, is.database, is.receivers, is.log].map(show)
      return [show(processes), ...parts, show(is.syncs), show(is.perSecond), show(says.perSecond)]
    })
    const heading = [
      'processes',
      'server ms',
      'database ms',
      'receivers ms',
      'log ms',
      'syncs',
      'a second',
      'the model',
    ]
    console.log(table([heading, ...measured]))
    console.log('\nThe model: deliveries a second, by server processes with a core each, and cores of the database')
    const modelled = MODELLED.map(processes => [
      show(processes),
      ...DATABASE_CORES.map(databaseCores => {
        const { perSecond, bottleneck } = throughput(one, { processes, activities, databaseCores })
        return `${show(perSecond)} ${bottleneck}`
      }),
    ])
    console.log(table([['processes', ...DATABASE_CORES.map(cores => `${cores} cores`)], ...modelled]))
  } finally {
    receivers.stop()
    await fixture.stop()
  }
}
