import { parseArgs } from 'node:util'
import pc from 'picocolors'
import { engines } from '../support/databases.ts'
import { measureEventCpu } from './event-cpu.ts'
import { show, table } from './figures.ts'

// Splits the CPU of an event: the server's by package and folder, from a sampling profiler, and the database's by kind
// of statement, from MySQL's performance schema (which includes waits for the disk). MariaDB has that schema off by
// default.
//
//   npm run bench -- profile [--engine mysql] [--seconds 5] [--in-flight 100 | --rate 100]

const { values: options } = parseArgs({
  options: {
    engine: { type: 'string', default: '' },
    seconds: { type: 'string', default: '5' },
    'in-flight': { type: 'string', default: '100' },
    /** Events a second, in place of requests in flight. */
    rate: { type: 'string', default: '' },
  },
})
const SHOWN = 25
const DIGEST_SHOWN = 150

const profile = async (engine: string): Promise<void> => {
  const pace = options.rate ? { rate: Number(options.rate) } : { inFlight: Number(options['in-flight']) }
  const { accepted, places, digests } = await measureEventCpu(engine, { seconds: Number(options.seconds), pace })
  const sum = [...places.values()].reduce((a, b) => a + b, 0)
  const percent = (part: number): string => `${((100 * part) / sum).toFixed(1)} %`
  console.log(pc.bold(`\n${engine}, ${accepted} events: the server's CPU`))
  const dearest = [...places].toSorted((a, b) => b[1] - a[1]).slice(0, SHOWN)
  console.log(table(dearest.map(([place, ms]) => [place, percent(ms), `${show(ms / accepted)} ms an event`])))
  if (digests.length === 0) return
  console.log(pc.bold("the database's time"))
  const most = digests.toSorted((a, b) => b.ms - a.ms).slice(0, SHOWN)
  const rows = most.map(({ digest, n, ms }) => [digest.slice(0, DIGEST_SHOWN), show(n), show(ms)])
  console.log(table([['statement', 'an event', 'ms an event'], ...rows]))
}

for (const engine of engines) if (engine.startsWith(options.engine)) await profile(engine)
