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
import { cpuMs } from './processes.ts'

// GraphQL queries, signed, answered by Tidings as it starts by default, beside the same schema, resolvers and database
// on graphql-yoga and on Apollo Server, which authenticate nobody: node test/bench/graphql.ts [engine …]. Each server
// is a process of its own, and so is the client; they are measured in turns, and medians are compared. On a busy
// machine the CPU time of a server is the steadier figure; it does not include the database server.

const CALLERS = 16
const ROUNDS = 7

const QUERIES = [
  { name: 'one organisation', requests: 1_600, query: '{ organisations(query: {limit: 1}) { id name } }' },
  {
    name: '50 organisations with their projects',
    requests: 320,
    query: '{ organisations(query: {limit: 50}) { id name projects { id name } } }',
  },
  {
    name: 'the last 50 deliveries with webhook and attempts',
    requests: 320,
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

const SERVERS = { tidings: 'Tidings', yoga: 'graphql-yoga', apollo: 'Apollo Server' }
type ServerName = keyof typeof SERVERS

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

type Measured = { perSecond: number; cpuMs: number }

/** A server in a process of its own, and connections to it that stay open. */
class Server {
  readonly name: ServerName
  readonly #process: ChildProcess
  readonly #pool: Pool
  readonly #url: URL

  private constructor(name: ServerName, process: ChildProcess, origin: string) {
    this.name = name
    this.#process = process
    this.#url = new URL(name === 'apollo' ? '/' : '/graphql', origin)
    this.#pool = new Pool(origin, { connections: CALLERS, pipelining: 1 })
  }

  static async start(name: ServerName, env: Record<string, string>, folder: string): Promise<Server> {
    const log = join(folder, `${name}.log`)
    const stderr = openSync(log, 'w')
    const child = fork(fileURLToPath(new URL('serve.ts', rivals)), [name], {
      env: { ...process.env, ...env, TIDINGS_PORT: String(await freePort()) },
      stdio: ['ignore', 'inherit', stderr, 'ipc'],
    })
    closeSync(stderr)
    const url = await Promise.race([
      once(child, 'message').then(([{ url }]) => url as string),
      once(child, 'exit').then(() => {
        throw new Error(`${SERVERS[name]} did not start: ${readFileSync(log, 'utf8')}`)
      }),
    ])
    return new Server(name, child, url)
  }

  /** Waits until the server is idle: after its start it opens the reports of the last quarter. */
  async settled(): Promise<void> {
    for (let before = this.#cpuMs(); ; ) {
      await wait(1_000)
      const now = this.#cpuMs()
      if (now - before < 30) return
      before = now
    }
  }

  /**
   * The headers of a request, signed where somebody asks for it.
   * All are signed here, so that the client's work is the same.
   */
  headers(body: string, credentials: Credentials): Record<string, string> {
    const signed = signRequest({ method: 'POST', url: this.#url, body, credentials, at: new Date(), nonce: uuid() })
    const plain = { 'content-type': 'application/json', accept: 'application/json' }
    return this.name === 'tidings' ? { ...plain, ...signed } : plain
  }

  async ask(body: string, headers: Record<string, string>): Promise<string> {
    const answer = await this.#pool.request({ method: 'POST', path: this.#url.pathname, headers, body })
    const text = await answer.body.text()
    if (answer.statusCode !== 200 || text.includes('"errors"'))
      throw new Error(`${SERVERS[this.name]} answered ${text}`)
    return text
  }

  /**
   * Requests a second with all callers asking at once, each anew
   * when it is answered, and CPU time of the server a request.
   */
  async measure(body: string, callers: Credentials[], requests: number): Promise<Measured> {
    const each = callers.map(caller =>
      Array.from({ length: requests / callers.length }, () => this.headers(body, caller)),
    )
    const cpuBefore = this.#cpuMs()
    const startedAt = performance.now()
    await Promise.all(
      each.map(async signed => {
        for (const headers of signed) await this.ask(body, headers)
      }),
    )
    const took = performance.now() - startedAt
    return { perSecond: (requests / took) * 1000, cpuMs: (this.#cpuMs() - cpuBefore) / requests }
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

const median = (values: number[]): number => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)]!

const compare = async (engine: string): Promise<void> => {
  const fresh = await migratedDatabase(engine)
  const folder = await mkdtemp(join(tmpdir(), 'tidings-bench-'))
  const masterKey = randomBytes(32)
  const servers: Server[] = []
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
      NODE_ENV: 'production',
    }
    for (const name of Object.keys(SERVERS) as ServerName[]) servers.push(await Server.start(name, env, folder))
    for (const server of servers) await server.settled()

    for (const { name, requests, query, variables = {} } of QUERIES) {
      const body = JSON.stringify({ query, variables })
      const answers = await Promise.all(servers.map(server => server.ask(body, server.headers(body, callers[0]!))))
      for (const answer of answers) assert.deepEqual(JSON.parse(answer), JSON.parse(answers[0]!))

      const measured = new Map<ServerName, Measured[]>(servers.map(server => [server.name, []]))
      for (let round = -1; round < ROUNDS; round += 1) {
        for (const server of servers) {
          const once = await server.measure(body, callers, requests)
          // The first round warms up.
          if (round >= 0) measured.get(server.name)!.push(once)
        }
      }
      const medianOf = (server: ServerName, figure: keyof Measured) =>
        median(measured.get(server)!.map(once => once[figure]))
      const shown = servers.map(
        ({ name }) =>
          `${SERVERS[name]} ${medianOf(name, 'perSecond').toFixed(0)} requests/s ` +
          `(${medianOf(name, 'cpuMs').toFixed(2)} ms CPU each)`,
      )
      console.log(`${engine}, ${name}: ${shown.join(', ')}`)
      for (const rival of ['yoga', 'apollo'] as const) {
        const speed = medianOf('tidings', 'perSecond') / medianOf(rival, 'perSecond')
        const cpu = medianOf(rival, 'cpuMs') / medianOf('tidings', 'cpuMs')
        console.log(
          `${engine}, ${name}: ${speed.toFixed(2)} × ${SERVERS[rival]} in requests/s, ` +
            `${cpu.toFixed(2)} × in requests per CPU time (wanted: more than 1)`,
        )
      }
    }
  } finally {
    for (const server of servers) await server.stop()
    await fresh.drop()
    await rm(folder, { recursive: true, force: true })
  }
}

const wanted = process.argv.slice(2)
installRivals()
for (const engine of engines) {
  if (wanted.length > 0 && !wanted.some(name => engine.startsWith(name))) continue
  await compare(engine)
}
