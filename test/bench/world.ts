import { execFile } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { setTimeout as wait } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import type { Credentials } from '../../shared/hmac.ts'
import { masterKey, type ServerProcess, startServerProcess } from '../delivery/server-process.ts'
import { migratedDatabase, type TestDatabase } from '../support/databases.ts'
import { startChild } from './child.ts'
import { type Client, createClient, must } from './client.ts'
import type { Published, Start } from './publishers.ts'
import { startPullers, startReceivers } from './receivers.ts'
import { unlessSmallest } from './smallest.ts'

// The environment of end-to-end benchmarks: a server process on its own database, set up over its API, with publishers
// and receivers in processes of their own. It uses no internals of the server, so that it can measure any version.

const PUBLISHERS = unlessSmallest(10, 2)
const ENDPOINTS = unlessSmallest(100, 5)
const EVENT = 'project_report_quarterly_submitted'

export type Pace = Start['pace']

/** Latencies are in milliseconds; an event that has not arrived counts as if it arrived at the window's end. */
export type Window = {
  accepted: number
  acceptedPerSecond: number
  deliveredPerSecond: number
  /** Acknowledged and not received. */
  missing: number
  unanswered: number
  refused: Published['refused']
  begunToAcknowledged: number[]
  begunToReceived: number[]
  acknowledgedToReceived: number[]
}

/** Who publishes what: reports of project n go to the endpoint n and nowhere else. */
export type Tenant = {
  publishers: Credentials[]
  organisationId: string
  projectIds: string[]
  webhookIds: string[]
  submitterId: string
}

export type World = {
  given: TestDatabase
  /** May do everything. */
  admin: Credentials
  client: Client
  tenant: Tenant
  /** The process of the endpoints, or of the clients that pull. */
  receivingPid: number
  server(): ServerProcess
  /** Replaces the server, ending the old one if it still runs. */
  restart(): Promise<void>
  /** Begins to publish. The returned function stops it, waits for what is in flight, and returns the results. */
  publish(pace: Pace): () => Promise<Window>
  /** Resolves when nothing is queued. Throws an Error after `withinMs`. */
  settled(withinMs?: number): Promise<void>
  stop(): Promise<void>
}

/**
 * @param given.env settings of the server that differ from an operator's defaults
 * @param given.projects how many there are; one endpoint has the reports of all
 * @param given.pullers so many clients pull them all, in place of endpoints
 */
export const startWorld = async (
  engine: string,
  {
    env = {},
    endpoints = ENDPOINTS,
    projects = endpoints,
    pullers = 0,
  }: { env?: Record<string, string>; endpoints?: number; projects?: number; pullers?: number } = {},
): Promise<World> => {
  const given = await migratedDatabase(engine)
  const receivers = await startReceivers(pullers > 0 ? 0 : endpoints)
  const pulling = pullers > 0 ? await startPullers() : undefined
  const generator = await startChild('publishers.ts')
  const client = createClient()
  const start = () =>
    startServerProcess(given.url, { TIDINGS_LOG_LEVEL: 'info', TIDINGS_RATE_LIMIT: '0', ...SCHEDULE, ...env })
  let server = await start()
  const stop = async () => {
    generator.stop()
    receivers.stop()
    pulling?.stop()
    await client.close()
    await server.end('SIGKILL')
    await given.drop()
  }
  try {
    const admin = await firstToken(given.url)
    const of = { client, url: server.url, admin, name: 'Steady' }
    const tenant = await createTenant({ ...of, endpoints: receivers.urls, projects })
    if (pulling) tenant.webhookIds.push(await createPulled({ ...of, tenant, pullers, start: pulling.start }))
    const { arrivals, pid } = pulling ?? receivers
    return {
      given,
      receivingPid: pid,
      admin,
      client,
      tenant,
      server: () => server,
      async restart() {
        await server.end('SIGKILL')
        server = await start()
      },
      publish(pace) {
        const { publishers, projectIds, submitterId } = tenant
        const urls = [server.url]
        generator.tell({ kind: 'start', urls, publishers, projectIds, submitterId, pace } satisfies Start)
        return async () => windowOf((await generator.ask({ kind: 'stop' })) as Published, arrivals)
      },
      async settled(withinMs = 30_000) {
        const until = Date.now() + withinMs
        while (await given.database.knex('delivery_queue').first('delivery_id')) {
          if (Date.now() > until) throw new Error(`Deliveries were still queued after ${withinMs / 1000} s`)
          await wait(25)
        }
      },
      stop,
    }
  } catch (error) {
    await stop()
    throw error
  }
}

/** The default retry schedule. */
const SCHEDULE = { TIDINGS_RETRY_SCHEDULE: '5,10,20,40,80,160,320,640,1280,2560' }

const program = fileURLToPath(new URL('../../bin/tidings.js', import.meta.url))

const firstToken = async (databaseUrl: string): Promise<Credentials> => {
  const args = [program, 'server', 'token', '--name', 'bench', '--permissions', 'admin', '--output', 'json']
  const { PATH, HOME, TMPDIR } = process.env
  const env = { PATH, HOME, TMPDIR, TIDINGS_DATABASE_URL: databaseUrl, TIDINGS_MASTER_KEY: masterKey }
  const { stdout } = await promisify(execFile)(process.execPath, args, { env })
  const { apiKey, secret } = JSON.parse(stdout)
  return { apiKey, apiSecret: secret }
}

const CREATE_TOKEN = `mutation ($name: String!, $permissions: [Permission!]!, $organisationIds: [UUID!]) {
  createAccessToken(name: $name, permissions: $permissions, organisationIds: $organisationIds) { apiKey secret } }`
const CREATE_ORGANISATION = 'mutation ($name: String!) { upsertOrganisation(name: $name) { id } }'
const CREATE_PROJECT = `mutation ($organisationId: UUID!, $name: String!) {
  upsertProject(organisationId: $organisationId, name: $name) { id } }`
const CREATE_USER = 'mutation ($name: String!) { upsertUser(name: $name) { id } }'
const CREATE_WEBHOOK = `mutation ($url: String!, $events: [EventType!], $projectIds: [UUID!]) {
  createWebhook(url: $url, events: $events, projectIds: $projectIds) { id } }`

/** Makes a token. */
export const createToken = async (
  client: Client,
  url: string,
  admin: Credentials,
  token: { name: string; permissions: string[]; organisationIds?: string[] },
): Promise<Credentials> => {
  const { apiKey, secret } = must(await client.send(url, admin, CREATE_TOKEN, token)) as Record<string, string>
  return { apiKey: apiKey!, apiSecret: secret! }
}

/** An organisation with publishers, and for each endpoint a project and a webhook that receives its reports. */
const createTenant = async (given: {
  client: Client
  url: string
  admin: Credentials
  name: string
  endpoints: string[]
  projects: number
}): Promise<Tenant> => {
  const { client, url, admin, name, endpoints, projects } = given
  const mutate = async (query: string, variables: object, as = admin): Promise<string> =>
    must(await client.send(url, as, query, variables)).id as string
  const organisationId = await mutate(CREATE_ORGANISATION, { name })
  const submitterId = await mutate(CREATE_USER, { name: `${name} submitter` })
  const publishers: Credentials[] = []
  for (let n = 0; n < PUBLISHERS; n++) {
    const permissions = ['read', 'webhooks', 'reports']
    const token = { name: `${name} ${n}`, permissions, organisationIds: [organisationId] }
    publishers.push(await createToken(client, url, admin, token))
  }
  const projectIds: string[] = []
  const webhookIds: string[] = []
  for (let index = 0; index < projects; index++) {
    projectIds.push(await mutate(CREATE_PROJECT, { organisationId, name: `${name} ${index}` }))
  }
  for (const [index, endpoint] of endpoints.entries()) {
    const own = endpoints.length === 1 ? projectIds : [projectIds[index]!]
    const webhook = { url: endpoint, events: [EVENT], projectIds: own }
    webhookIds.push(await mutate(CREATE_WEBHOOK, webhook, publishers[index % PUBLISHERS]))
  }
  return { publishers, organisationId, projectIds, webhookIds, submitterId }
}

const CREATE_PULLED = `mutation ($id: UUID!, $events: [EventType!], $projectIds: [UUID!]) {
  upsertWebhook(id: $id, transport: pull, events: $events, projectIds: $projectIds) { id } }`

/** A webhook that clients pull, with the reports of all projects. */
const createPulled = async (given: {
  client: Client
  url: string
  tenant: Tenant
  pullers: number
  start: Awaited<ReturnType<typeof startPullers>>['start']
}): Promise<string> => {
  const { client, url, tenant, pullers, start } = given
  const credentials = tenant.publishers[0]!
  const id = randomUUID()
  start({ url, credentials, webhookId: id, clients: pullers })
  const webhook = { id, events: [EVENT], projectIds: tenant.projectIds }
  must(await client.send(url, credentials, CREATE_PULLED, webhook))
  return id
}

/** How long an acknowledged event may take to arrive. */
const ARRIVAL_MS = 5_000

const windowOf = async (
  { accepted, unanswered, refused }: Published,
  arrivals: () => Promise<[string, number][]>,
): Promise<Window> => {
  const received = new Map<string, number>()
  const collect = async (): Promise<boolean> => {
    for (const [id, at] of await arrivals()) if (!received.has(id)) received.set(id, at)
    return accepted.every(({ reportId }) => received.has(reportId))
  }
  const until = Date.now() + ARRIVAL_MS
  while (!(await collect()) && Date.now() < until) await wait(20)
  const end = performance.timeOrigin + performance.now()
  const arrived = accepted.flatMap(({ reportId }) => received.get(reportId) ?? [])
  const first = Math.min(...accepted.map(({ begun }) => begun))
  const secondsTo = (times: number[]): number => (times.reduce((a, b) => Math.max(a, b), first) - first) / 1000
  return {
    accepted: accepted.length,
    acceptedPerSecond: accepted.length / secondsTo(accepted.map(({ acknowledged }) => acknowledged)),
    deliveredPerSecond: arrived.length / secondsTo(arrived),
    missing: accepted.length - arrived.length,
    unanswered: unanswered.length,
    refused,
    begunToAcknowledged: accepted.map(({ begun, acknowledged }) => acknowledged - begun),
    begunToReceived: [
      ...accepted.map(({ reportId, begun }) => (received.get(reportId) ?? end) - begun),
      ...unanswered.map(begun => end - begun),
    ],
    acknowledgedToReceived: accepted.map(
      ({ reportId, acknowledged }) => (received.get(reportId) ?? end) - acknowledged,
    ),
  }
}
