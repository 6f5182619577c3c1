import type {
  ConfigurationFacts,
  ContentFacts,
  DatabaseFacts,
  EndpointFacts,
  GuardFacts,
  InstallationFacts,
  PortFacts,
  ReachedDatabaseFacts,
} from '../../server/doctor.ts'
import { databaseFile } from '../../shared/database-url.ts'
import { RUNNING_GRANTS } from '../../shared/vocabulary.ts'
import { cellText } from '../output/output.ts'
import { count, duration } from '../output/time.ts'
import { checkReachable } from './endpoint-check.ts'
import { type Finding, note, ok, problem, skipped } from './findings.ts'

/**
 * Signatures are valid for five minutes before and after; a clock that is off by a tenth of that will be worse
 * tomorrow.
 */
const CLOCK_TOLERANCE_MS = 30_000

/** Interprets the facts about an installation, and checks whether its own address and an endpoint are reachable. */
export const diagnoseInstallation = async (facts: InstallationFacts): Promise<Finding[]> => {
  if (facts.configurationFaults !== undefined) {
    return [
      ...facts.configurationFaults.map(fault =>
        problem(
          'configuration',
          fault,
          'docs/reference/settings.md lists every setting. To try Tidings without any: npm start',
        ),
      ),
      skipped('the rest', 'needs a configuration without faults'),
    ]
  }
  const { configuration, database, guard, port, endpoint } = facts
  return [
    ok(
      'configuration',
      `roles ${configuration.roles.join(', ')}; sealed with ${count(configuration.masterKeys, 'master key')}`,
    ),
    ...(await diagnoseAddresses(configuration)),
    ...diagnoseDatabase(database),
    diagnoseGuard(guard, configuration),
    diagnosePort(port),
    ...(endpoint === undefined ? [] : [await diagnoseEndpoint(endpoint, guard)]),
  ]
}

const diagnoseAddresses = async ({ baseUrl, issuerUrl }: ConfigurationFacts): Promise<Finding[]> => {
  const url = new URL(baseUrl)
  const found = issuerUrl === baseUrl ? `${baseUrl}, also the issuer of tokens` : `${baseUrl}; issuer ${issuerUrl}`
  if (url.protocol === 'https:') return [ok('addresses', found), await diagnoseTls(url)]
  if (isLoopback(url.hostname)) return [ok('addresses', found)]
  return [
    note(
      'addresses',
      `${found}; not https`,
      'Receivers fetch the signing keys there: set TIDINGS_BASE_URL to the https address by which they reach it.',
    ),
  ]
}

/**
 * A machine may not reach its own public address from inside, but a certificate that it sees is the one that others
 * see.
 */
const diagnoseTls = async (url: URL): Promise<Finding> => {
  const finding = await checkReachable('TLS', url)
  if (finding.status !== 'problem' || /certificate/.test(finding.found)) return finding
  return note('TLS', finding.found, `This machine does not reach TIDINGS_BASE_URL. ${finding.next}`)
}

const diagnoseDatabase = (facts: DatabaseFacts): Finding[] => {
  const rest = skipped('schema, clock, keys', 'need the database')
  switch (facts.state) {
    case 'absent':
      return [problem('database', `there is no ${facts.url} yet`, 'Create it with: tidings server migrate'), rest]
    case 'unreachable': {
      const { url, code, message } = facts
      return [problem('database', `${url} does not answer: ${message || code}`, adviceOn(code)), rest]
    }
    case 'reached':
      return [
        diagnoseVersion(facts),
        ...diagnoseFile(facts),
        ...diagnoseGrants(facts),
        diagnoseSchema(facts),
        ...diagnoseWrites(facts),
        diagnoseClock(facts),
        ...(facts.contents === undefined
          ? [skipped('keys, tokens, deliveries', 'need the schema')]
          : diagnoseContents(facts.contents)),
      ]
  }
}

const adviceOn = (code: string | undefined): string => {
  switch (code) {
    case 'ECONNREFUSED':
      return 'Nothing listens there: start the database, or correct host and port in TIDINGS_DATABASE_URL.'
    case 'ENOTFOUND':
    case 'EAI_AGAIN':
      return 'The host in TIDINGS_DATABASE_URL has no address here: check its name.'
    case 'ER_ACCESS_DENIED_ERROR':
    case 'ER_DBACCESS_DENIED_ERROR':
      return 'Check user and password in TIDINGS_DATABASE_URL, and the grants of that user on this database.'
    case 'ER_BAD_DB_ERROR':
      return 'Create the database that TIDINGS_DATABASE_URL names: CREATE DATABASE tidings CHARACTER SET utf8mb4'
    default:
      return 'Check TIDINGS_DATABASE_URL, and that the database runs.'
  }
}

const diagnoseVersion = ({
  url,
  engine,
  version,
  oldestVersion,
  isSupported,
  cipher,
}: ReachedDatabaseFacts & { url: string }): Finding => {
  const found = `${engine} ${version} at ${url}`
  if (!isSupported) return problem('database', found, `Tidings needs ${engine} ${oldestVersion.join('.')} or newer.`)
  if (cipher === undefined) return ok('database', found)
  if (cipher !== '') return ok('database', `${found}, encrypted with ${cipher}`)
  const isNear = isLoopback(new URL(url).hostname)
  if (isNear) return ok('database', found)
  return note('database', `${found}, not encrypted`, 'Encrypt the connection: add ?ssl-mode=REQUIRED to the URL.')
}

const diagnoseFile = ({ openFileMode, url }: ReachedDatabaseFacts & { url: string }): Finding[] => {
  if (openFileMode === undefined) return []
  const path = databaseFile(url)
  return [
    note(
      'file',
      `users other than its owner can read or write the database: its mode is ${openFileMode.toString(8)}`,
      `Unless that is intended: chmod 600 ${path}*`,
    ),
  ]
}

const diagnoseGrants = ({ engine, lacking, url }: ReachedDatabaseFacts & { url: string }): Finding[] => {
  if (engine === 'SQLite') return []
  if (lacking.length === 0) return [ok('grants', 'all that a server needs')]
  const others = lacking.length > 6 ? ` and ${lacking.length - 6} more` : ''
  const database = new URL(url).pathname.slice(1)
  return [
    problem(
      'grants',
      `the database’s user lacks ${lacking.slice(0, 6).join(', ')}${others}`,
      `As the database’s administrator: GRANT ${RUNNING_GRANTS.join(', ')} ON ${database}.* TO USER`,
    ),
  ]
}

const diagnoseSchema = ({ pendingMigrations, newerSchema, lacking }: ReachedDatabaseFacts): Finding => {
  if (newerSchema) return problem('schema', newerSchema, 'Run the version of Tidings that created it, or a newer one.')
  if (lacking.length > 0) return skipped('schema', 'needs the grants')
  if (pendingMigrations.length === 0) return ok('schema', 'current')
  return problem('schema', `lacks ${pendingMigrations.join(', ')}`, 'Bring it up to date with: tidings server migrate')
}

const diagnoseWrites = ({ unwritable }: ReachedDatabaseFacts): Finding[] =>
  unwritable === undefined
    ? []
    : [problem('writes', `the database cannot be written: ${unwritable}`, 'See docs/runbooks/disk-full.md')]

const diagnoseClock = ({ clockAheadMs }: ReachedDatabaseFacts): Finding => {
  const offMs = Math.abs(clockAheadMs)
  if (offMs < 1000) return ok('clock', 'the database’s agrees with this machine’s')
  const apart = `the database’s is ${duration(offMs)} ${clockAheadMs < 0 ? 'behind' : 'ahead of'} this machine’s`
  if (offMs < CLOCK_TOLERANCE_MS) return ok('clock', apart)
  return problem(
    'clock',
    apart,
    'Tidings uses the database’s clock: tokens and signatures fail if it is minutes off. ' +
      'Switch network time on on both machines.',
  )
}

const diagnoseContents = (facts: ContentFacts): Finding[] => [
  diagnoseKeys(facts.signingKeys),
  diagnoseTokens(facts.accessTokens),
  ...diagnoseWebhookSecrets(facts.webhookSecrets),
  diagnoseMasterKeys(facts.masterKeys, facts.processes),
  ...diagnoseProcesses(facts.processes),
  diagnoseQueue(facts),
  ...diagnosePulled(facts.pulled),
]

const diagnoseKeys = ({ number, closedKids }: ContentFacts['signingKeys']): Finding => {
  if (number === 0)
    return note('signing keys', 'none yet', 'The first is made when a server starts: tidings server start')
  if (closedKids.length === 0) return ok('signing keys', `${count(number, 'key')}, opened with the master key`)
  return problem(
    'signing keys',
    `${closedKids.length} of ${number} do not open with the master key: ${closedKids.join(', ')}`,
    'Give the master key that this database was set up with, or both while it is replaced: TIDINGS_MASTER_KEY=new,old',
  )
}

const diagnoseTokens = ({ admins, allOpen }: ContentFacts['accessTokens']): Finding => {
  if (!allOpen) {
    return problem(
      'access tokens',
      'the secrets of some were sealed with another master key',
      'Requests signed with them fail. Give the earlier key as well: TIDINGS_MASTER_KEY=new,old',
    )
  }
  if (admins > 0) return ok('access tokens', `${count(admins, 'token')} with the permission admin`)
  return note(
    'access tokens',
    'none has the permission admin',
    'Create the first with: tidings server token --name ops --permissions admin',
  )
}

const diagnoseWebhookSecrets = ({ number, closed }: ContentFacts['webhookSecrets']): Finding[] => {
  if (number === 0) return []
  const name = 'webhook secrets'
  const having = count(number, 'webhook has a secret or static headers', 'webhooks have a secret or static headers')
  if (closed.length === 0) return [ok(name, `${having}, opened with the master key`)]
  const sum = closed.reduce((before, each) => before + each.number, 0)
  return [
    problem(
      name,
      `${having}; those of ${sum} do not open with the master key, such as of ${closed[0]!.exampleId}`,
      'Their requests cannot be signed. Give the earlier key as well: TIDINGS_MASTER_KEY=new,old',
    ),
  ]
}

const diagnoseMasterKeys = (
  { own, used }: ContentFacts['masterKeys'],
  processes: ContentFacts['processes'],
): Finding => {
  const [sealing] = own as [string]
  const closed = used.filter(name => !own.includes(name))
  const names = `seals with ${sealing}${own.length > 1 ? `, opens ${own.slice(1).join(', ')} too` : ''}`
  if (closed.length > 0) {
    return problem(
      'master key',
      `${names}; secrets are sealed with ${closed.join(', ')}`,
      'Name that one as well, TIDINGS_MASTER_KEY=new,old, until `tidings server keys reseal` has been run.',
    )
  }
  const without = processes.filter(process => !process.masterKeys.includes(sealing))
  if (without.length > 0) {
    return problem(
      'master key',
      `${names}, which ${count(without.length, 'process', 'processes')} cannot open`,
      'Give it to every process first: TIDINGS_MASTER_KEY=old,new.',
    )
  }
  if (used.some(name => name !== sealing)) {
    const next = 'When every process has TIDINGS_MASTER_KEY=new,old: tidings server keys reseal'
    return note('master key', `${names}; not all is sealed with the first yet`, next)
  }
  return ok('master key', names)
}

const diagnoseProcesses = (processes: ContentFacts['processes']): Finding[] =>
  processes.length === 0
    ? []
    : [
        ok(
          'processes',
          processes.map(({ host, pid, version, roles }) => `${host} ${pid}: ${version}, ${roles}`).join('; '),
        ),
      ]

const diagnoseQueue = ({ overdue: { number, longestMs }, signsInMs }: ContentFacts): Finding => {
  if (number === 0) return ok('deliveries', 'none is overdue')
  const found = `${count(number, 'delivery is', 'deliveries are')} overdue, the oldest by ${duration(longestMs)}`
  if (signsInMs > 0) {
    const wait = `${found}: the key that signed was revoked, and the next one signs in ${duration(signsInMs)}`
    return note('deliveries', wait, 'Wait: they are sent then.')
  }
  return problem(
    'deliveries',
    found,
    'Does a server with the role “delivery” run? If so, are there enough for the load? /metrics of each shows it.',
  )
}

const SHOWN_CLIENTS = 3

const diagnosePulled = ({ webhooks, clients, left }: ContentFacts['pulled']): Finding[] => {
  if (webhooks === 0 && clients.length === 0) return []
  const waiting = clients.reduce((sum, one) => sum + one.waiting, 0)
  const who = clients
    .slice(0, SHOWN_CLIENTS)
    .map(one => `${cellText(one.accessTokenName)} from ${cellText(one.remoteAddress ?? 'an unknown address')}`)
  const more = clients.length > SHOWN_CLIENTS ? ' and others' : ''
  const whose = who.length > 0 ? ` (${who.join(', ')}${more})` : ''
  const found =
    `${count(webhooks, 'webhook is', 'webhooks are')} pulled, ` +
    `${count(waiting, 'request of a client waits', 'requests of clients wait')}${whose}`
  if (left.number === 0) return [ok('pulling', found)]
  const due = `${count(left.number, 'delivery is', 'deliveries are')} due where no client waits`
  return [note('pulling', `${found}; ${due}`, `Start its clients, or see: tidings why ${left.exampleId}`)]
}

const diagnoseGuard = (
  { allowNetworks, requireHttps, insideAllowed }: GuardFacts,
  { baseUrl }: ConfigurationFacts,
): Finding => {
  const https = requireHttps ? 'https endpoints only' : 'http and https endpoints'
  if (allowNetworks.length === 0) return ok('network guard', `public addresses only; ${https}`)
  const found = `public addresses and ${allowNetworks.join(', ')}; ${https}`
  if (insideAllowed.length === 0 || isLoopback(new URL(baseUrl).hostname)) return ok('network guard', found)
  return note(
    'network guard',
    found,
    `Whoever can create webhooks reaches internal addresses (${insideAllowed.join(', ')}). ` +
      'Limit TIDINGS_ALLOW_NETWORKS to what they should reach.',
  )
}

const diagnosePort = (facts: PortFacts): Finding => {
  const at = `${facts.host}:${facts.port}`
  switch (facts.state) {
    case 'free':
      return ok('port', `${at} is free: no server runs here`)
    case 'not to be had':
      return problem(
        'port',
        `cannot listen on ${at}: ${facts.message}`,
        'Set TIDINGS_HOST and TIDINGS_PORT to an address of this machine.',
      )
    case 'ready':
      return ok('port', `a server runs on ${at}, and is ready`)
    case 'not ready':
      return problem('port', `a server runs on ${at}, and is not ready: ${facts.reason}`, 'Its log says more.')
    case 'of another program':
      return problem(
        'port',
        `another program listens on ${at}`,
        `Stop it, or choose another port: TIDINGS_PORT=${facts.port + 1}`,
      )
  }
}

/**
 * Checks from the server's machine whether the network guard allows deliveries, and whether the endpoint accepts a
 * connection.
 */
const diagnoseEndpoint = async (
  { url, isRefusedAsHttp, closedAddresses }: EndpointFacts,
  { allowNetworks }: GuardFacts,
): Promise<Finding> => {
  if (isRefusedAsHttp) {
    return problem('endpoint', `${url.href} is not https`, 'TIDINGS_REQUIRE_HTTPS is set: give it an https address.')
  }
  if (closedAddresses.length > 0) {
    const opened = closedAddresses.map(address => `${address}/${address.includes(':') ? 128 : 32}`)
    return problem(
      'endpoint',
      `${url.hostname} is at ${closedAddresses.join(', ')}, to which the network guard does not send`,
      `To allow it: TIDINGS_ALLOW_NETWORKS=${[...allowNetworks, ...opened].join(',')}`,
    )
  }
  return checkReachable('endpoint', url)
}

const isLoopback = (hostname: string): boolean => /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(hostname)
