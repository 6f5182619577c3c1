import { randomBytes, randomUUID } from 'node:crypto'
import type { Clock } from '../../server/clock.ts'
import { type Config, readConfig } from '../../server/config.ts'
import { connect, type Database } from '../../server/database/connect.ts'
import { createAccessToken, type NewAccessToken } from '../../server/domain/access-tokens.ts'
import { createSealer } from '../../server/keys/seal.ts'
import type { LiveTimes } from '../../server/live/live.ts'
import { createLog } from '../../server/log.ts'
import { startServer } from '../../server/main.ts'
import type { ReaderTerms } from '../../server/readers/readers.ts'
import type { Credentials } from '../../shared/hmac.ts'
import { signRequest } from '../../shared/hmac.ts'
import { realClock } from './clock.ts'
import { migratedDatabase, type TestDatabase } from './databases.ts'
import { freePort } from './ports.ts'
import { startReaderHere } from './reader-here.ts'

export type GraphqlAnswer = {
  status: number
  headers: Headers
  // biome-ignore lint/suspicious/noExplicitAny: tests read what they asked for
  data: any
  // biome-ignore lint/suspicious/noExplicitAny: tests read what they asked for
  errors: { message: string; path?: unknown[]; extensions: Record<string, any> }[] | undefined
}

export type TestServer = {
  url: string
  config: Config
  database: Database
  /** The time of the requests that are signed here, and the server's. */
  clock: Clock
  /** Creates an access token directly in the database. */
  token(token?: Partial<NewAccessToken>): Promise<Credentials & { id: string }>
  /** Sends a signed GraphQL request as a token, by default an admin's. */
  graphql(document: string, variables?: object, as?: Credentials): Promise<GraphqlAnswer>
  /** Ends the server, and lets go of its database unless it was given. */
  stop(): Promise<void>
}

/** How long a query may take where its test asks for something else. Beside a full machine, 2 s become 15. */
const QUERY_MS = 120_000

/**
 * The real server in this process, on a database of its own (or a given one), allowed to send to loopback.
 *
 * @param options.env settings that differ from the defaults, by their names in the environment
 * @param options.by maps the database URL, such as to a proxy
 * @param options.clock the clock of server and requests; by default the database's for the server, this machine's for
 *   requests
 * @param options.readerTerms when what answers queries starts and ends; by default one, because few tests keep it busy
 * @param options.hasReaderProcesses whether queries are answered in processes of their own, as in the product, and not
 *   in this one
 * @param options.liveTimes how often subscribers' changes are looked for, by default as in the product
 */
export const startTestServer = async (
  engine: string,
  {
    env = {},
    url,
    by,
    clock: given,
    liveTimes,
    readerTerms = { pairMs: 600_000 },
    hasReaderProcesses = false,
  }: {
    env?: Record<string, string>
    url?: string
    by?: (databaseUrl: string) => Promise<string>
    clock?: Clock
    liveTimes?: Partial<LiveTimes>
    readerTerms?: ReaderTerms
    hasReaderProcesses?: boolean
  } = {},
): Promise<TestServer> => {
  const fresh = url ? await givenDatabase(engine, url) : await migratedDatabase(engine)
  const clock = given ?? realClock
  const config = readConfig({
    TIDINGS_DATABASE_URL: by ? await by(fresh.url) : fresh.url,
    TIDINGS_MASTER_KEY: randomBytes(32).toString('base64'),
    TIDINGS_PORT: String(await freePort()),
    TIDINGS_ALLOW_NETWORKS: '127.0.0.0/8,::1/128',
    TIDINGS_RETRY_SCHEDULE: '0.2,0.4,0.8',
    TIDINGS_LOG_LEVEL: 'error',
    TIDINGS_HOME: '/nonexistent',
    ...env,
  })
  const server = await startServer(config, createLog(config.logLevel), {
    ...(given && { clock }),
    ...(liveTimes && { liveTimes }),
    readerTerms: { timeMs: QUERY_MS, ...(!hasReaderProcesses && { start: startReaderHere }), ...readerTerms },
  })
  await server.ready
  const { database } = fresh
  const token = (more: Partial<NewAccessToken> = {}) =>
    database.transaction(trx =>
      createAccessToken(
        trx,
        createSealer(config.masterKeys),
        { name: 'test', permissions: ['admin'], ...more },
        clock.now(),
      ),
    )
  const admin = await token()
  return {
    url: server.url,
    config,
    database,
    clock,
    token,
    graphql: (document, variables = {}, as = admin) => sendGraphql(server.url, as, document, variables, clock),
    async stop() {
      await server.stop()
      await fresh.drop()
    },
  }
}

const givenDatabase = async (engine: string, url: string): Promise<TestDatabase> => {
  const database = await connect(url)
  return { engine, url, database, drop: () => database.close() }
}

/** Sends a GraphQL request, signed at the time that `clock` shows: the server's, if that goes by one of its own. */
export const sendGraphql = async (
  base: string,
  credentials: Credentials,
  query: string,
  variables: object = {},
  clock: Clock = realClock,
): Promise<GraphqlAnswer> => {
  const url = new URL('/graphql', base)
  const body = JSON.stringify({ query, variables })
  const at = new Date(clock.now())
  const signed = signRequest({ method: 'POST', url, body, credentials, at, nonce: randomUUID() })
  const response = await fetch(url, {
    method: 'POST',
    headers: { ...signed, 'content-type': 'application/json', accept: 'application/json' },
    body,
  })
  const { data, errors } = (await response.json()) as GraphqlAnswer
  return { status: response.status, headers: response.headers, data, errors }
}

/** Adds organisations, projects and users for tests; missing values are made up. */
export const addProject = async (
  database: Database,
  {
    organisation = 'Acme',
    project = 'Wells',
    createdAt = Date.now(),
  }: { organisation?: string; project?: string; createdAt?: number } = {},
): Promise<{ organisationId: string; projectId: string; userId: string }> => {
  const ids = { organisationId: randomUUID(), projectId: randomUUID(), userId: randomUUID() }
  const times = { created_at: createdAt, updated_at: createdAt }
  await database.knex('organisations').insert({ id: ids.organisationId, name: organisation, ...times })
  await database
    .knex('projects')
    .insert({ id: ids.projectId, organisation_id: ids.organisationId, name: project, ...times })
  await database.knex('users').insert({ id: ids.userId, name: 'Ada Okafor', ...times })
  return ids
}
