import { lookup } from 'node:dns/promises'
import { existsSync, statSync } from 'node:fs'
import { createServer, isIP } from 'node:net'
import { databaseFile } from '../shared/database-url.ts'
import { type Config, ConfigError, ownUrl, type Role, readConfig } from './config.ts'
import { checkWritable, connect, type Database, rows } from './database/connect.ts'
import { isDenied, migrate, newerSchema, type SchemaState, schemaState } from './database/migrate.ts'
import { createNetworkGuard } from './delivery/network-guard.ts'
import { findByApiKeys, openApiSecret } from './domain/access-tokens.ts'
import { waitingClients } from './domain/pull-clients.ts'
import { PULL_TIME } from './domain/pull-time.ts'
import { openCarried } from './domain/webhook-requests.ts'
import { type LiveProcess, liveProcesses, namesOf } from './keys/master-keys.ts'
import { createSealer, type Sealer } from './keys/seal.ts'
import { signsAgainAt } from './keys/signing-keys.ts'

// Finds facts about an installation without changing it. The command line says what they mean.

export type InstallationFacts =
  | { configurationFaults: string[] }
  | {
      configurationFaults: undefined
      configuration: ConfigurationFacts
      database: DatabaseFacts
      guard: GuardFacts
      port: PortFacts
      /** Only if an endpoint was given. */
      endpoint: EndpointFacts | undefined
    }

export type ConfigurationFacts = { roles: Role[]; masterKeys: number; baseUrl: string; issuerUrl: string }

/** `url` is without its password. */
export type DatabaseFacts = { url: string } & (
  | { state: 'absent' }
  | { state: 'unreachable'; code: string | undefined; message: string }
  | ({ state: 'reached' } & ReachedDatabaseFacts)
)

export type ReachedDatabaseFacts = {
  /** The engine's name in its official spelling. */
  engine: string
  version: string
  /** Major and minor. */
  oldestVersion: readonly [number, number]
  isSupported: boolean
  /** The cipher of the connection; empty if it is not encrypted, undefined on an embedded engine. */
  cipher: string | undefined
  pendingMigrations: string[]
  /** Why this version cannot run on the schema of a later one. */
  newerSchema: string | undefined
  /** The grants that the database user lacks for running, such as `INSERT on webhooks`. */
  lacking: string[]
  /** The mode of a database file that users other than its owner can read or write. */
  openFileMode: number | undefined
  /** How far its clock is ahead of this machine's, in milliseconds. */
  clockAheadMs: number
  /** Why it takes no write. */
  unwritable: string | undefined
  /** Undefined while migrations are pending. */
  contents: ContentFacts | undefined
}

export type ContentFacts = {
  /** `closedKids`: those that no master key opens. */
  signingKeys: { number: number; closedKids: string[] }
  /** `admins` are neither revoked nor expired. */
  accessTokens: { admins: number; allOpen: boolean }
  /** Webhooks with a secret or static headers. `closed`: for each master key that is not here, how many, and one. */
  webhookSecrets: { number: number; closed: { number: number; exampleId: string }[] }
  /** The names of master keys: those of this environment, of which the first seals, and those in use. */
  masterKeys: { own: string[]; used: string[] }
  processes: LiveProcess[]
  /** How long nothing is sent after a revocation of the key that signed, in milliseconds. */
  signsInMs: number
  /** Deliveries that have been due for a minute. */
  overdue: { number: number; longestMs: number }
  /** Active pulled webhooks, the clients that wait for them, and deliveries due for a minute that none waits for. */
  pulled: { webhooks: number; clients: PullClients[]; left: { number: number; exampleId: string | null } }
}

/** Clients that wait: how many, of which webhook, and who came last. */
export type PullClients = { webhookId: string; waiting: number; accessTokenName: string; remoteAddress: string | null }

export type GuardFacts = {
  allowNetworks: string[]
  requireHttps: boolean
  /** The common internal addresses that deliveries may be sent to. */
  insideAllowed: string[]
}

export type PortFacts = { host: string; port: number } & (
  | { state: 'free' }
  | { state: 'not to be had'; message: string }
  | { state: 'ready' }
  | { state: 'not ready'; reason: string }
  | { state: 'of another program' }
)

export type EndpointFacts = {
  url: URL
  isRefusedAsHttp: boolean
  /** The endpoint's addresses that the network guard refuses. */
  closedAddresses: string[]
}

/**
 * Examines the installation of an environment, and an endpoint if one is given. Changes nothing. Faults are part of the
 * result; it does not reject because of them.
 */
export const inspectInstallation = async (env: NodeJS.ProcessEnv, endpoint?: URL): Promise<InstallationFacts> => {
  let config: Config
  try {
    config = readConfig(env)
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    return { configurationFaults: error.faults }
  }
  const { roles, masterKeys, baseUrl, issuerUrl } = config
  return {
    configurationFaults: undefined,
    configuration: { roles, masterKeys: masterKeys.length, baseUrl, issuerUrl },
    database: await inspectDatabase(config),
    guard: inspectGuard(config),
    port: await inspectPort(config),
    endpoint: endpoint && (await inspectEndpoint(config, endpoint)),
  }
}

const inspectDatabase = async (config: Config): Promise<DatabaseFacts> => {
  const file = databaseFile(config.databaseUrl)
  const url = file === undefined ? withoutPassword(config.databaseUrl) : config.databaseUrl
  // Connecting would create the file.
  if (file !== undefined && !existsSync(file)) return { url, state: 'absent' }
  let database: Database
  try {
    database = await connect(config.databaseUrl)
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException
    return { url, state: 'unreachable', code, message }
  }
  try {
    const version = await versionOf(database)
    const { name: engine, oldestVersion } = database.dialect
    const lacking = await lackingGrants(database)
    const schema = lacking.length > 0 ? NOT_SEEN : await schemaState(database)
    const hasSchema = schema.pending.length + schema.tooNew.length + lacking.length === 0
    return {
      url,
      state: 'reached',
      engine,
      version,
      oldestVersion,
      isSupported: isAtLeast(version, oldestVersion),
      cipher: await cipherOf(database),
      pendingMigrations: schema.pending,
      newerSchema: schema.tooNew.length > 0 ? newerSchema(schema.tooNew).message : undefined,
      lacking,
      openFileMode: file === undefined ? undefined : openModeOf(file),
      clockAheadMs: await clockAhead(database),
      unwritable: hasSchema ? await unwritable(database) : undefined,
      contents: hasSchema ? await inspectContents(database, config) : undefined,
    }
  } finally {
    await database.close()
  }
}

const unwritable = (database: Database): Promise<string | undefined> =>
  checkWritable(database).then(
    () => undefined,
    error => error.message,
  )

const NOT_SEEN: SchemaState = { pending: [], tooNew: [] }

const openModeOf = (path: string): number | undefined => {
  const mode = statSync(path).mode & 0o777
  return (mode & 0o077) === 0 ? undefined : mode
}

/**
 * Tries each statement with a condition that matches nothing, because grants may come from roles or be limited to some
 * tables.
 */
const lackingGrants = async ({ knex, dialect }: Database): Promise<string[]> => {
  if (dialect.isEmbedded) return []
  const lacking: string[] = []
  for (const table of await tablesOfSchema()) {
    for (const [grant, statement] of [
      ['SELECT', `SELECT 1 FROM ${table} LIMIT 0`],
      ['INSERT', `INSERT INTO ${table} SELECT * FROM ${table} WHERE 1 = 0`],
      ['DELETE', `DELETE FROM ${table} WHERE 1 = 0`],
    ] as const) {
      await knex.raw(statement).catch(error => {
        if (isDenied(error)) lacking.push(`${grant} on ${table}`)
      })
    }
  }
  await knex.raw("UPDATE rate_limits SET taken = taken WHERE access_token_id = ''").catch(error => {
    if (isDenied(error)) lacking.push('UPDATE on rate_limits')
  })
  return lacking
}

/**
 * Every table that a server uses: those of the migrations, because a database does not list tables that the user cannot
 * see.
 */
const tablesOfSchema = async (): Promise<string[]> => {
  const database = await connect('sqlite::memory:')
  try {
    await migrate(database)
    const found = await rows<{ name: string }>(
      database.knex,
      `SELECT name FROM sqlite_master
       WHERE type = 'table' AND name NOT LIKE 'sqlite%' AND name <> 'knex_migrations_lock' ORDER BY name`,
    )
    return found.map(({ name }) => name)
  } finally {
    await database.close()
  }
}

const withoutPassword = (url: string): string => {
  const { username, host, pathname } = URL.parse(url) ?? { username: '', host: 'the database', pathname: '' }
  return `mysql://${username && `${username}@`}${host}${pathname}`
}

const versionOf = async (database: Database): Promise<string> => {
  const [found] = await rows<{ version: string }>(database.knex, `SELECT ${database.dialect.version} AS version`)
  return found!.version
}

const cipherOf = async ({ dialect, knex }: Database): Promise<string | undefined> => {
  if (dialect.isEmbedded) return undefined
  const [found] = await rows<{ Value: string }>(knex, "SHOW SESSION STATUS LIKE 'Ssl_cipher'")
  return found?.Value ?? ''
}

const isAtLeast = (version: string, [major, minor]: readonly [number, number]): boolean => {
  const [foundMajor = 0, foundMinor = 0] = version.split(/[.-]/).map(Number)
  return foundMajor > major || (foundMajor === major && foundMinor >= minor)
}

const clockAhead = async (database: Database): Promise<number> => {
  const before = Date.now()
  const [found] = await rows<{ now: number }>(database.knex, `SELECT ${database.dialect.nowMs} AS now`)
  return Number(found!.now) - (before + Date.now()) / 2
}

const inspectContents = async (database: Database, { masterKeys }: Config): Promise<ContentFacts> => {
  const sealer = createSealer(masterKeys)
  const used = await database.knex('master_keys').whereNull('retired_at').orderBy('name').pluck<string[]>('name')
  return {
    signingKeys: await inspectSigningKeys(database, sealer),
    accessTokens: { admins: await countAdmins(database), allOpen: await allSecretsOpen(database, sealer) },
    webhookSecrets: await inspectWebhookSecrets(database, sealer),
    masterKeys: { own: namesOf(masterKeys), used },
    processes: await liveProcesses(database.knex),
    signsInMs: await inspectSignsIn(database),
    overdue: await inspectQueue(database),
    pulled: await inspectPulled(database),
  }
}

const inspectSigningKeys = async (database: Database, sealer: Sealer): Promise<ContentFacts['signingKeys']> => {
  const keys = await rows<{ kid: string; private_key_sealed: string }>(
    database.knex,
    'SELECT kid, private_key_sealed FROM signing_keys WHERE revoked_at IS NULL ORDER BY generation',
  )
  const closed = keys.filter(
    ({ kid, private_key_sealed }) => !opens(() => sealer.open(private_key_sealed, `signing key ${kid}`)),
  )
  return { number: keys.length, closedKids: closed.map(({ kid }) => kid) }
}

const countAdmins = async (database: Database): Promise<number> => {
  const [found] = await rows<{ number: number }>(
    database.knex,
    `SELECT COUNT(*) AS number FROM access_tokens t JOIN access_token_permissions p ON p.access_token_id = t.id
     WHERE p.permission = 'admin' AND t.revoked_at IS NULL
       AND (t.expires_at IS NULL OR t.expires_at > ${database.dialect.nowMs})`,
  )
  return Number(found!.number)
}

/** Sealed text begins with the name of its master key, so one secret for each name suffices. */
const allSecretsOpen = async (database: Database, sealer: Sealer): Promise<boolean> => {
  const samples = await rows<{ api_key: string }>(
    database.knex,
    'SELECT MIN(api_key) AS api_key FROM access_tokens GROUP BY SUBSTR(secret_sealed, 1, 12)',
  )
  if (samples.length === 0) return true
  const tokens = await findByApiKeys(
    database.knex,
    samples.map(({ api_key }) => api_key),
  )
  return [...tokens.values()].every(token => opens(() => openApiSecret(sealer, token)))
}

/** As for access tokens, one for each master key. */
const inspectWebhookSecrets = async (database: Database, sealer: Sealer): Promise<ContentFacts['webhookSecrets']> => {
  const samples = await rows<{ number: number; id: string; request_sealed: string }>(
    database.knex,
    `SELECT s.number, w.id, w.request_sealed FROM webhooks w JOIN (
       SELECT COUNT(*) AS number, MIN(id) AS id FROM webhooks WHERE request_sealed IS NOT NULL
       GROUP BY SUBSTR(request_sealed, 1, 12)) s ON s.id = w.id`,
  )
  const closed = samples.filter(({ id, request_sealed }) => !opens(() => openCarried(sealer, id, request_sealed)))
  return {
    number: samples.reduce((sum, { number }) => sum + Number(number), 0),
    closed: closed.map(({ number, id }) => ({ number: Number(number), exampleId: id })),
  }
}

const inspectSignsIn = async ({ knex, dialect }: Database): Promise<number> => {
  const [clock] = await rows<{ now: number }>(knex, `SELECT ${dialect.nowMs} AS now`)
  const now = Number(clock!.now)
  return ((await signsAgainAt(knex, now)) ?? now) - now
}

/** A running loop takes due deliveries within about a second. */
const OVERDUE_MS = 60_000

const inspectQueue = async (database: Database): Promise<ContentFacts['overdue']> => {
  const { nowMs } = database.dialect
  const [found] = await rows<{ number: number; longest: number | null }>(
    database.knex,
    `SELECT COUNT(*) AS number, ${nowMs} - MIN(due_at) AS longest FROM delivery_queue
     WHERE due_at < ${nowMs} - ${OVERDUE_MS}`,
  )
  return { number: Number(found!.number), longestMs: Number(found!.longest) }
}

const inspectPulled = async ({ knex, dialect }: Database): Promise<ContentFacts['pulled']> => {
  const active: string[] = await knex('webhooks').where({ status: 'active', transport: 'pull' }).pluck('id')
  const waiting = await waitingClients(knex)
  const [due] = await rows<{ number: number; id: string | null }>(
    knex,
    `SELECT COUNT(*) AS number, MIN(webhook_id) AS id FROM delivery_queue
     WHERE due_at >= ${PULL_TIME} AND due_at < ${PULL_TIME} + ${dialect.nowMs} - ${OVERDUE_MS}
       AND webhook_id NOT IN (SELECT webhook_id FROM pull_clients)`,
  )
  return {
    webhooks: active.length,
    clients: waiting.map(({ webhookId, waiting, token, address = null }) => {
      return { webhookId, waiting, accessTokenName: token.name, remoteAddress: address }
    }),
    left: { number: Number(due!.number), exampleId: due!.id },
  }
}

const opens = (open: () => unknown): boolean => {
  try {
    open()
    return true
  } catch {
    return false
  }
}

const INSIDE = ['127.0.0.1', '::1', '169.254.169.254', '10.0.0.1', '172.16.0.1', '192.168.0.1']

const inspectGuard = ({ allowNetworks, requireHttps }: Config): GuardFacts => {
  const guard = createNetworkGuard({ allow: allowNetworks })
  return { allowNetworks, requireHttps, insideAllowed: INSIDE.filter(address => guard.isAllowed(address)) }
}

const inspectEndpoint = async ({ allowNetworks, requireHttps }: Config, url: URL): Promise<EndpointFacts> => {
  const guard = createNetworkGuard({ allow: allowNetworks })
  return {
    url,
    isRefusedAsHttp: requireHttps && url.protocol !== 'https:',
    closedAddresses: (await addressesOf(url)).filter(address => !guard.isAllowed(address)),
  }
}

/** Empty if the host has none. */
const addressesOf = async (url: URL): Promise<string[]> => {
  const host = url.hostname.replace(/^\[|\]$/g, '')
  if (isIP(host)) return [host]
  return (await lookup(host, { all: true }).catch(() => [])).map(({ address }) => address)
}

const inspectPort = async ({ host, port, operations }: Config): Promise<PortFacts> => {
  const fault = await new Promise<NodeJS.ErrnoException | undefined>(resolve => {
    const server = createServer().once('error', resolve)
    server.listen(port, host, () => server.close(() => resolve(undefined)))
  })
  if (fault === undefined) return { host, port, state: 'free' }
  if (fault.code !== 'EADDRINUSE') return { host, port, state: 'not to be had', message: fault.message }
  const asked = operations ?? { host, port }
  const { status, reason } = await readiness(ownUrl(asked.host, asked.port))
  if (status === 'ready') return { host, port, state: 'ready' }
  if (status === 'not ready') return { host, port, state: 'not ready', reason: String(reason) }
  return { host, port, state: 'of another program' }
}

const readiness = async (base: string): Promise<{ status?: unknown; reason?: unknown }> => {
  try {
    const response = await fetch(`${base}/readyz`, { signal: AbortSignal.timeout(5_000) })
    return ((await response.json()) as object | null) ?? {}
  } catch {
    return {}
  }
}
