import { setTimeout as wait } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { rows } from '../../server/database/connect.ts'
import { RETRY_SCHEDULE_MS } from '../../shared/retry-schedule.ts'
import type { EventType } from '../../shared/vocabulary.ts'
import { PROJECTS } from '../chaos/endpoints.ts'
import { startLoad } from '../chaos/load.ts'
import { createDatabase, createWorld } from '../chaos/world.ts'
import { startServerProcess } from '../delivery/server-process.ts'
import { startReceivers } from './receivers.ts'

// Measures the effect of two endpoints of a hundred, one that hangs and one that floods, on the latency of the other
// 98, from an event to its request.
//
//   npm run bench -- fairness [--url mysql://root@127.0.0.1:3306] [--processes 1,3] [--warm-up 15] [--seconds 30]

const { values: options } = parseArgs({
  options: {
    url: { type: 'string', default: process.env.TIDINGS_TEST_DATABASE_URLS?.split(',')[0] ?? '' },
    /** Of the server. */
    processes: { type: 'string', default: '1,3' },
    /** Seconds, as of what is measured. */
    'warm-up': { type: 'string', default: '15' },
    seconds: { type: 'string', default: '30' },
  },
})

const ENDPOINTS = 100
const EVENTS_A_SECOND = 60
const WELL: [string, string] = ['aside', 'aside']
const ILL: [string, string] = ['hanging', 'flooding']
const WARM_UP_MS = Number(options['warm-up']) * 1000
const MEASURED_MS = Number(options.seconds) * 1000
/** Other load disturbs a few of these, but not their median. */
const SPELL_MS = 3_000

const ascending = (values: number[]): number[] => values.toSorted((a, b) => a - b)
const quantile = (sorted: number[], part: number): number => sorted[Math.floor(part * (sorted.length - 1))] ?? 0

type Latency = { p50: number; p99: number; most: number }

/**
 * The latencies of 98 endpoints in milliseconds while the other two behave as their paths say, each as the median of
 * short periods.
 */
const latencies = async (serverUrl: string, processes: number, [first, second]: [string, string]): Promise<Latency> => {
  const receivers = await startReceivers(ENDPOINTS)
  const databaseUrl = await createDatabase(serverUrl)
  const type = 'project_report_quarterly_submitted'
  const events: EventType[] = [type]
  const world = await createWorld(
    databaseUrl,
    receivers.urls.map((url, index) => {
      // These two get every event, the others those of a project.
      if (index === 0) return { url: url + first, events }
      if (index === 1) return { url: url + second, events }
      return { url, events, projects: [index % PROJECTS] }
    }),
  )
  const env = {
    TIDINGS_ROLES: 'api,delivery',
    TIDINGS_RATE_LIMIT: '0',
    TIDINGS_RETRY_SCHEDULE: RETRY_SCHEDULE_MS.map(ms => ms / 1000).join(),
  }
  const servers = await Promise.all(Array.from({ length: processes }, () => startServerProcess(databaseUrl, env)))
  try {
    const targets = servers.map(({ url }) => ({ url, avoidUntil: 0 }))
    const load = startLoad({ world, rate: EVENTS_A_SECOND, seed: 1, targets: () => targets })
    await wait(WARM_UP_MS)
    await receivers.arrivals()
    const since = Date.now()
    await wait(MEASURED_MS)
    const arrivals = await receivers.arrivals()
    await load.stop(5_000)
    const found = await rows<{ payload: string; created_at: number }>(
      world.database.knex,
      'SELECT payload, created_at FROM events WHERE type = ? AND created_at >= ?',
      [type, since],
    )
    const happened = new Map(found.map(row => [JSON.parse(row.payload).projectReport.id as string, row.created_at]))
    const bySpell = Map.groupBy(arrivals, ([, at]) => Math.floor((at - since) / SPELL_MS))
    const spells = [...bySpell.values()].map(spell =>
      ascending(spell.flatMap(([id, at]) => (happened.has(id) ? at - happened.get(id)! : []))),
    )
    const median = (part: number): number => quantile(ascending(spells.map(spell => quantile(spell, part))), 0.5)
    return { p50: median(0.5), p99: median(0.99), most: Math.max(...spells.flat()) }
  } finally {
    for (const server of servers) await server.end('SIGKILL')
    receivers.stop()
    await world.database.knex.raw('DROP DATABASE ??', [new URL(databaseUrl).pathname.slice(1)])
    await world.database.close()
  }
}

if (!options.url) console.log('fairness: left out, since TIDINGS_TEST_DATABASE_URLS names no server')
for (const processes of options.url ? options.processes.split(',').map(Number) : []) {
  const p99: number[] = []
  for (const others of [WELL, ILL, WELL, ILL]) {
    const found = await latencies(options.url, processes, others)
    p99.push(found.p99)
    const besides = others === ILL ? 'one hangs, one floods' : 'all are well'
    console.log(
      `${processes} server process(es), ${besides}: p50 ${found.p50} ms, p99 ${found.p99} ms, most ${found.most} ms`,
    )
  }
  const ratio = (p99[1]! + p99[3]!) / (p99[0]! + p99[2]!)
  console.log(`${processes} server process(es): ratio of p99 ${ratio.toFixed(2)} (wanted: 2 or less)`)
}
