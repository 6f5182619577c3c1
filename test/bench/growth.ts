import { readdirSync, readFileSync } from 'node:fs'
import { setTimeout as wait } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { rows } from '../../server/database/connect.ts'
import { engines } from '../support/databases.ts'
import { openCounters } from './database-counters.ts'
import { fixedWorkMs, median, quantile, show } from './figures.ts'
import { cpuMs, databasePidOf, treeOf } from './processes.ts'
import { startWorld, type World } from './world.ts'

// What an operator meets while a database grows: so many events in one go, one delivery each, in a process with all
// roles, while the purge deletes what is older than some minutes. A line a window says what the events of that window
// cost, and what the processes and the database hold at its end.
//
//   npm run bench -- growth [--engine sqlite] [--events 2000000] [--retention-minutes 10] [--in-flight 100]
//     [--window 60]

const { values: options } = parseArgs({
  options: {
    engine: { type: 'string', default: 'sqlite' },
    events: { type: 'string', default: '2000000' },
    'retention-minutes': { type: 'string', default: '10' },
    'in-flight': { type: 'string', default: '100' },
    /** Seconds of publishing between two lines. */
    window: { type: 'string', default: '60' },
  },
})
const EVENTS = Number(options.events)
const RETENTION_MS = Number(options['retention-minutes']) * 60_000
/** What the first and the last line of the comparison cover. */
const COMPARED = 100_000
const HISTORY = ['deliveries', 'attempts', 'events', 'event_organisations']
const MB = 1024 ** 2
const SHORT_RETENTION = new URL('short-retention.ts', import.meta.url).href

type Held = { processes: number; rssMb: number; pssMb: number; files: number }

/** Of a process and all that descend from it. */
const heldBy = (pid: number): Held =>
  treeOf(pid).reduce(
    (sum, each) => {
      try {
        const smaps = readFileSync(`/proc/${each}/smaps_rollup`, 'utf8')
        const mb = (name: string) => Number(new RegExp(`^${name}:\\s+(\\d+) kB`, 'm').exec(smaps)![1]) / 1024
        const files = readdirSync(`/proc/${each}/fd`).length
        return {
          processes: sum.processes + 1,
          rssMb: sum.rssMb + mb('Rss'),
          pssMb: sum.pssMb + mb('Pss'),
          files: sum.files + files,
        }
      } catch {
        return sum
      }
    },
    { processes: 0, rssMb: 0, pssMb: 0, files: 0 },
  )

type Size = { fileMb: number; freeMb: number; historyBytes: number; deliveries: number; oldestMs: number }

type Ask = (sql: string) => Promise<Record<string, unknown>[]>

/** `historyBytes`: pages of deliveries, attempts and events with their indexes; NaN where they are not asked for. */
const sizeOf = async (
  ask: Ask,
  { isEmbedded, withHistory = false }: { isEmbedded: boolean; withHistory?: boolean },
) => {
  const names = HISTORY.map(name => `'${name}'`).join(', ')
  const number = async (sql: string): Promise<number> => Number(Object.values((await ask(sql))[0] ?? {})[0] ?? 0)
  const oldest = await number('SELECT MIN(created_at) AS n FROM events')
  const size: Size = {
    deliveries: await number('SELECT COUNT(*) AS n FROM deliveries'),
    oldestMs: oldest ? Date.now() - oldest : 0,
    fileMb: 0,
    freeMb: 0,
    historyBytes: Number.NaN,
  }
  if (isEmbedded) {
    const pageMb = (await number('PRAGMA page_size')) / MB
    size.fileMb = (await number('PRAGMA page_count')) * pageMb
    size.freeMb = (await number('PRAGMA freelist_count')) * pageMb
    const owned = `SELECT name FROM sqlite_schema WHERE tbl_name IN (${names})`
    const sum = `SELECT SUM(pgsize) AS n FROM dbstat WHERE aggregate = TRUE AND name IN (${owned})`
    if (withHistory) size.historyBytes = await number(sum)
    return size
  }
  const where = 'FROM information_schema.tables WHERE table_schema = DATABASE()'
  if (withHistory) await ask(`ANALYZE TABLE ${HISTORY.join(', ')}`)
  size.fileMb = (await number(`SELECT SUM(data_length + index_length + data_free) AS n ${where}`)) / MB
  size.freeMb = (await number(`SELECT SUM(data_free) AS n ${where}`)) / MB
  const sum = `SELECT SUM(data_length + index_length) AS n ${where} AND table_name IN (${names})`
  if (withHistory) size.historyBytes = await number(sum)
  return size
}

type Line = Size & {
  events: number
  accepted: number
  serverMs: number
  databaseMs: number
  ackedP99: number
  seconds: number
}

const cell = (text: string, width: number): string => text.padStart(width)
const COLUMNS = [
  ...['seconds', 'events', 'a second', 'server ms', 'database ms', 'fixed ms', 'ack p99 ms', 'not done'],
  ...['RSS MB', 'PSS MB', 'files', 'database RSS MB', 'its files', 'deliveries', 'oldest s', 'file MB', 'free MB'],
]

const open = async (world: World) => {
  const { database, url } = world.given
  const { isEmbedded } = database.dialect
  const databasePid = databasePidOf(url)
  const counters = isEmbedded ? undefined : await openCounters(url)
  const ask: Ask = counters?.ask ?? (sql => rows(database.knex, sql))
  // Otherwise the sizes of MySQL's tables are a day old; MariaDB has no such setting.
  await counters?.ask('SET SESSION information_schema_stats_expiry = 0').catch(() => {})
  const size = (withHistory = false) => sizeOf(ask, { isEmbedded, withHistory })
  const cpu = () => ({ server: cpuMs(world.server().pid), database: databasePid ? cpuMs(databasePid) : Number.NaN })
  const startedAt = performance.now()
  let events = 0
  return {
    size,
    close: () => counters?.close(),
    async window(): Promise<Line> {
      const before = cpu()
      const works: number[] = []
      const publishing = world.publish({ inFlight: Number(options['in-flight']) })
      for (let second = 0; second < Number(options.window); second++) {
        await wait(1000)
        works.push(fixedWorkMs())
      }
      const window = await publishing()
      const after = cpu()
      events += window.accepted
      const held = heldBy(world.server().pid)
      const its = databasePid ? heldBy(databasePid) : undefined
      const now = await size()
      const seconds = (performance.now() - startedAt) / 1000
      const [serverMs, databaseMs] = [after.server - before.server, after.database - before.database]
      const notDone = Object.values(window.refused).flat().length + window.unanswered + window.missing
      const ackedP99 = quantile(window.begunToAcknowledged, 0.99)
      const values = [
        ...[seconds, events, window.acceptedPerSecond].map(Math.round),
        ...[serverMs / window.accepted, databaseMs / window.accepted, median(works)].map(show),
        ...[ackedP99, notDone, held.rssMb, held.pssMb, held.files].map(Math.round),
        ...[its?.rssMb, its?.files].map(value => (value === undefined ? '—' : Math.round(value))),
        ...[now.deliveries, now.oldestMs / 1000, now.fileMb, now.freeMb].map(Math.round),
      ]
      console.log(values.map((value, n) => cell(String(value), COLUMNS[n]!.length)).join('  '))
      return { ...now, events, accepted: window.accepted, serverMs, databaseMs, ackedP99, seconds }
    },
  }
}

/** The lines that cover so many events from the start, or from the end. */
const covering = (lines: Line[]): Line[] => {
  let sum = 0
  return lines.filter(({ accepted }) => {
    const isWanted = sum < COMPARED
    sum += accepted
    return isWanted
  })
}

const summary = (name: string, lines: Line[], { historyBytes, deliveries }: Size): string => {
  const sum = (of: (line: Line) => number) => lines.reduce((total, line) => total + of(line), 0)
  const accepted = sum(line => line.accepted)
  const server = sum(line => line.serverMs) / accepted
  const database = sum(line => line.databaseMs) / accepted
  const together = Number.isNaN(database) ? server : server + database
  return (
    `${name} ${accepted}: ${show(together)} ms of CPU an event (server ${show(server)}, database ${show(database)}); ` +
    `${show(historyBytes / deliveries)} bytes a delivery that is kept, of ${deliveries}`
  )
}

const measure = async (engine: string): Promise<void> => {
  const world = await startWorld(engine, {
    env: {
      TIDINGS_ROLES: 'api,delivery,scheduler',
      TIDINGS_LOG_LEVEL: 'warn',
      NODE_OPTIONS: `--disable-warning=ExperimentalWarning --import=${SHORT_RETENTION}`,
      BENCH_RETENTION_MINUTES: options['retention-minutes'],
    },
  })
  try {
    const { size, window, close } = await open(world)
    console.log(`${engine}\n${COLUMNS.join('  ')}`)
    const lines: Line[] = []
    let first: Size | undefined
    while ((lines.at(-1)?.events ?? 0) < EVENTS) {
      lines.push(await window())
      if (!first && lines.at(-1)!.events >= COMPARED) first = await size(true)
    }
    await world.settled()
    const last = await size(true)
    console.log(`${summary('the first', covering(lines), first ?? last)}`)
    console.log(`${summary('the last', covering(lines.toReversed()), last)}`)
    const until = Date.now() + 600_000
    const at = performance.now()
    let left = last
    while (left.oldestMs > RETENTION_MS + 20_000 && Date.now() < until) {
      await wait(1_000)
      left = await size()
    }
    const seconds = Math.round((performance.now() - at) / 1000)
    const late = Math.round((last.oldestMs - RETENTION_MS) / 1000)
    console.log(`the purge was ${late} s late at the end, and had caught up after ${seconds} s`)
    await close()
  } finally {
    await world.stop()
  }
}

for (const engine of engines) if (engine.startsWith(options.engine)) await measure(engine)
