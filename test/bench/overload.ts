import { setPriority } from 'node:os'
import { setTimeout as wait } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import pc from 'picocolors'
import { engines } from '../support/databases.ts'
import { median, quantile, show, table } from './figures.ts'
import { treeOf } from './processes.ts'
import { unlessSmallest } from './smallest.ts'
import { startWorld, type World } from './world.ts'

// Offers a server more events than it can take, each over its own connection: what it takes and delivers, how soon it
// refuses the rest, that nothing acknowledged is lost, and how an API key is answered that asks little. Publishers and
// receivers come before the server if the system allows it: otherwise they would wait for the CPU themselves, and the
// server would not be offered so much.
//
//   npm run bench -- overload [--engine mysql] [--rates 1000,2000] [--seconds 10]
//
// With --bursts, each rate is offered for so many times 2 s, each with 8 s of rest.

const { values: options } = parseArgs({
  options: {
    engine: { type: 'string', default: '' },
    rates: { type: 'string', default: '1000,2000' },
    seconds: { type: 'string', default: '10' },
    bursts: { type: 'string', default: '0' },
  },
})
const SECONDS = Number(options.seconds)
const WARM_UP_MS = unlessSmallest(3_000, 300)
const CLIENTS_PRIORITY = -10
/** The pause between two requests of the API key that asks little. */
const LITTLE_MS = 50
const LITTLE = 'mutation ($name: String!) { upsertUser(name: $name) { id } }'

const HEADING = [
  'offered a second',
  'taken a second',
  'delivered a second',
  'answered after p50 ms',
  'p99 ms',
  'refused',
  'after p50 ms',
  'longest ms',
  'acknowledged → received p99 ms',
  'unanswered',
  'lost',
  'another key: of',
  'refused',
  'answered after p99 ms',
]

const putClientsFirst = (serverPid: number): void => {
  const servers = new Set(treeOf(serverPid))
  try {
    for (const pid of treeOf(process.pid)) if (!servers.has(pid)) setPriority(pid, CLIENTS_PRIORITY)
  } catch {
    console.log(pc.dim('  Only root can put the clients before the server: they may offer less than is said.'))
  }
}

/** Asks little under a key that nobody else uses. The returned function stops it, and returns how it was answered. */
const askLittle = ({ client, server, admin }: World) => {
  const times: number[] = []
  let refused = 0
  const asked: Promise<void>[] = []
  const ask = async (): Promise<void> => {
    const begunAt = performance.now()
    const answer = await client.send(server().url, admin, LITTLE, { name: 'Little' })
    if (answer.row) times.push(performance.now() - begunAt)
    else refused += 1
  }
  const timer = setInterval(() => asked.push(ask()), LITTLE_MS)
  return async () => {
    clearInterval(timer)
    await Promise.all(asked)
    return { times, refused }
  }
}

const BURST_MS = 2_000
const REST_MS = 8_000

/** A row for each burst. */
const offerBursts = async (world: World, rate: number): Promise<string[][]> => {
  const rows: string[][] = []
  for (let n = 0; n < Number(options.bursts); n++) {
    const publishing = world.publish({ rate })
    await wait(BURST_MS)
    const { begunToAcknowledged: taken, refused, unanswered, missing } = await publishing()
    const count = Object.values(refused).flat().length
    const figures = [rate, taken.length + count + unanswered, count, median(taken), quantile(taken, 0.99)]
    rows.push([...figures, unanswered, missing].map(show))
    await wait(REST_MS)
  }
  return rows
}
const HEADING_OF_BURSTS = ['a second', 'offered', 'refused', 'answered after p50 ms', 'p99 ms', 'unanswered', 'lost']

for (const engine of engines) {
  if (!engine.startsWith(options.engine)) continue
  const world = await startWorld(engine)
  try {
    putClientsFirst(world.server().pid)
    const warming = world.publish({ inFlight: 20 })
    await wait(WARM_UP_MS)
    await warming()
    const rows: string[][] = []
    const rates = options.rates.split(',').map(Number)
    if (options.bursts !== '0') {
      for (const rate of rates) rows.push(...(await offerBursts(world, rate)))
      console.log(`\n${pc.bold(engine)}, bursts of ${BURST_MS / 1000} s`)
      console.log(table([HEADING_OF_BURSTS.map(text => pc.bold(text)), ...rows]))
      continue
    }
    for (const rate of rates) {
      await world.settled()
      const publishing = world.publish({ rate })
      const asking = askLittle(world)
      await wait(SECONDS * 1000)
      const little = await asking()
      const window = await publishing()
      const { begunToAcknowledged: taken, acknowledgedToReceived } = window
      const refused = Object.values(window.refused).flat()
      const figures = [
        (taken.length + refused.length + window.unanswered) / SECONDS,
        window.acceptedPerSecond,
        window.deliveredPerSecond,
        median(taken),
        quantile(taken, 0.99),
        refused.length,
        median(refused),
        Math.max(...refused, 0),
        quantile(acknowledgedToReceived, 0.99),
        window.unanswered,
        window.missing,
        little.times.length + little.refused,
        little.refused,
        quantile(little.times, 0.99),
      ]
      rows.push(figures.map(show))
      const codes = Object.entries(window.refused).map(([code, times]) => `${code} ${times.length}`)
      if (codes.length > 0) console.log(pc.dim(`  ${codes.join(', ')}`))
    }
    console.log(`\n${pc.bold(engine)}, ${SECONDS} s`)
    console.log(table([HEADING.map(text => pc.bold(text)), ...rows]))
  } finally {
    await world.stop()
  }
}
