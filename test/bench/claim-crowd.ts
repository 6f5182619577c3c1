import { setTimeout as wait } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { engines } from '../support/databases.ts'
import { between, openCounters } from './database-counters.ts'
import { quantile, show, table } from './figures.ts'
import { makeDue } from './hanging-webhooks.ts'
import { cpuMs, databasePidOf } from './processes.ts'
import { unlessSmallest } from './smallest.ts'
import { startWorld } from './world.ts'

// Measures claims while one webhook with a hanging endpoint is over its share and has very many due deliveries: cost
// and latency of the others' deliveries, compared with few due ones.
//
//   npm run bench -- claim-crowd [--engine mysql] [--due 100000] [--few 1000] [--rate 100] [--seconds 10]

const { values: options } = parseArgs({
  options: {
    engine: { type: 'string', default: '' },
    due: { type: 'string', default: '100000' },
    few: { type: 'string', default: '1000' },
    rate: { type: 'string', default: '100' },
    seconds: { type: 'string', default: '10' },
  },
})
/** The webhook has filled its share by then. */
const FILL_MS = unlessSmallest(3_000, 300)

const HEADING = [
  'due of one webhook',
  'CPU ms an event, server',
  'database',
  'statements',
  'begun → received p50 ms',
  'p99 ms',
  'lost',
]

const measure = async (engine: string, due: number): Promise<number[]> => {
  const world = await startWorld(engine)
  const counters = engine === 'sqlite' ? undefined : await openCounters(world.given.url)
  try {
    const databasePid = databasePidOf(world.given.url)
    await makeDue(world, { webhooks: 1, deliveries: due })
    await world.restart()
    await wait(FILL_MS)
    const { pid } = world.server()
    const counted = await counters?.read()
    const spent = [cpuMs(pid), databasePid ? cpuMs(databasePid) : Number.NaN]
    const publishing = world.publish({ rate: Number(options.rate) })
    await wait(Number(options.seconds) * 1000)
    const window = await publishing()
    const done = counters && between(counted!, await counters.read())
    const each = (sum: number | undefined): number => (sum ?? Number.NaN) / window.accepted
    return [
      each(cpuMs(pid) - spent[0]!),
      each((databasePid ? cpuMs(databasePid) : Number.NaN) - spent[1]!),
      each(done?.statements),
      quantile(window.begunToReceived, 0.5),
      quantile(window.begunToReceived, 0.99),
      window.missing + window.unanswered,
    ]
  } finally {
    await counters?.close()
    await world.stop()
  }
}

for (const engine of engines) {
  if (!engine.startsWith(options.engine)) continue
  const rows: string[][] = []
  for (const due of [0, Number(options.few), Number(options.due)]) {
    rows.push([due.toLocaleString('en'), ...(await measure(engine, due)).map(show)])
  }
  console.log(`\n${engine}, ${options.rate} events a second of others for ${options.seconds} s`)
  console.log(table([HEADING, ...rows]))
}
