import { randomBytes } from 'node:crypto'
import path from 'node:path'
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { setTimeout as wait } from 'node:timers/promises'
import { startThrowAwayDatabase } from '../../../scripts/throw-away-database.js'
import { connect } from '../../../server/database/connect.ts'
import { createAccessToken } from '../../../server/domain/access-tokens.ts'
import { createSealer } from '../../../server/keys/seal.ts'
import { databaseFile } from '../../../shared/database-url.ts'
import { eventually } from '../../support/eventually.ts'
import { giveSchema } from '../../support/templates.ts'
import { type DatabaseProxy, startProxy } from '../proxy.ts'
import { type Answer, type Client, type Credentials, clientOf, done } from './client.ts'
import { type Endpoint, startEndpoint } from './endpoint.ts'
import { type Server, startServer, startTidings, type Tidings } from './processes.ts'
import { createPullers } from './pullers.ts'
import { type Engine, openSql, type Sql } from './sql.ts'

/** The environment of a case: an empty database with the schema, an admin token, and everything that it starts. */
export type Stage = {
  engine: Engine
  sql: Sql
  databaseUrl: string
  masterKey: string
  /** Whether clients pull what endpoints are to have: see `pullers.ts`. */
  isPulled: boolean
  admin: Credentials
  /** The size of the case, where `--size` names none. */
  size(byDefault: number): number
  /** Starts a server that is ready. `by` is the way to its database. */
  server(options?: ServerOptions): Promise<Server>
  /** As `server`, without waiting for it. */
  serverStarting(options?: ServerOptions): Promise<Server>
  proxy(): Promise<DatabaseProxy>
  endpoint(...args: Parameters<typeof startEndpoint>): Promise<Endpoint>
  /** Starts the command line at a server. */
  cli(server: Server, args: string[]): Tidings
  /** Starts a command of operators on a database; by default this stage's. */
  operator(args: string[], databaseUrl?: string, env?: Record<string, string>): Tidings
  client(server: Server, credentials?: Credentials): Client
  world(client: Client): Promise<World>
  /**
   * How long after a stop an endpoint may see a request begin: a second, and as long as this process, whose endpoints
   * they are, has stood still at most. The machine may have been full. What clients pull begins by a server's clock.
   */
  stoppedWithinMs(): number
  /** Another stage of the same kind, with a database server of its own. */
  apart(): Promise<Stage>
  /** Registers work for the end of the case, whatever its result. */
  after(work: () => unknown): void
  /** Logs what the case is doing. */
  say(line: string): void
  /** Records whether an invariant holds, with what was seen. */
  expect(sentence: string, holds: boolean, seen: string): void
}

export type ServerOptions = {
  roles?: string
  by?: DatabaseProxy
  /** The database by another address, such as that of another user. */
  databaseUrl?: string
  env?: Record<string, string>
  clockAheadMs?: number
}

/** Projects, each in an organisation of its own, and what can be done to them. */
export type World = {
  projects: { organisationId: string; projectId: string }[]
  userId: string
  /** Submits the report of a quarter that has not been submitted, of a project by its number. */
  submit(client: Client, project?: number): ReturnType<Client>
  /** Submits so many, 16 at once, and throws if one fails. */
  submitMany(client: Client, count: number, project?: number): Promise<string[]>
}

export type Expectation = { sentence: string; holds: boolean; seen: string }

const WORLD_PROJECTS = 3
const AT_ONCE = 16

export const SUBMIT = `mutation ($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
  submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) { id } }`
export const APPROVE = `mutation ($id: UUID!, $approverId: UUID!) {
  approveProjectReport(id: $id, approverId: $approverId) { id } }`
export const CREATE_WEBHOOK = `mutation (
  $url: String!, $events: [EventType!], $organisationIds: [UUID!], $projectIds: [UUID!]) {
  createWebhook(url: $url, events: $events, organisationIds: $organisationIds, projectIds: $projectIds) { id } }`
export const UPSERT_WEBHOOK = `mutation (
  $id: UUID, $url: String, $events: [EventType!],
  $organisationIds: [UUID!], $projectIds: [UUID!], $status: WebhookStatus) {
  upsertWebhook(
    id: $id, url: $url, events: $events,
    organisationIds: $organisationIds, projectIds: $projectIds, status: $status) {
    id url status events organisationIds } }`
export const PING = 'mutation ($id: UUID!) { pingWebhook(id: $id) { id status } }'
export const RECOVER = `mutation ($webhookId: UUID!, $since: DateTime!) {
  recoverDeliveries(webhookId: $webhookId, since: $since) { queued resumeSince } }`
export const REDELIVER = 'mutation ($deliveryId: UUID!) { redeliver(deliveryId: $deliveryId) { id } }'
export const UPSERT_ORGANISATION =
  'mutation ($id: UUID, $name: String!) { upsertOrganisation(id: $id, name: $name) { id name } }'
export const UPSERT_PROJECT = `mutation ($id: UUID, $organisationId: UUID!, $name: String!) {
  upsertProject(id: $id, organisationId: $organisationId, name: $name) { id name organisationId } }`
export const UPSERT_USER = 'mutation ($id: UUID, $name: String!) { upsertUser(id: $id, name: $name) { id name } }'
export const CREATE_TOKEN = `mutation ($name: String!, $permissions: [Permission!]!, $organisationIds: [UUID!]) {
  createAccessToken(name: $name, permissions: $permissions, organisationIds: $organisationIds) {
    accessToken { id } apiKey secret } }`
export const REVOKE = 'mutation ($id: UUID!) { revokeAccessToken(id: $id) { id } }'

/** Makes an access token by another. */
export const createToken = async (
  client: Client,
  name: string,
  permissions: string[],
  organisationIds?: string[],
): Promise<Credentials> => {
  const { accessToken, apiKey, secret } = (await done(
    client(CREATE_TOKEN, { name, permissions, organisationIds }),
  )) as unknown as { accessToken: { id: string }; apiKey: string; secret: string }
  return { id: accessToken.id, apiKey, apiSecret: secret }
}

/** Patience with a machine that has much else to do: it is no promise, and what comes sooner is not waited for. */
export const PATIENCE_MS = 120_000

/** Waits until something holds. Throws, saying what, when it does not within `withinMs`. */
export const until = async (
  what: string,
  holds: () => boolean | Promise<boolean>,
  withinMs = PATIENCE_MS,
  everyMs = 50,
): Promise<void> => {
  const giveUpAt = Date.now() + withinMs
  while (!(await holds())) {
    if (Date.now() > giveUpAt) throw new Error(`Waited ${withinMs} ms in vain until ${what}`)
    await wait(everyMs)
  }
}

/** Whether something comes to hold within a time. */
export const within = (ms: number, holds: () => boolean | Promise<boolean>): Promise<boolean> =>
  until('it holds', holds, ms).then(
    () => true,
    () => false,
  )

const NOT_IN_TIME: readonly unknown[] = ['UNAVAILABLE', 'QUERY_TOO_COMPLEX']

/** The answer to a query that is not complex. A busy machine may give it no process in time, or that no time. */
export const untilAnswered = (ask: () => Promise<Answer>): Promise<Answer> =>
  eventually('an answer', ask, ({ code }) => !NOT_IN_TIME.includes(code), { timeoutMs: PATIENCE_MS, everyMs: 500 })

/** The result of a promise, or undefined if it takes longer. */
export const atMost = <T>(ms: number, promise: Promise<T>): Promise<T | undefined> =>
  Promise.race([promise, wait(ms, undefined, { ref: false })])

/** A signal that one sends and many wait for. */
export const gate = (): { opened: Promise<void>; open: () => void } => {
  const { promise, resolve } = Promise.withResolvers<void>()
  return { opened: promise, open: resolve }
}

/** Waits until nothing is pending. */
export const untilSettled = (stage: Stage, withinMs = PATIENCE_MS): Promise<void> =>
  until(
    'nothing is owed',
    async () => (await stage.sql.number('SELECT COUNT(*) FROM delivery_queue')) === 0,
    withinMs,
    200,
  )

/** Runs `count` tasks with limited concurrency. */
export const times = async <T>(count: number, work: (n: number) => Promise<T>, atOnce = AT_ONCE): Promise<T[]> => {
  const results: T[] = []
  let next = 0
  const worker = async () => {
    while (next < count) {
      const n = next++
      results[n] = await work(n)
    }
  }
  await Promise.all(Array.from({ length: Math.min(atOnce, count) }, worker))
  return results
}

/** A percentile. */
export const percentile = (values: number[], part: number): number => {
  const sorted = values.toSorted((a, b) => a - b)
  return Math.round(sorted[Math.min(sorted.length - 1, Math.ceil((part / 100) * sorted.length) - 1)] ?? Number.NaN)
}

export type StageOptions = {
  /** A server of the MySQL family, or the address of an empty SQLite file. */
  url: string
  size: number | undefined
  isPulled?: boolean
  onLine: (line: string) => void
  include: (pid: number) => void
  exclude: (pid: number) => void
}

const STOPPED_WITHIN_MS = 1_000
const LAST_LINES = 20
const LONGEST_LINE = 1_000

const lastLines = (text: string): string[] =>
  text
    .split('\n')
    .filter(Boolean)
    .slice(-LAST_LINES)
    .map(line => line.slice(0, LONGEST_LINE))

/** Sets up a stage; `clear` ends all that was started on it, which has `written` these lines last. */
export const openStage = async (
  given: StageOptions,
): Promise<{ stage: Stage; expectations: Expectation[]; written(): string[]; clear(): Promise<void> }> => {
  const cleaning: (() => unknown)[] = []
  const after = (work: () => unknown): void => void cleaning.push(work)
  const clear = async () => {
    for (const work of cleaning.reverse()) {
      try {
        await work()
      } catch (error) {
        given.onLine(`clearing up: ${(error as Error).message}`)
      }
    }
  }
  try {
    const databaseUrl = await createDatabase(given.url, after)
    await giveSchema(databaseUrl, given.url)
    const sql = await openSql(databaseUrl)
    after(sql.close)
    const masterKey = randomBytes(32)
    const settings = {
      TIDINGS_DATABASE_URL: databaseUrl,
      TIDINGS_MASTER_KEY: masterKey.toString('base64'),
      TIDINGS_ALLOW_NETWORKS: '127.0.0.0/8',
      TIDINGS_RETRY_SCHEDULE: '0.5,1,2',
      TIDINGS_RATE_LIMIT: '0',
      TIDINGS_LOG_LEVEL: 'warn',
    }
    const admin = await createAdmin(databaseUrl, masterKey)
    const expectations: Expectation[] = []
    const servers: Server[] = []
    const pullers = createPullers(() => servers)
    const { isPulled = false } = given

    const processes: Tidings[] = []
    const written = () => processes.flatMap(({ pid, stderr }) => lastLines(stderr()).map(line => `${pid}: ${line}`))
    const track = <T extends Tidings>(made: T): T => {
      processes.push(made)
      given.include(made.pid)
      after(async () => {
        if (!made.hasEnded()) made.signal('SIGKILL')
        await made.ended
        given.exclude(made.pid)
      })
      return made
    }
    const serverStarting = async ({ roles, by, databaseUrl, env, clockAheadMs }: ServerOptions = {}) => {
      const server = track(
        await startServer(
          {
            ...settings,
            TIDINGS_ROLES: roles ?? 'api,delivery',
            ...(databaseUrl && { TIDINGS_DATABASE_URL: databaseUrl }),
            ...(by && { TIDINGS_DATABASE_URL: by.url }),
            ...env,
          },
          clockAheadMs,
        ),
      )
      if (!roles || roles.includes('api')) servers.push(server)
      return server
    }
    after(pullers.stop)
    const stood = monitorEventLoopDelay({ resolution: 10 })
    stood.enable()
    after(() => stood.disable())
    const stage: Stage = {
      engine: sql.engine,
      sql,
      databaseUrl,
      masterKey: settings.TIDINGS_MASTER_KEY,
      isPulled,
      admin,
      size: byDefault => given.size ?? byDefault,
      serverStarting,
      async server(options) {
        const server = await serverStarting(options)
        await server.untilReady()
        return server
      },
      async proxy() {
        const proxy = await startProxy(databaseUrl)
        after(proxy.close)
        return proxy
      },
      async endpoint(...args) {
        const endpoint = await startEndpoint(...args)
        after(endpoint.close)
        return endpoint
      },
      cli: (server, args) =>
        track(
          startTidings(args, {
            TIDINGS_URL: server.url,
            TIDINGS_API_KEY: admin.apiKey,
            TIDINGS_API_SECRET: admin.apiSecret,
          }),
        ),
      operator: (args, url = databaseUrl, env = {}) =>
        track(startTidings(args, { ...settings, TIDINGS_DATABASE_URL: url, ...env })),
      client(server, credentials = admin) {
        const client = clientOf(server.url, credentials)
        const documents = { create: CREATE_WEBHOOK, upsert: UPSERT_WEBHOOK }
        return isPulled ? pullers.clientOf(client, credentials, documents) : client
      },
      world: createWorld,
      stoppedWithinMs: () => STOPPED_WITHIN_MS + (isPulled ? 0 : Math.round(stood.max / 1e6)),
      async apart() {
        const { url, stop } = sql.engine === 'sqlite' ? { url: given.url } : await startThrowAwayDatabase()
        if (stop) after(stop)
        const { stage, clear } = await openStage({ ...given, url })
        after(clear)
        return stage
      },
      after,
      say: given.onLine,
      expect(sentence, holds, seen) {
        expectations.push({ sentence, holds, seen })
        given.onLine(`${holds ? '✓' : '✗'} ${sentence}: ${seen}`)
      },
    }
    return { stage, expectations, written, clear }
  } catch (error) {
    await clear()
    throw error
  }
}

const createAdmin = async (databaseUrl: string, masterKey: Buffer): Promise<Credentials & { id: string }> => {
  const database = await connect(databaseUrl)
  try {
    const token = { name: 'chaos', permissions: ['admin' as const] }
    return await createAccessToken(database.knex, createSealer([masterKey]), token, Date.now())
  } finally {
    await database.close()
  }
}

const createDatabase = async (url: string, after: (work: () => unknown) => void): Promise<string> => {
  const name = `tidings_case_${randomBytes(4).toString('hex')}`
  const folder = databaseFile(url)
  if (folder !== undefined) return `sqlite:${path.join(folder, `${name}.sqlite`)}`
  const server = await openSql(url)
  await server.run(`CREATE DATABASE ${name} CHARACTER SET utf8mb4`)
  after(async () => {
    await server.run(`DROP DATABASE ${name}`)
    await server.close()
  })
  const made = new URL(url)
  made.pathname = name
  return made.href
}

const createWorld = async (client: Client): Promise<World> => {
  const projects = await times(WORLD_PROJECTS, async n => {
    const { id: organisationId } = await done(client(UPSERT_ORGANISATION, { name: `Organisation ${n}` }))
    const { id: projectId } = await done(client(UPSERT_PROJECT, { organisationId, name: `Project ${n}` }))
    return { organisationId, projectId }
  })
  const { id: userId } = await done(client(UPSERT_USER, { name: 'Ada Okafor' }))
  // Far from the quarters that a scheduler opens reports of.
  let next = 0
  const quarter = (): string => {
    const n = next++
    return `${3000 + Math.floor(n / 4)}-${(n % 4) + 1}`
  }
  const submit: World['submit'] = (client, project = 0) =>
    client(SUBMIT, { projectId: projects[project]!.projectId, quarter: quarter(), submitterId: userId })
  return {
    projects,
    userId,
    submit,
    submitMany: (client, count, project) => times(count, async () => (await done(submit(client, project))).id),
  }
}
