import { randomBytes } from 'node:crypto'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { connect, type Database } from '../../server/database/connect.ts'
import { createAccessToken } from '../../server/domain/access-tokens.ts'
import type { AccessToken } from '../../server/domain/permissions.ts'
import { deliveries } from '../../server/domain/resources.ts'
import { visibleTo } from '../../server/domain/visibility.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { find } from '../../server/mango/find.ts'
import type { MangoQuery } from '../../server/mango/query.ts'
import { seedMany } from '../../server/seed.ts'
import { seedHistory } from '../../server/seed-history.ts'
import { startFixture } from '../delivery/fixture.ts'
import { masterKey } from '../delivery/server-process.ts'
import { engines, migratedDatabase } from '../support/databases.ts'
import { byProcesses, claimTimer } from './backlog.ts'
import { type EventCpu, measureEventCpu } from './event-cpu.ts'
import { median } from './figures.ts'
import { startReceivers } from './receivers.ts'
import { barPlot, linePlot } from './svg-plot.ts'

// Measures the figures of docs/performance.md, keeps them as JSON beside the plots, and draws the plots.
//
//   npm run bench -- --plot [--engine mysql] [--processes 4] [--deliveries 10000] [--rows 300000] [--seconds 10]
//   npm run bench -- --plot --draw        draws again from the JSON that is there

const { values: options } = parseArgs({
  options: {
    engine: { type: 'string', default: '' },
    processes: { type: 'string', default: '4' },
    deliveries: { type: 'string', default: '10000' },
    rows: { type: 'string', default: '300000' },
    seconds: { type: 'string', default: '10' },
    folder: { type: 'string', default: fileURLToPath(new URL('../../docs/performance', import.meta.url)) },
    draw: { type: 'boolean', default: false },
  },
})

type Point = { x: number; y: number }
type Figures = {
  measured: { at: string; engine: string; cores: number; processor: string; node: string; minutes: number }
  /** Deliveries a second, by the number of processes. */
  processes: Point[]
  /** Milliseconds of a claim of 200, by rows in the queue that are not due. */
  claim: Point[]
  /** Milliseconds of a query, by rows of deliveries. */
  queries: Record<string, Point[]>
  /** CPU milliseconds an event, by part. */
  cpu: Record<string, Record<string, number>>
}

const ENDPOINTS = 100

const measureProcesses = async (engine: string): Promise<Point[]> => {
  const receivers = await startReceivers(ENDPOINTS)
  const fixture = await startFixture(engine, { now: () => Date.now() }, { masterKey })
  try {
    const points: Point[] = []
    for (let count = 1; count <= Number(options.processes); count++) {
      for (const url of receivers.urls) await fixture.webhook(url)
      points.push({ x: count, y: await byProcesses(fixture, count, Number(options.deliveries) / ENDPOINTS) })
      await fixture.reset()
    }
    return points
  } finally {
    await fixture.stop()
    receivers.stop()
  }
}

/** 1,000, 10,000 … up to the requested rows. */
const sizes = (from: number): number[] => {
  const most = Number(options.rows)
  const found: number[] = []
  for (let size = from; size < most; size *= 10) found.push(size)
  return [...found, most]
}

const measureClaims = async (engine: string): Promise<Point[]> => {
  const fixture = await startFixture(engine, { now: () => Date.now() })
  try {
    const claimMs = await claimTimer(fixture)
    const points: Point[] = []
    for (const size of sizes(1000)) points.push({ x: size, y: await claimMs(size) })
    return points
  } finally {
    await fixture.stop()
  }
}

const QUERIES: Record<string, MangoQuery> = {
  'newest 50': { sort: [{ id: 'desc' }], limit: 50 },
  'newest 50 that are pending': { selector: { status: 'pending' }, sort: [{ id: 'desc' }], limit: 50 },
  'newest 50 with three attempts or more': {
    selector: { attemptCount: { $gte: 3 } },
    sort: [{ id: 'desc' }],
    limit: 50,
  },
}
const QUERY_ROUNDS = 9

/** Seeds half as many deliveries as the claim's figure has rows, because their rows are larger. */
const measureQueries = async (engine: string): Promise<Record<string, Point[]>> => {
  const { database: migrated, url, drop } = await migratedDatabase(engine)
  const now = Date.now()
  const found: Record<string, Point[]> = Object.fromEntries(Object.keys(QUERIES).map(name => [name, []]))
  try {
    const admin = await adminOf(migrated, now)
    await seedMany(migrated, { organisations: 100, projects: 500, users: 50 }, now, () => {})
    const related = visibleTo(admin)
    const database = await connect(url, { poolSize: 1 })
    try {
      let there = 0
      for (const size of sizes(1000).map(each => each / 2)) {
        const history = { accessTokenId: admin.id, days: 30, now }
        const added = { events: Math.round((size - there) / 5), deliveries: size - there }
        await seedHistory(migrated, { webhooks: there === 0 ? 100 : 0, ...added }, history, () => {})
        there = size
        if (!database.dialect.isEmbedded) await migrated.knex.raw('ANALYZE TABLE deliveries, delivery_queue')
        for (const [name, query] of Object.entries(QUERIES)) {
          const times: number[] = []
          for (let n = 0; n < QUERY_ROUNDS; n++) {
            const startedAt = performance.now()
            await find(database.knex, deliveries, query, related(deliveries), { related, now: Date.now() })
            times.push(performance.now() - startedAt)
          }
          found[name]!.push({ x: size, y: median(times) })
        }
      }
      return found
    } finally {
      await database.close()
    }
  } finally {
    await drop()
  }
}

const adminOf = async (database: Database, now: number): Promise<AccessToken> => {
  const given = { name: 'plots', permissions: ['read' as const], organisationIds: undefined }
  const { id } = await createAccessToken(database.knex, createSealer([randomBytes(32)]), given, now)
  return { ...given, id, seesAllOrganisations: true } as unknown as AccessToken
}

/** Which part of the figure a place of the profile belongs to; the first that fits. */
const PARTS: [part: string, places: RegExp][] = [
  [
    'HTTP and GraphQL',
    /^(server\/(http|graphql|readers|live)|graphql|@graphql-tools|koa|@koa|koa-compose|node:.*http)/,
  ],
  ['signatures', /^(jose|node:crypto|server\/keys|native .*(sign|hmac|hash))/i],
  ['rules and queries', /^(server\/(domain|mango|metrics|tracing)|server$|shared|dataloader|uuid|pino)/],
  [
    'database driver and sockets',
    /^(server\/database|knex|mysql2|native .*writev?|node:net|node:sqlite|node:internal)/,
  ],
  ['delivery', /^(server\/delivery|undici|ipaddr)/],
]
const OTHER = 'Node itself'

/** Kinds of statements, by how they begin. */
const KINDS: [kind: string, digests: RegExp][] = [
  ['reads', /^\(?(SELECT|WITH|SHOW)/i],
  ['inserts', /^(INSERT|REPLACE)/i],
  ['updates and deletes', /^(UPDATE|DELETE)/i],
  ['commits', /^(BEGIN|COMMIT|START|ROLLBACK)/i],
]

/** Splits a sum in proportion to the shares of its parts. */
const split = (sum: number, shares: [name: string, share: number][]): Record<string, number> => {
  const whole = shares.reduce((total, [, share]) => total + share, 0)
  const parts: Record<string, number> = {}
  for (const [name, share] of shares) parts[name] = (parts[name] ?? 0) + (sum * share) / whole
  return parts
}

const cpuParts = ({ server, database, places, digests }: EventCpu): Figures['cpu'] => {
  const partOf = (place: string) => PARTS.find(([, pattern]) => pattern.test(place))?.[0] ?? OTHER
  const kindOf = (digest: string) => KINDS.find(([, pattern]) => pattern.test(digest))?.[0] ?? 'others'
  const inOrder = [...PARTS.map(([part]) => part), OTHER]
  const ofServer = split(
    server,
    [...places].map(([place, ms]) => [partOf(place), ms]),
  )
  const bars = { server: Object.fromEntries(inOrder.map(part => [part, ofServer[part] ?? 0])) }
  if (Number.isNaN(database)) return bars
  // Without timed statements the database is one part.
  const timed: [string, number][] = digests.map(({ digest, ms }) => [kindOf(digest), ms])
  return { ...bars, database: split(database, timed.length > 0 ? timed : [['statements', 1]]) }
}

const measure = async (engine: string): Promise<Figures> => {
  const startedAt = Date.now()
  const told = (what: string) =>
    console.log(`${engine}, ${((Date.now() - startedAt) / 60_000).toFixed(1)} min: ${what}`)
  told('deliveries by processes')
  const processes = await measureProcesses(engine)
  told('claims by rows')
  const claim = await measureClaims(engine)
  told('queries by rows')
  const queries = await measureQueries(engine)
  told('CPU of an event')
  const cpu = cpuParts(await measureEventCpu(engine, { seconds: Number(options.seconds), pace: { inFlight: 100 } }))
  const measured = {
    at: new Date().toISOString().slice(0, 10),
    engine,
    cores: os.cpus().length,
    processor: os.cpus()[0]!.model.trim(),
    node: process.versions.node,
    minutes: Math.ceil((Date.now() - startedAt) / 60_000),
  }
  return { measured, processes, claim, queries, cpu }
}

const file = (name: string): string => path.join(options.folder, name)

const draw = ({ measured, processes, claim, queries, cpu }: Figures): void => {
  const on = `${measured.engine}, ${measured.cores} cores`
  const plots = {
    processes: linePlot(
      `Deliveries a second, by server processes (${on})`,
      { title: 'processes' },
      { title: 'deliveries a second' },
      [{ name: 'signed, sent, acknowledged and recorded', points: processes }],
    ),
    claim: linePlot(
      `Time of a claim of 200 deliveries (${on})`,
      { title: 'rows in the queue that are not due', isLogarithmic: true },
      { title: 'milliseconds' },
      [{ name: 'claim of 200 due deliveries', points: claim }],
    ),
    queries: linePlot(
      `Time of a query (${on})`,
      { title: 'rows of deliveries', isLogarithmic: true },
      { title: 'milliseconds' },
      Object.entries(queries).map(([name, points]) => ({ name, points })),
    ),
    cpu: barPlot(
      `CPU of an event (${on})`,
      'ms',
      Object.entries(cpu).map(([name, parts]) => ({ name, parts })),
    ),
  }
  for (const [name, svg] of Object.entries(plots)) writeFileSync(file(`${name}.svg`), svg)
}

mkdirSync(options.folder, { recursive: true })
if (!options.draw) {
  const engine = engines.find(each => each.startsWith(options.engine) && (options.engine || each !== 'sqlite'))
  if (!engine)
    throw new Error(`No engine begins with ${JSON.stringify(options.engine)}. There are: ${engines.join(', ')}.`)
  writeFileSync(file('figures.json'), `${JSON.stringify(await measure(engine), null, 2)}\n`)
}
const figures = JSON.parse(readFileSync(file('figures.json'), 'utf8')) as Figures
draw(figures)
console.log(`${Object.keys(figures).length} figures and their plots are in ${path.resolve(options.folder)}`)
