import assert from 'node:assert/strict'
import { type ChildProcess, fork, spawnSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { closeSync, copyFileSync, existsSync, mkdirSync, openSync, readFileSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as wait } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { Pool } from 'undici'
import { v7 as uuid } from 'uuid'
import type { Database } from '../../server/database/connect.ts'
import { createAccessToken } from '../../server/domain/access-tokens.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { seedMany } from '../../server/seed.ts'
import { type Credentials, signRequest } from '../../shared/hmac.ts'
import { engines, migratedDatabase } from '../support/databases.ts'
import { freePort } from '../support/ports.ts'
import { addWebhooks } from '../support/webhooks.ts'
import { median, quantile, show, table } from './figures.ts'
import { cpuMs } from './processes.ts'
import { unlessSmallest } from './smallest.ts'

// GraphQL queries answered by Tidings with the role `api`, otherwise as it starts by default, beside the same schema,
// resolvers and database on graphql-yoga and on Apollo Server: with a signature on each request, which the others
// check by Tidings' own middleware, and without. Each server is a process of its own, and so is the client; they are
// measured in turns, and medians are compared. On a busy machine the CPU time of a server is the steadier figure: it
// is that of its readers too, and not that of the database server.
//
//   npm run bench -- graphql [--engine sqlite] [--only 'one organisation'] [--rounds 7] [--requests 1600]
//     [--warm-up 8]

const { values: options } = parseArgs({
  options: {
    engine: { type: 'string', default: '' },
    /** What the names of the queries begin with. */
    only: { type: 'string', default: '' },
    rounds: { type: 'string', default: '7' },
    /** Of a round of the small query. */
    requests: { type: 'string', default: '1600' },
    /** Seconds of each query on each server: three readers compile their code three times. */
    'warm-up': { type: 'string', default: '8' },
  },
})

const CALLERS = unlessSmallest(16, 2)
const ROUNDS = Number(options.rounds)
const WARM_UP_MS = Number(options['warm-up']) * 1000

type Query = { name: string; part: number; query: string; variables?: object }

/** `part`: of the requests of the small query. */
const QUERIES: Query[] = [
  { name: 'one organisation', part: 1, query: '{ organisations(query: {limit: 1}) { id name } }' },
  {
    name: '50 organisations with their projects',
    part: 0.2,
    query: '{ organisations(query: {limit: 50}) { id name projects { id name } } }',
  },
  {
    name: '1,000 organisations with their projects',
    part: 0.02,
    query: '{ organisations(query: {limit: 1000}) { id name projects { id name } } }',
  },
  {
    name: 'the last 50 deliveries with webhook and attempts',
    part: 0.2,
    query: `query Deliveries($query: MangoQuery) {
      deliveries(query: $query) {
        id eventType status attemptCount createdAt finishedAt
        webhook { id url status }
        attempts { number startedAt durationMs statusCode failure }
      }
    }`,
    variables: { query: { sort: [{ createdAt: 'desc' }], limit: 50 } },
  },
]

const MODES = ['signed', 'unsigned'] as const
const SERVERS = { tidings: 'Tidings', yoga: 'graphql-yoga', apollo: 'Apollo Server' }
type ServerName = keyof typeof SERVERS
type Mode = (typeof MODES)[number]

const rivals = new URL('rivals/', import.meta.url)
const installation = new URL('../../node_modules/.bench-rivals/', import.meta.url)

/** Installs the other servers in a folder of their own, unless the packages of their lock file are there. */
const installRivals = (): void => {
  const wanted = JSON.parse(readFileSync(new URL('package-lock.json', rivals), 'utf8')).packages
  const found = new URL('node_modules/.package-lock.json', installation)
  const installed = existsSync(found) ? JSON.parse(readFileSync(found, 'utf8')).packages : {}
  if (Object.keys(wanted).every(name => name === '' || installed[name]?.version === wanted[name].version)) return
  mkdirSync(installation, { recursive: true })
  for (const file of ['package.json', 'package-lock.json']) {
    copyFileSync(new URL(file, rivals), new URL(file, installation))
  }
  const { status } = spawnSync('npm', ['ci', '--ignore-scripts', '--no-audit', '--no-fund'], {
    cwd: installation,
    stdio: ['ignore', 2, 2],
  })
  if (status !== 0) throw new Error(`npm ci failed in ${fileURLToPath(installation)}`)
}

const seed = async (database: Database): Promise<void> => {
  const now = Date.now()
  await seedMany(database, { organisations: 1_000, projects: 3_000, users: 0 }, now, () => {})
  const times = { created_at: now, updated_at: now }
  const token = {
    id: uuid(),
    name: 'owner',
    api_key: 'tk_owner',
    secret_sealed: '',
    sees_all_organisations: 1,
    ...times,
  }
  await database.knex('access_tokens').insert(token)
  const webhookIds = await addWebhooks(
    database.knex,
    Array.from({ length: 20 }, (_, n) => ({
      accessTokenId: token.id,
      url: `https://receiver-${n}.example/webhook`,
      createdAt: now,
    })),
  )
  const deliveries = Array.from({ length: 200 }, (_, n) => ({
    id: uuid(),
    event_id: uuid(),
    webhook_id: webhookIds[n % webhookIds.length],
    event_type: 'project_report_quarterly_submitted',
    status: 'delivered',
    attempt_count: 2,
    created_at: now + n,
    finished_at: now + n + 5_100,
  }))
  await database.knex('deliveries').insert(deliveries)
  await database.knex('attempts').insert(
    deliveries.flatMap(({ id, created_at }) => [
      { delivery_id: id, number: 1, started_at: created_at, duration_ms: 40, status_code: 503, response: 'Busy' },
      { delivery_id: id, number: 2, started_at: created_at + 5_040, duration_ms: 60, status_code: 200, response: '' },
    ]),
  )
}

type Measured = { perSecond: number; cpuMs: number; ms: number[] }

/** A server in a process of its own, and connections to it that stay open. */
class Server {
  readonly name: ServerName
  readonly mode: Mode
  readonly #process: ChildProcess
  readonly #pool: Pool
  readonly #url: URL

  private constructor(name: ServerName, mode: Mode, process: ChildProcess, origin: string) {
    this.name = name
    this.mode = mode
    this.#process = process
    this.#url = new URL(name === 'apollo' && mode === 'unsigned' ? '/' : '/graphql', origin)
    this.#pool = new Pool(origin, { connections: CALLERS, pipelining: 1 })
  }

  static async start(name: ServerName, mode: Mode, env: Record<string, string>, folder: string): Promise<Server> {
    const log = join(folder, `${name}-${mode}.log`)
    const stderr = openSync(log, 'w')
    const child = fork(fileURLToPath(new URL('serve.ts', rivals)), [name, mode], {
      env: { ...process.env, ...env, TIDINGS_PORT: String(await freePort()) },
      stdio: ['ignore', 'inherit', stderr, 'ipc'],
    })
    closeSync(stderr)
    const url = await Promise.race([
      once(child, 'message').then(([{ url }]) => url as string),
      once(child, 'exit').then(() => {
        throw new Error(`${SERVERS[name]}, ${mode}, did not start: ${readFileSync(log, 'utf8')}`)
      }),
    ])
    return new Server(name, mode, child, url)
  }

  /** Waits until the server is idle: its start is over. */
  async settled(): Promise<void> {
    for (let before = this.#cpuMs(); ; ) {
      await wait(1_000)
      const now = this.#cpuMs()
      if (now - before < 30) return
      before = now
    }
  }

  /** The headers of a request. All are signed, whoever asks for it, so that the client's work is the same. */
  headers(body: string, callers: Credentials[], nth: number): Record<string, string> {
    const caller = nth % callers.length
    const credentials = callers[caller]!
    const signed = signRequest({ method: 'POST', url: this.#url, body, credentials, at: new Date(), nonce: uuid() })
    const plain = { 'content-type': 'application/json', accept: 'application/json' }
    return this.mode === 'signed' ? { ...plain, ...signed } : { ...plain, 'x-caller': String(caller) }
  }

  async ask(body: string, headers: Record<string, string>): Promise<string> {
    const answer = await this.#pool.request({ method: 'POST', path: this.#url.pathname, headers, body })
    const text = await answer.body.text()
    if (answer.statusCode !== 200 || text.includes('"errors"'))
      throw new Error(`${SERVERS[this.name]}, ${this.mode}, answered ${answer.statusCode}: ${text}`)
    return text
  }

  /**
   * Requests a second with all callers asking at once, each anew when it is answered, and CPU time of the server a
   * request; then milliseconds of requests one at a time.
   */
  async measure(body: string, callers: Credentials[], requests: number): Promise<Measured> {
    const each = callers.map((_, caller) =>
      Array.from({ length: Math.ceil(requests / callers.length) }, () => this.headers(body, callers, caller)),
    )
    const asked = each.flat().length
    const cpuBefore = this.#cpuMs()
    const startedAt = performance.now()
    await Promise.all(
      each.map(async signed => {
        for (const headers of signed) await this.ask(body, headers)
      }),
    )
    const took = performance.now() - startedAt
    const cpuMs = (this.#cpuMs() - cpuBefore) / asked
    const ms: number[] = []
    for (let nth = 0; nth < requests / ALONE; nth++) {
      const headers = this.headers(body, callers, nth)
      const askedAt = performance.now()
      await this.ask(body, headers)
      ms.push(performance.now() - askedAt)
    }
    return { perSecond: (asked / took) * 1000, cpuMs, ms }
  }

  /** Of its readers too. */
  #cpuMs(): number {
    return cpuMs(this.#process.pid!)
  }

  async stop(): Promise<void> {
    await this.#pool.close()
    this.#process.disconnect()
    await once(this.#process, 'exit')
  }
}

/** Of so many requests of a round, one is sent while no other is under way. */
const ALONE = 5

const HEADING = ['', 'requests/s', '× Tidings', 'per CPU second', '× Tidings', 'alone, ms p50', 'p99']

/** Measures one query on servers in turns, and says how they compare. */
const compareQuery = async (
  title: string,
  { query, variables = {}, part }: Query,
  servers: Server[],
  as: Credentials[],
) => {
  const body = JSON.stringify({ query, variables })
  const answers = await Promise.all(servers.map(server => server.ask(body, server.headers(body, as, 0))))
  for (const answer of answers) assert.deepEqual(JSON.parse(answer), JSON.parse(answers[0]!))

  const measured = new Map<Server, Measured[]>(servers.map(server => [server, []]))
  const requests = Number(options.requests) * part
  for (const server of servers) {
    const warmAt = performance.now() + WARM_UP_MS
    do await server.measure(body, as, requests)
    while (performance.now() < warmAt)
  }
  for (let round = 0; round < ROUNDS; round += 1)
    for (const server of servers) measured.get(server)!.push(await server.measure(body, as, requests))
  const found = servers.map(server => {
    const rounds = measured.get(server)!
    const perSecond = median(rounds.map(round => round.perSecond))
    const perCpuSecond = 1000 / median(rounds.map(round => round.cpuMs))
    return { name: SERVERS[server.name], perSecond, perCpuSecond, ms: rounds.flatMap(round => round.ms) }
  })
  const [ours] = found
  const rows = found.map(({ name, perSecond, perCpuSecond, ms }) => [
    name,
    ...[perSecond, perSecond / ours!.perSecond, perCpuSecond, perCpuSecond / ours!.perCpuSecond].map(show),
    ...[quantile(ms, 0.5), quantile(ms, 0.99)].map(show),
  ])
  console.log(`\n${title}\n${table([HEADING, ...rows])}`)
}

const compare = async (engine: string): Promise<void> => {
  const fresh = await migratedDatabase(engine)
  const folder = await mkdtemp(join(tmpdir(), 'tidings-bench-'))
  const masterKey = randomBytes(32)
  try {
    await seed(fresh.database)
    const sealer = createSealer([masterKey])
    const callers = await Promise.all(
      Array.from({ length: CALLERS }, (_, n) =>
        createAccessToken(fresh.database.knex, sealer, { name: `caller ${n}`, permissions: ['read'] }, Date.now()),
      ),
    )
    const env = {
      TIDINGS_DATABASE_URL: fresh.url,
      TIDINGS_MASTER_KEY: masterKey.toString('base64'),
      TIDINGS_HOME: folder,
      // Its deliveries would count as what queries cost.
      TIDINGS_ROLES: 'api',
      NODE_ENV: 'production',
    }
    for (const mode of MODES) {
      const servers: Server[] = []
      try {
        for (const name of Object.keys(SERVERS) as ServerName[])
          servers.push(await Server.start(name, mode, env, folder))
        for (const server of servers) await server.settled()
        for (const query of QUERIES.filter(({ name }) => name.startsWith(options.only)))
          await compareQuery(`${engine}, ${mode}: ${query.name}`, query, servers, callers)
      } finally {
        for (const server of servers) await server.stop()
      }
    }
  } finally {
    await fresh.drop()
    await rm(folder, { recursive: true, force: true })
  }
}

installRivals()
for (const engine of engines) if (engine.startsWith(options.engine)) await compare(engine)
