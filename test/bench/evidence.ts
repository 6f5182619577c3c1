import { setTimeout as wait } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import pc from 'picocolors'
import { engines } from '../support/databases.ts'
import { median, show, table } from './figures.ts'
import { measure, type Round, startSide } from './sides.ts'
import type { Pace, World } from './world.ts'

// Measures what the evidence of attempts costs: the CPU of an event, of the server's processes and of the database's,
// in one server whose evidence is turned off and on. Rounds are off, on, on, off; a ratio is of two neighbours. Two
// alike differ by a tenth however long they are, so many short ones say more than a few long ones.
//
//   npm run bench -- evidence [--engine mysql] [--quads 60] [--seconds 2] [--in-flight 100 | --rate 300]

const { values: options } = parseArgs({
  options: {
    engine: { type: 'string', default: '' },
    quads: { type: 'string', default: '60' },
    seconds: { type: 'string', default: '2' },
    /** Seconds. */
    'warm-up': { type: 'string', default: '30' },
    'in-flight': { type: 'string', default: '100' },
    rate: { type: 'string' },
  },
})
const SECONDS = Number(options.seconds)
const PACE: Pace = options.rate ? { rate: Number(options.rate) } : { inFlight: Number(options['in-flight']) }
const ENV = { NODE_OPTIONS: `--import=${new URL('evidence-switch.ts', import.meta.url).href}` }

/** How many attempts have evidence, and how many have none. */
const attempts = async ({ given }: World): Promise<{ kept: number; none: number }> => {
  const [row] = await given.database.knex('attempts').count({ kept: 'evidence', all: '*' })
  return { kept: Number(row!.kept), none: Number(row!.all) - Number(row!.kept) }
}

/** The geometric mean of the ratios of pairs, and two standard errors of it. */
const ratioOf = (on: number[], off: number[]): [ratio: string, error: string] => {
  const logs = on.map((ms, n) => Math.log(ms / off[n]!))
  const mean = logs.reduce((sum, log) => sum + log, 0) / logs.length
  const variance = logs.reduce((sum, log) => sum + (log - mean) ** 2, 0) / (logs.length - 1)
  return [Math.exp(mean).toFixed(3), (2 * Math.sqrt(variance / logs.length)).toFixed(3)]
}

for (const engine of engines.filter(each => each.startsWith(options.engine))) {
  const side = await startSide(engine, ENV)
  try {
    const warming = side.world.publish(PACE)
    await wait(Number(options['warm-up']) * 1000)
    await warming()
    await side.world.settled()
    const before = await attempts(side.world)
    const rounds = { off: [] as Round[], on: [] as Round[] }
    let now: 'off' | 'on' = 'on'
    for (let quad = 0; quad < Number(options.quads); quad++) {
      for (const wanted of ['off', 'on', 'on', 'off'] as const) {
        if (wanted !== now) process.kill(side.world.server().pid, 'SIGUSR2')
        now = wanted
        rounds[wanted].push(await measure(side, PACE, SECONDS))
      }
    }
    const after = await attempts(side.world)
    const [none, kept] = [after.none - before.none, after.kept - before.kept]
    if (none === 0 || kept === 0) throw new Error('The evidence was not turned off and on.')
    const parts = side.counters ? ['server', 'database', 'together'] : ['server']
    const lines = parts.map(part => {
      const [off, on] = [rounds.off, rounds.on].map(some => some.map(round => round[part]!)) as [number[], number[]]
      return [`CPU ms an event, ${part}`, show(median(off)), show(median(on)), ...ratioOf(on, off)]
    })
    const heading = [`${engine}, ${rounds.on.length} pairs of ${SECONDS} s`, 'without', 'with', 'ratio', '±']
    console.log(table([heading.map(each => pc.bold(each)), ...lines]))
    console.log(`attempts without evidence ${none}, with it ${kept}`)
  } finally {
    await side.counters?.close()
    await side.world.stop()
  }
}
