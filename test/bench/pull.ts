import { setTimeout as wait } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import pc from 'picocolors'
import { engines } from '../support/databases.ts'
import { median, quantile, show, table } from './figures.ts'
import { cpuMs, databasePidOf } from './processes.ts'
import { unlessSmallest } from './smallest.ts'
import { startWorld, type World } from './world.ts'

// Deliveries that clients pull, beside the same ones pushed: events of 100 projects to one webhook, at 10,000 a minute
// and at 100 a second. CPU is that of the server, the database, and the endpoint or client, from the mutation to the
// recorded answer; that of a delivery alone, what an event costs more than one that no webhook receives. Latency is
// from the answer to the mutation to the hands of the receiver or client.
//
//   npm run bench -- pull [--engine mysql] [--rounds 3] [--seconds 6]

const { values: options } = parseArgs({
  options: {
    engine: { type: 'string', default: '' },
    rounds: { type: 'string', default: '3' },
    seconds: { type: 'string', default: '6' },
  },
})
const ROUNDS = Number(options.rounds)
const SECONDS = Number(options.seconds)
const WARM_UP_SECONDS = unlessSmallest(3, 0.3)
const PROJECTS = unlessSmallest(100, 5)
const MOST_CPU = 1.5
const LATEST_MS = 50

const WAYS = [
  { name: 'no webhook', given: { endpoints: 0, projects: PROJECTS } },
  { name: 'pushed', given: { endpoints: 1, projects: PROJECTS } },
  { name: 'one client', given: { endpoints: 0, projects: PROJECTS, pullers: 1 } },
  { name: 'ten clients', given: { endpoints: 0, projects: PROJECTS, pullers: 10 } },
]
const RATES = [
  { name: '10,000 a minute', rate: 10_000 / 60 },
  { name: '100 a second', rate: 100 },
]

type Round = { cpu: number; delivered: number; p50: number; p99: number; notDone: number }

const measure = async (world: World, databasePid: number | undefined, rate: number): Promise<Round> => {
  await world.settled()
  const pids = [world.server().pid, world.receivingPid, ...(databasePid ? [databasePid] : [])]
  const cpu = () => pids.reduce((sum, pid) => sum + cpuMs(pid), 0)
  const before = cpu()
  const publishing = world.publish({ rate })
  await wait(SECONDS * 1000)
  const window = await publishing()
  await world.settled()
  const received = window.acknowledgedToReceived
  const isReceived = world.tenant.webhookIds.length > 0
  return {
    cpu: (cpu() - before) / window.accepted,
    delivered: isReceived ? window.deliveredPerSecond : Number.NaN,
    p50: isReceived ? quantile(received, 0.5) : Number.NaN,
    p99: isReceived ? quantile(received, 0.99) : Number.NaN,
    notDone: Object.values(window.refused).flat().length + window.unanswered + (isReceived ? window.missing : 0),
  }
}

const benchOn = async (engine: string): Promise<void> => {
  const worlds: World[] = []
  try {
    for (const { given } of WAYS) worlds.push(await startWorld(engine, given))
    for (const world of worlds) {
      const warming = world.publish({ rate: 100 })
      await wait(WARM_UP_SECONDS * 1000)
      await warming()
    }
    for (const { name, rate } of RATES) {
      const rounds = worlds.map((): Round[] => [])
      for (let n = 0; n < ROUNDS; n++) {
        for (const [index, world] of worlds.entries())
          rounds[index]!.push(await measure(world, databasePidOf(world.given.url), rate))
      }
      report(`${engine}, ${name}, ${SECONDS} s`, rounds)
    }
  } finally {
    for (const world of worlds) await world.stop()
  }
}

const report = (title: string, rounds: Round[][]): void => {
  const of = (key: keyof Round) => rounds.map(all => median(all.map(round => round[key])))
  const cpu = of('cpu')
  const own = cpu.map(each => each - cpu[0]!)
  const timesPush = (values: number[]) => values.map(each => each / values[1]!)
  const line = (label: string, values: number[], isTooMuch: (value: number) => boolean = () => false) => [
    label,
    ...values.map(value => (isTooMuch(value) ? pc.red(show(value)) : show(value))),
  ]
  const lines = [
    [pc.bold(title), ...WAYS.map(({ name }) => pc.bold(name))],
    line('CPU ms an event', cpu),
    line('× push', timesPush(cpu), value => value > MOST_CPU),
    line('CPU ms of its delivery alone', own),
    line('× push', timesPush(own)),
    line('deliveries a second', of('delivered')),
    line('acknowledged → received p50 ms', of('p50')),
    line('acknowledged → received p99 ms', of('p99'), value => value > LATEST_MS),
    line('not done', of('notDone'), value => value > 0),
  ]
  console.log(`\n${table(lines)}`)
}

for (const engine of engines) if (engine.startsWith(options.engine)) await benchOn(engine)
