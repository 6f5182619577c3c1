import { setTimeout as wait } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import pc from 'picocolors'
import type { Credentials } from '../../shared/hmac.ts'
import { engines } from '../support/databases.ts'
import type { Flood } from './attacker.ts'
import { startChild } from './child.ts'
import type { Prey } from './documents.ts'
import { median, quantile, show, table } from './figures.ts'
import { seedPrey } from './prey.ts'
import { heavyQueries } from './reader-documents.ts'
import { unlessSmallest } from './smallest.ts'
import { startWorld, type World } from './world.ts'

// The heaviest queries that the limits allow, of 1 to 20 read tokens at once, and how another tenant's small queries
// and mutations are answered meanwhile.
//
//   npm run bench -- readers [--engine sqlite] [--only patterns] [--tokens 1,3,20] [--sees all]
//     [--disguise 4] [--in-flight 2] [--window 8]

const { values: options } = parseArgs({
  options: {
    engine: { type: 'string', default: '' },
    /** Parts of names, separated by |. */
    only: { type: 'string', default: '' },
    tokens: { type: 'string', default: '3,20' },
    /** What organisations the tokens see: `one`, `all`, or `each another`. */
    sees: { type: 'string', default: 'one' },
    /** So many small queries come before each heavy one. */
    disguise: { type: 'string', default: '0' },
    'in-flight': { type: 'string', default: '2' },
    /** Seconds. */
    window: { type: 'string', default: '8' },
    /** Milliseconds between an answer and the next small question of the other tenant. */
    pause: { type: 'string', default: '25' },
    deliveries: { type: 'string', default: '20000' },
    users: { type: 'string', default: '20000' },
  },
})
const WINDOW_MS = Number(options.window) * 1000
const BASE_MS = unlessSmallest(3_000, 500)
const PAUSE_MS = Number(options.pause)
/** The most by which the 99th percentile of others may grow. */
const MOST_TIMES = 4

const SMALL = [
  '{ webhooks(query: {limit: 5}) { id url status } }',
  '{ organisations(query: {selector: {name: {_regex: "(?i)steady"}}}) { id name projects(query: {limit: 3}) { id } } }',
  '{ deliveries(query: {sort: [{createdAt: "desc"}], limit: 5}) { id status event { type } } }',
  '{ counts(resource: webhooks, by: ["status"]) { key count } }',
  '{ viewer { id } }',
]
const SUBMIT = `mutation ($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
  submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) { id } }`

type Times = { queries: number[]; mutations: number[]; refused: Map<string, number> }

let reports = 0

/** Asks little, as another tenant, one request after the other. */
const askLittle = async ({ client, server, tenant }: World, ms: number): Promise<Times> => {
  const [as] = tenant.publishers as [Credentials]
  const times: Times = { queries: [], mutations: [], refused: new Map() }
  const send = async (kind: 'queries' | 'mutations', query: string, variables: object): Promise<void> => {
    const begunAt = performance.now()
    const { code } = await client.send(server().url, as, query, variables)
    times[kind].push(performance.now() - begunAt)
    if (code) times.refused.set(code, (times.refused.get(code) ?? 0) + 1)
  }
  const until = performance.now() + ms
  const repeat = async (ask: (n: number) => Promise<void>): Promise<void> => {
    for (let n = 0; performance.now() < until; n++) {
      await ask(n)
      await wait(PAUSE_MS)
    }
  }
  const query = (n: number) => send('queries', SMALL[n % SMALL.length]!, {})
  const mutation = (n: number) => {
    reports += 1
    const quarter = `${3001 + Math.floor(reports / 4)}-${(reports % 4) + 1}`
    const projectId = tenant.projectIds[n % tenant.projectIds.length]
    return send('mutations', SUBMIT, { projectId, quarter, submitterId: tenant.submitterId })
  }
  await Promise.all([repeat(query), repeat(n => query(n + 2)), repeat(mutation)])
  return times
}

const HEADING = [
  'heaviest queries',
  'tokens',
  "others' queries",
  'p50 ms',
  'p99 ms',
  'longest ms',
  'mutations',
  'p50 ms',
  'p99 ms',
  'refused',
  'readers ended',
  'answers to the heavy',
]

const red = (text: string, isTooMuch: boolean): string => (isTooMuch ? pc.red(text) : text)

const measure = async (engine: string): Promise<void> => {
  const world = await startWorld(engine, { endpoints: 10 })
  const attacker = await startChild('attacker.ts')
  try {
    const prey: Prey = await seedPrey(world, {
      deliveries: Number(options.deliveries),
      users: Number(options.users),
      sees: options.sees as 'one' | 'all' | 'each another',
    })
    const base: Times = { queries: [], mutations: [], refused: new Map() }
    const rows: string[][] = []
    const row = (
      name: string,
      tokens: number,
      { queries, mutations, refused }: Times,
      ended: number,
      kinds: object,
    ) => {
      const isSlow = (own: number[], others: number[]) => quantile(own, 0.99) > MOST_TIMES * quantile(others, 0.99)
      const p99 = (own: number[], others: number[]) =>
        `${show(quantile(own, 0.99))} (${show(quantile(own, 0.99) / quantile(others, 0.99))} ×)`
      const told = [...refused].map(([code, count]) => `${count} ${code}`).join(', ')
      rows.push([
        name,
        String(tokens),
        String(queries.length),
        show(median(queries)),
        red(p99(queries, base.queries), isSlow(queries, base.queries)),
        show(Math.max(...queries)),
        String(mutations.length),
        show(median(mutations)),
        red(p99(mutations, base.mutations), isSlow(mutations, base.mutations)),
        red(told, told !== ''),
        ended > 0 ? String(ended) : '',
        Object.entries(kinds)
          .map(([what, count]) => `${count} × ${what}`)
          .join(', '),
      ])
      console.log(rows.at(-1)!.join('  '))
    }
    const endings = () => world.server().log().split('a reader was ended in the middle').length
    for (const { name, sents } of heavyQueries(prey)) {
      if (!options.only.split('|').some(part => name.includes(part))) continue
      for (const tokens of options.tokens.split(',').map(Number)) {
        // It knows the others, and nobody of the crowd.
        await world.restart()
        await askLittle(world, BASE_MS)
        const quiet = await askLittle(world, BASE_MS)
        base.queries.push(...quiet.queries)
        base.mutations.push(...quiet.mutations)
        const endedBefore = endings()
        const clients = Array.from({ length: tokens * Number(options['in-flight']) }, (_, n) => {
          const as = prey.crowd[n % tokens]!
          const small = Array.from({ length: Number(options.disguise) }, () => ({ as, query: SMALL[0]! }))
          return [...small, sents(as, n)]
        })
        const ask: Flood = { clients, url: world.server().url, windowMs: WINDOW_MS }
        const [times, struck] = await Promise.all([askLittle(world, WINDOW_MS), attacker.ask(ask)])
        const { kinds, faults } = struck as { kinds: Record<string, number>; faults: string[] }
        for (const fault of new Set(faults)) console.log(pc.dim(`  ${fault}`))
        row(name, tokens, times, endings() - endedBefore, kinds)
      }
    }
    row('nothing', 0, base, 0, {})
    console.log(`\n${pc.bold(engine)}: red is more than ${MOST_TIMES} × without, or refused`)
    console.log(table([HEADING.map(text => pc.bold(text)), ...rows]))
  } finally {
    attacker.stop()
    await world.stop()
  }
}

for (const engine of engines) if (engine.startsWith(options.engine)) await measure(engine)
