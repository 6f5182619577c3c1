import { setTimeout as wait } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import pc from 'picocolors'
import { request } from 'undici'
import type { Credentials } from '../../shared/hmac.ts'
import { engines } from '../support/databases.ts'
import { signed } from './client.ts'
import { median, quantile, show, table } from './figures.ts'
import { makeDue } from './hanging-webhooks.ts'
import { unlessSmallest } from './smallest.ts'
import { startWorld, type World } from './world.ts'

// Measures the latency of others' events while webhooks and pings hang.
//
// npm run bench -- hanging [--engine mysql] [--concurrency 100] [--webhooks 40,400] [--pings 230] [--rate 5] [--seconds
// 10]

const { values: options } = parseArgs({
  options: {
    engine: { type: 'string', default: '' },
    concurrency: { type: 'string', default: '100' },
    webhooks: { type: 'string', default: '40,400' },
    pings: { type: 'string', default: '230' },
    healthy: { type: 'string', default: '10000' },
    rate: { type: 'string', default: '5' },
    seconds: { type: 'string', default: '10' },
  },
})
const DUE_OF_EACH = 10
/** By then the hanging requests have taken all places that they get. */
const FILL_MS = unlessSmallest(3_000, 300)

type Trouble = { name: string; make: (world: World) => Promise<() => Promise<string>> }

const quietly = async (): Promise<string> => ''

const troubles: Trouble[] = [
  { name: 'nothing', make: async () => quietly },
  ...options.webhooks.split(',').map(count => ({
    name: `${count} webhooks hang, ${DUE_OF_EACH} due of each`,
    make: async (world: World) => {
      await makeDue(world, { webhooks: Number(count), deliveries: DUE_OF_EACH })
      await world.restart()
      return quietly
    },
  })),
  {
    name: `${options.pings} pings in flight to an endpoint that hangs`,
    make: async world => {
      const { token, webhookIds } = await makeDue(world, { webhooks: 1, deliveries: 0 })
      const variables = { id: webhookIds[0] }
      return inFlight(world, token, 'mutation ($id: UUID!) { pingWebhook(id: $id) { id } }', variables)
    },
  },
  {
    name: `${options.pings} createWebhook of an endpoint that hangs`,
    make: async world => {
      const { token, url } = await makeDue(world, { webhooks: 1, deliveries: 0 })
      return inFlight(world, token, 'mutation ($url: String!) { createWebhook(url: $url) { id } }', { url })
    },
  },
  {
    name: `${options.healthy} healthy webhooks of one tenant, 1 due of each`,
    make: async world => {
      await makeDue(world, { webhooks: Number(options.healthy), deliveries: 1, path: 'aside' })
      await world.restart()
      return quietly
    },
  },
]

/** Keeps a number of requests in flight. The returned function ends them and returns their answers. */
const inFlight = async (world: World, as: Credentials, query: string, variables: object) => {
  const { url: base } = world.server()
  const answers = new Map<string, number>()
  const gone = new AbortController()
  const one = async (): Promise<void> => {
    while (!gone.signal.aborted) {
      const { url, options: given } = signed(base, as, query, variables)
      try {
        const { statusCode, body } = await request(url, { ...given, signal: gone.signal })
        const code = /"code":"(\w+)"/.exec(await body.text())?.[1] ?? 'done'
        answers.set(`${statusCode} ${code}`, (answers.get(`${statusCode} ${code}`) ?? 0) + 1)
        // A refused request is not repeated at once.
        await wait(250)
      } catch {
        await wait(250)
      }
    }
  }
  const all = Array.from({ length: Number(options.pings) }, one)
  return async () => {
    gone.abort()
    await Promise.all(all)
    return [...answers].map(([answer, count]) => `${count} × ${answer}`).join(', ')
  }
}

const measure = async (engine: string, { make }: Trouble, isFirst: boolean): Promise<string[]> => {
  const world = await startWorld(engine, { env: { TIDINGS_CONCURRENCY: options.concurrency } })
  try {
    const end = await make(world)
    await wait(isFirst ? 1_000 : FILL_MS)
    const publishing = world.publish({ rate: Number(options.rate) })
    await wait(Number(options.seconds) * 1000)
    const window = await publishing()
    const answers = await end()
    const sent = window.accepted + window.unanswered
    const received = window.accepted - window.missing
    const text = `${received} of ${sent}`
    return [
      received < sent ? pc.red(text) : text,
      show(median(window.begunToReceived)),
      show(quantile(window.begunToReceived, 0.99)),
      show(Math.max(...window.begunToReceived)),
      answers,
    ]
  } finally {
    await world.stop()
  }
}

for (const engine of engines) {
  if (!engine.startsWith(options.engine)) continue
  const rows: string[][] = []
  for (const trouble of troubles) {
    const row = [trouble.name, ...(await measure(engine, trouble, rows.length === 0))]
    console.log(row.join('  '))
    rows.push(row)
  }
  const heading = ['', "others' events received", 'p50 ms', 'p99 ms', 'most ms', 'answers']
  console.log(`\n${pc.bold(engine)}, concurrency ${options.concurrency}, ${options.rate} events a second`)
  console.log(table([heading, ...rows]))
}
