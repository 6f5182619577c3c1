import { existsSync } from 'node:fs'
import { createServer } from 'node:http'
import { type Config, ConfigError, readConfig } from '../server/config.ts'
import { connect, type Database, rows } from '../server/database/connect.ts'
import { pendingMigrations } from '../server/database/migrate.ts'
import { createNetworkGuard } from '../server/delivery/network-guard.ts'
import { createSealer } from '../server/keys/seal.ts'
import { type Check, note, ok, problem, skipped } from './checks.ts'
import { addressesOf, checkReachable } from './endpoint-check.ts'
import { count, duration } from './output/time.ts'

/** Signatures are good for five minutes either way; what is a tenth of that off will be more tomorrow. */
const CLOCK_TOLERANCE_MS = 30_000
/** A loop that runs takes what is due within a second or so. */
const OVERDUE_MS = 60_000

/**
 * Looks at everything that a server with this environment needs, and at an endpoint if one is given. Changes nothing.
 */
export const examineServer = async (env: NodeJS.ProcessEnv, endpoint?: URL): Promise<Check[]> => {
  let config: Config
  try {
    config = readConfig(env)
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    return [
      ...error.faults.map(fault =>
        problem(
          'configuration',
          fault,
          'Set it in the environment; the README lists every setting. To try Tidings out without any: npm start',
        ),
      ),
      skipped('the rest', 'needs a configuration without faults'),
    ]
  }
  return [
    ok(
      'configuration',
      `roles ${config.roles.join(', ')}; sealed with ${count(config.masterKeys.length, 'master key')}`,
    ),
    ...(await examineAddresses(config)),
    ...(await examineDatabase(config)),
    examineGuard(config),
    await examinePort(config),
    ...(endpoint === undefined ? [] : [await examineEndpoint(config, endpoint)]),
  ]
}

const examineDatabase = async (config: Config): Promise<Check[]> => {
  const where = config.databaseUrl.startsWith('sqlite:') ? config.databaseUrl : withoutPassword(config.databaseUrl)
  // Connecting would make the file.
  if (config.databaseUrl.startsWith('sqlite:') && !existsSync(config.databaseUrl.slice('sqlite:'.length))) {
    return [
      problem('database', `there is no ${where} yet`, 'Make it with: tidings server migrate'),
      skipped('schema, clock, keys', 'need the database'),
    ]
  }
  let database: Database
  try {
    database = await connect(config.databaseUrl)
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException
    return [
      problem('database', `${where} does not answer: ${message || code}`, adviceOn(code)),
      skipped('schema, clock, keys', 'need the database'),
    ]
  }
  try {
    const checks = [await examineVersion(database, where)]
    const pending = await pendingMigrations(database)
    checks.push(
      pending.length === 0
        ? ok('schema', 'current')
        : problem('schema', `lacks ${pending.join(', ')}`, 'Bring it up to date with: tidings server migrate'),
      await examineClock(database),
    )
    if (pending.length > 0) return [...checks, skipped('keys, tokens, deliveries', 'need the schema')]
    return [
      ...checks,
      await examineKeys(database, config),
      await examineTokens(database, config),
      await examineQueue(database),
    ]
  } finally {
    await database.close()
  }
}

const examineVersion = async (database: Database, where: string): Promise<Check> => {
  const select = database.engine === 'sqlite' ? 'sqlite_version()' : 'VERSION()'
  const [found] = await rows<{ version: string }>(database.knex, `SELECT ${select} AS version`)
  const version = found!.version
  const { name, least } = SUPPORTED[database.engine]
  if (isAtLeast(version, least)) return ok('database', `${name} ${version} at ${where}`)
  return problem('database', `${name} ${version} at ${where}`, `Tidings needs ${name} ${least.join('.')} or newer.`)
}

const SUPPORTED = {
  sqlite: { name: 'SQLite', least: [3, 40] },
  mysql: { name: 'MySQL', least: [8, 4] },
  mariadb: { name: 'MariaDB', least: [10, 11] },
} as const

const isAtLeast = (version: string, [major, minor]: readonly [number, number]): boolean => {
  const [foundMajor = 0, foundMinor = 0] = version.split(/[.-]/).map(Number)
  return foundMajor > major || (foundMajor === major && foundMinor >= minor)
}

const examineClock = async (database: Database): Promise<Check> => {
  const before = Date.now()
  const [found] = await rows<{ now: number }>(database.knex, `SELECT ${database.dialect.nowMs} AS now`)
  const offMs = Number(found!.now) - (before + Date.now()) / 2
  if (Math.abs(offMs) < 1000) return ok('clock', 'the database’s agrees with this machine’s')
  const apart = `the database’s is ${duration(Math.abs(offMs))} ${offMs < 0 ? 'behind' : 'ahead of'} this machine’s`
  if (Math.abs(offMs) < CLOCK_TOLERANCE_MS) return ok('clock', apart)
  return problem(
    'clock',
    apart,
    'Tidings goes by the database’s clock: tokens and signatures fail when it is minutes off. ' +
      'Switch network time on on both machines.',
  )
}

const examineKeys = async (database: Database, config: Config): Promise<Check> => {
  const keys = await database
    .knex('signing_keys')
    .orderBy('generation')
    .select<{ kid: string; private_key_sealed: string }[]>('kid', 'private_key_sealed')
  if (keys.length === 0)
    return note('signing keys', 'none yet', 'The first is made when a server starts: tidings server start')
  const sealer = createSealer(config.masterKeys)
  const closed = keys.filter(
    ({ kid, private_key_sealed }) => !opens(() => sealer.open(private_key_sealed, `signing key ${kid}`)),
  )
  if (closed.length === 0) return ok('signing keys', `${count(keys.length, 'key')}, opened with the master key`)
  return problem(
    'signing keys',
    `${closed.length} of ${keys.length} do not open with the master key: ${closed.map(({ kid }) => kid).join(', ')}`,
    'Give the master key that this database was set up with, or both while it is replaced: TIDINGS_MASTER_KEY=new,old',
  )
}

const examineTokens = async (database: Database, config: Config): Promise<Check> => {
  const [admins] = await rows<{ number: number }>(
    database.knex,
    `SELECT COUNT(*) AS number FROM access_tokens t JOIN access_token_permissions p ON p.access_token_id = t.id
     WHERE p.permission = 'admin' AND t.revoked_at IS NULL
       AND (t.expires_at IS NULL OR t.expires_at > ${database.dialect.nowMs})`,
  )
  // Sealed text begins with the name of its master key: one of each tells of all.
  const samples = await rows<{ id: string }>(
    database.knex,
    'SELECT MIN(id) AS id FROM access_tokens GROUP BY SUBSTR(secret_sealed, 1, 12)',
  )
  const sealer = createSealer(config.masterKeys)
  for (const { id } of samples) {
    const { secret_sealed } = await database.knex('access_tokens').where({ id }).first('secret_sealed')
    if (opens(() => sealer.open(secret_sealed, `access token ${id}`))) continue
    return problem(
      'access tokens',
      'the secrets of some were sealed with another master key',
      'Requests that they sign fail. Give the earlier key as well: TIDINGS_MASTER_KEY=new,old',
    )
  }
  const number = Number(admins!.number)
  if (number > 0) return ok('access tokens', `${count(number, 'token')} with the permission admin`)
  return note(
    'access tokens',
    'none has the permission admin',
    'Make the first with: tidings server token --name ops --permissions admin',
  )
}

const examineQueue = async (database: Database): Promise<Check> => {
  const [found] = await rows<{ number: number; oldest: number | null }>(
    database.knex,
    'SELECT COUNT(*) AS number, MIN(due_at) AS oldest FROM delivery_queue ' +
      `WHERE due_at < ${database.dialect.nowMs} - ${OVERDUE_MS}`,
  )
  const number = Number(found!.number)
  if (number === 0) return ok('deliveries', 'none is overdue')
  const lateMs = Date.now() - Number(found!.oldest)
  return problem(
    'deliveries',
    `${count(number, 'delivery is', 'deliveries are')} overdue, the oldest by ${duration(lateMs)}`,
    'Is a server running that has the role “delivery”? If so, are there enough for the load? /metrics of each tells.',
  )
}

const examineAddresses = async ({ baseUrl, issuerUrl }: Config): Promise<Check[]> => {
  const url = new URL(baseUrl)
  const found = issuerUrl === baseUrl ? `${baseUrl}, also the issuer of tokens` : `${baseUrl}; issuer ${issuerUrl}`
  if (url.protocol === 'https:') return [ok('addresses', found), await examineTls(url)]
  if (isLoopback(url.hostname)) return [ok('addresses', found)]
  return [
    note(
      'addresses',
      `${found}; not https`,
      'Receivers fetch the signing keys from there: set TIDINGS_BASE_URL to the https address that they reach it by.',
    ),
  ]
}

/**
 * A machine may not reach its own public address from inside; a certificate that it is shown is what others are shown.
 */
const examineTls = async (url: URL): Promise<Check> => {
  const check = await checkReachable('TLS', url)
  if (check.status !== 'problem' || /certificate/.test(check.found)) return check
  return note('TLS', check.found, `From this machine TIDINGS_BASE_URL is not reached. ${check.next}`)
}

/**
 * From the server's machine: whether the guard lets deliveries through, and whether the endpoint takes a connection.
 */
const examineEndpoint = async ({ allowNetworks, requireHttps }: Config, url: URL): Promise<Check> => {
  if (requireHttps && url.protocol !== 'https:') {
    return problem('endpoint', `${url.href} is not https`, 'TIDINGS_REQUIRE_HTTPS is set: give it an https address.')
  }
  const guard = createNetworkGuard({ allow: allowNetworks })
  const closed = (await addressesOf(url)).filter(address => !guard.isAllowed(address))
  if (closed.length > 0) {
    const alone = closed.map(address => `${address}/${address.includes(':') ? 128 : 32}`)
    return problem(
      'endpoint',
      `${url.hostname} is at ${closed.join(', ')}, which the network guard does not send to`,
      `If it is meant to be reached: TIDINGS_ALLOW_NETWORKS=${[...allowNetworks, ...alone].join(',')}`,
    )
  }
  return checkReachable('endpoint', url)
}

const examineGuard = ({ allowNetworks, requireHttps, baseUrl }: Config): Check => {
  const guard = createNetworkGuard({ allow: allowNetworks })
  const inside = ['127.0.0.1', '::1', '169.254.169.254', '10.0.0.1', '172.16.0.1', '192.168.0.1'].filter(address =>
    guard.isAllowed(address),
  )
  const https = requireHttps ? 'https endpoints only' : 'http and https endpoints'
  if (allowNetworks.length === 0) return ok('network guard', `public addresses only; ${https}`)
  const found = `public addresses and ${allowNetworks.join(', ')}; ${https}`
  if (inside.length === 0 || isLoopback(new URL(baseUrl).hostname)) return ok('network guard', found)
  return note(
    'network guard',
    found,
    `Whoever may create webhooks reaches inside addresses (${inside.join(', ')}). ` +
      'Keep TIDINGS_ALLOW_NETWORKS to what is meant to be reached.',
  )
}

const examinePort = async ({ host, port }: Config): Promise<Check> => {
  const fault = await new Promise<NodeJS.ErrnoException | undefined>(resolve => {
    const server = createServer().once('error', resolve)
    server.listen(port, host, () => server.close(() => resolve(undefined)))
  })
  const at = `${host}:${port}`
  if (fault === undefined) return ok('port', `${at} is free: no server runs here`)
  if (fault.code !== 'EADDRINUSE') {
    return problem(
      'port',
      `cannot listen on ${at}: ${fault.message}`,
      'Set TIDINGS_HOST and TIDINGS_PORT to an address of this machine.',
    )
  }
  const shown = host === '0.0.0.0' || host === '::' ? '127.0.0.1' : host
  const answer = await readiness(`http://${shown.includes(':') ? `[${shown}]` : shown}:${port}`)
  if (answer?.status === 'ready') return ok('port', `a server runs on ${at}, and is ready`)
  if (answer?.status === 'not ready')
    return problem('port', `a server runs on ${at}, and is not ready: ${answer.reason}`, 'Its log tells more.')
  return problem(
    'port',
    `another program listens on ${at}`,
    `Stop it, or choose another port: TIDINGS_PORT=${port + 1}`,
  )
}

const readiness = async (base: string): Promise<{ status?: string; reason?: string } | undefined> => {
  try {
    const response = await fetch(`${base}/readyz`, { signal: AbortSignal.timeout(5_000) })
    return (await response.json()) as { status?: string; reason?: string }
  } catch {
    return undefined
  }
}

const opens = (open: () => string): boolean => {
  try {
    open()
    return true
  } catch {
    return false
  }
}

const isLoopback = (hostname: string): boolean => /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(hostname)

const withoutPassword = (url: string): string => {
  const { username, host, pathname } = URL.parse(url) ?? { username: '', host: 'the database', pathname: '' }
  return `mysql://${username && `${username}@`}${host}${pathname}`
}

const adviceOn = (code: string | undefined): string => {
  switch (code) {
    case 'ECONNREFUSED':
      return 'Nothing listens there: start the database, or mend host and port in TIDINGS_DATABASE_URL.'
    case 'ENOTFOUND':
    case 'EAI_AGAIN':
      return 'The host in TIDINGS_DATABASE_URL has no address here: check its name.'
    case 'ER_ACCESS_DENIED_ERROR':
    case 'ER_DBACCESS_DENIED_ERROR':
      return 'Check user and password in TIDINGS_DATABASE_URL, and what that user may do on this database.'
    case 'ER_BAD_DB_ERROR':
      return 'Create the database that TIDINGS_DATABASE_URL names: CREATE DATABASE tidings CHARACTER SET utf8mb4'
    default:
      return 'Check TIDINGS_DATABASE_URL, and that the database runs.'
  }
}
