import { readFileSync } from 'node:fs'
import { isIPv6 } from 'node:net'
import { join, resolve } from 'node:path'
import { parseEnv } from 'node:util'
import { z } from 'zod'
import { didYouMean } from '../shared/did-you-mean.ts'
import { parseRetrySchedule, RETRY_SCHEDULE_MS } from '../shared/retry-schedule.ts'
import { parseMysqlUrl } from './database/mysql-url.ts'
import { parseNetworks } from './delivery/network-guard.ts'

export const roles = ['api', 'delivery', 'scheduler'] as const
export type Role = (typeof roles)[number]

export type Config = {
  databaseUrl: string
  baseUrl: string
  /** Whether a reverse proxy stands in front: clients sign `baseUrl`, whatever host and path the proxy passes on. */
  behindProxy: boolean
  issuerUrl: string
  host: string
  port: number
  /** 32 bytes each; the first seals, all open. */
  masterKeys: Buffer[]
  roles: Role[]
  home: string
  allowNetworks: string[]
  requireHttps: boolean
  retryScheduleMs: readonly number[]
  /** Requests a minute a token; 0 for none. */
  rateLimit: number
  concurrency: number
  /** Connections to the database at most: of requests, and of delivery and the scheduler. */
  connections: { api: number; delivery: number }
  /** The most webhooks that one access token may have created. */
  webhooksPerToken: number
  retentionDays: number
  /** How long entries of the audit log are kept. */
  auditDays: number
  reportDueDays: number
  logLevel: string
  /** The address of `/metrics` and the health routes, if it is not the public one. */
  operations: { host: string; port: number } | undefined
  /** Opens `/metrics` on the public port to whoever has it. */
  metricsToken: string | undefined
}

/** All faults of the environment at once. */
export class ConfigError extends Error {
  readonly faults: string[]

  constructor(faults: string[]) {
    super(
      `The configuration has ${faults.length === 1 ? 'a fault' : `${faults.length} faults`}:\n` +
        faults.map(fault => `  ${fault}`).join('\n'),
    )
    this.name = 'ConfigError'
    this.faults = faults
  }
}

/** The file of the sandbox's own settings under TIDINGS_HOME. The environment takes precedence. */
export const SANDBOX_ENV = 'sandbox.env'

/** The message for a required setting that is missing. */
const MISSING: Record<string, string> = {
  TIDINGS_DATABASE_URL: 'is missing; say sqlite:PATH or mysql://user:password@host/database',
  TIDINGS_MASTER_KEY: 'is missing; make one with: openssl rand -base64 32',
}

const SECRETS = ['TIDINGS_MASTER_KEY', 'TIDINGS_DATABASE_URL', 'TIDINGS_METRICS_TOKEN']

const url = z
  .string()
  .refine(text => ['http:', 'https:'].includes(URL.parse(text)?.protocol ?? ''), 'is not an absolute http or https URL')
const integer = (least: number, most: number) =>
  z
    .string()
    .regex(/^\d+$/, `is not a whole number from ${least} to ${most}`)
    .transform(Number)
    .refine(value => value >= least && value <= most, `is not a whole number from ${least} to ${most}`)

/** Turns a parser that throws into one that zod reports. */
const parsed = <T>(parse: (text: string) => T) =>
  z.string().transform((text, context): T => {
    try {
      return parse(text)
    } catch (error) {
      context.addIssue({ code: 'custom', message: (error as Error).message })
      return z.NEVER
    }
  })

const masterKeys = (text: string): Buffer[] =>
  text.split(',').map(part => {
    const key = Buffer.from(part.trim(), 'base64')
    if (key.length !== 32) throw new Error('is not 32 bytes in base64; make one with: openssl rand -base64 32')
    return key
  })

const roleList = (text: string): Role[] =>
  text.split(',').map(part => {
    const role = roles.find(role => role === part.trim())
    if (!role) throw new Error(`"${part.trim()}" is not a role; choose from ${roles.join(', ')}`)
    return role
  })

const databaseUrl = (text: string): string => {
  if (/^sqlite:./.test(text)) return text
  if (!text.startsWith('mysql:')) throw new Error('is neither sqlite:PATH nor mysql://user:password@host/database')
  parseMysqlUrl(text)
  return text
}

/** scripts/reference.ts writes the `describe` texts into docs/reference/settings.md. */
const environment = z.object({
  TIDINGS_DATABASE_URL: parsed(databaseUrl).describe(
    '`sqlite:PATH` or `mysql://user:password@host:port/database`; encrypted with `?ssl-mode=REQUIRED`, ' +
      '`VERIFY_CA` or `VERIFY_IDENTITY`, and files in `ssl-ca`, `ssl-cert`, `ssl-key`',
  ),
  TIDINGS_HOST: z
    .string()
    .default('127.0.0.1')
    .describe('the address to listen on; `0.0.0.0` or `::` for all addresses of the machine'),
  TIDINGS_PORT: integer(0, 65535).default(4100).describe('the port to listen on'),
  TIDINGS_BASE_URL: url.optional().describe('the address that clients use; by default made from host and port'),
  TIDINGS_BEHIND_PROXY: z
    .enum(['true', 'false', '1', '0'], 'is neither true nor false')
    .default('false')
    .describe('`true` behind a reverse proxy: signatures are checked against host and path of ' + '`TIDINGS_BASE_URL`'),
  TIDINGS_ISSUER_URL: url.optional().describe('`iss` of delivery tokens; by default the base URL'),
  TIDINGS_MASTER_KEY: parsed(masterKeys).describe(
    '32 bytes in base64: `openssl rand -base64 32`. Encrypts secrets and private keys at rest. Several, ' +
      'separated by commas, while one replaces another: the first seals, all open',
  ),
  TIDINGS_ROLES: parsed(roleList)
    .default([...roles])
    .describe('the work of the process, separated by commas: `api`, `delivery`, `scheduler`'),
  TIDINGS_HOME: z.string().default('.tidings').describe('the sandbox’s folder'),
  TIDINGS_ALLOW_NETWORKS: parsed(parseNetworks)
    .default([])
    .describe('networks (CIDR, separated by commas) that deliveries may go to although they are not public'),
  TIDINGS_REQUIRE_HTTPS: z
    .enum(['true', 'false', '1', '0'], 'is neither true nor false')
    .default('false')
    .describe('`true` refuses webhooks that are not https'),
  TIDINGS_RETRY_SCHEDULE: parsed<readonly number[]>(parseRetrySchedule)
    .default(RETRY_SCHEDULE_MS)
    .describe('waits in seconds between the attempts at a delivery, separated by commas; for tests'),
  TIDINGS_RATE_LIMIT: integer(0, 10_000_000)
    .default(60_000)
    .describe(
      'requests a minute for each access token, over all processes, each of which takes up to 1 % in advance; ' +
        '0 for no limit',
    ),
  TIDINGS_CONCURRENCY: integer(1, 10_000).default(512).describe('the most attempts in flight in each process'),
  TIDINGS_API_CONNECTIONS: integer(2, 1_000)
    .default(12)
    .describe('the most database connections for requests in each process'),
  TIDINGS_DELIVERY_CONNECTIONS: integer(3, 1_000)
    .default(6)
    .describe('the most database connections for delivery and the scheduler in each process'),
  TIDINGS_WEBHOOKS_PER_TOKEN: integer(1, 1_000_000)
    .default(10_000)
    .describe('the most webhooks that one access token may have created'),
  TIDINGS_RETENTION_DAYS: integer(1, 3_650).default(30).describe('how long events and their deliveries are kept'),
  TIDINGS_AUDIT_DAYS: integer(1, 36_500).default(90).describe('how long entries of the audit log are kept'),
  TIDINGS_REPORT_DUE_DAYS: integer(0, 365).default(30).describe('days from a quarter’s end to its reports’ due date'),
  TIDINGS_METRICS_PORT: integer(1, 65535)
    .optional()
    .describe('the port for operations, which serves `/metrics` and the health checks instead of the public port'),
  TIDINGS_METRICS_HOST: z.string().default('127.0.0.1').describe('the address of `TIDINGS_METRICS_PORT`'),
  TIDINGS_METRICS_TOKEN: z
    .string()
    .regex(
      /^[\x21-\x7e]{16,}$/,
      'is not a token of at least 16 printable characters; make one with: openssl rand -hex 32',
    )
    .optional()
    .describe(
      'opens `/metrics` on the public port to requests with `Authorization: Bearer` and this token; without it, ' +
        'only loopback and private addresses that come through no proxy get it',
    ),
  TIDINGS_LOG_LEVEL: z
    .enum(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'])
    .default('info')
    .describe('`trace`, `debug`, `info`, `warn`, `error`, `fatal` or `silent`'),
})

/** Every setting in words; `fallback` is its default. */
export const settingsInWords = (): { name: string; fallback: string | undefined; means: string; isSecret: boolean }[] =>
  Object.entries(environment.shape).map(([name, schema]) => {
    const { data } = schema.safeParse(undefined)
    const isSecret = SECRETS.includes(name)
    return { name, fallback: inWords(name, data), means: schema.description ?? '', isSecret }
  })

const inWords = (name: string, value: unknown): string | undefined => {
  if (value === undefined) return undefined
  const list = name === 'TIDINGS_RETRY_SCHEDULE' ? RETRY_SCHEDULE_MS.map(ms => ms / 1000) : [value].flat()
  return list.length === 0 ? undefined : list.join(',')
}

/** The names of all settings of the server. */
export const settings = [...Object.keys(environment.shape), ...SECRETS.map(name => `${name}_FILE`)]

const KNOWN = settings.map(name => name.slice('TIDINGS_'.length))

/** What the command line reads, which may run in the same environment. */
const OF_THE_COMMAND_LINE = [
  'TIDINGS_URL',
  'TIDINGS_API_KEY',
  'TIDINGS_API_SECRET',
  'TIDINGS_API_SECRET_FILE',
  'TIDINGS_PROFILE',
  'TIDINGS_CA_FILE',
]

/** Unknown names: a misspelt setting would otherwise silently keep its default. */
const unknownNames = (env: NodeJS.ProcessEnv): string[] =>
  Object.keys(env)
    .filter(name => name.startsWith('TIDINGS_') && !name.startsWith('TIDINGS_TEST_'))
    .filter(name => !settings.includes(name) && !OF_THE_COMMAND_LINE.includes(name))
    .map(name => {
      const meant = didYouMean(name.slice('TIDINGS_'.length), KNOWN).replace('you mean ', 'you mean TIDINGS_')
      return `${name} is not a setting${meant}`
    })

/** Reads the environment, and each secret from the file that `…_FILE` names. Throws a ConfigError with every fault. */
export const readConfig = (env: NodeJS.ProcessEnv = process.env): Config => {
  const home = resolve(env.TIDINGS_HOME || '.tidings')
  const { given, faults: unread } = readGiven(env, home)
  const { data, error } = environment.safeParse(given)
  const wrong = (error?.issues ?? []).map(issue => describeIssue(issue, given))
  const faults = [...unknownNames(env), ...unread, ...wrong, ...conflictsOf(given, data)]
  if (faults.length > 0 || !data) throw new ConfigError(faults)
  return configOf(data, home)
}

type Given = Record<string, string | undefined>
type Values = z.infer<typeof environment>

const readGiven = (env: NodeJS.ProcessEnv, home: string): { given: Given; faults: string[] } => {
  const given: Given = {
    ...(env.TIDINGS_DATABASE_URL || env.TIDINGS_DATABASE_URL_FILE ? {} : readSandbox(home)),
    ...withoutEmpty(env),
  }
  const faults: string[] = []
  for (const name of SECRETS) {
    const file = given[`${name}_FILE`]
    if (!file) continue
    if (env[name]) faults.push(`${name} and ${name}_FILE are both set; keep one`)
    try {
      given[name] = readFileSync(file, 'utf8').trim()
    } catch (error) {
      faults.push(`${name}_FILE cannot be read: ${(error as Error).message}`)
    }
  }
  return { given, faults }
}

const describeIssue = ({ path, message }: z.core.$ZodIssue, given: Given): string => {
  const name = String(path[0])
  const missing = given[name] === undefined
  const wrong = (missing && MISSING[name]) || message
  return `${name} ${wrong}${missing || SECRETS.includes(name) ? '' : ` (found: ${JSON.stringify(given[name])})`}`
}

/** Settings that do not go together. */
const conflictsOf = (given: Given, values: Values | undefined): string[] => {
  const faults: string[] = []
  if (isTrue(values?.TIDINGS_BEHIND_PROXY) && !given.TIDINGS_BASE_URL) {
    faults.push(
      'TIDINGS_BASE_URL, the address that clients use, is missing; ' +
        'with TIDINGS_BEHIND_PROXY signatures are checked against it',
    )
  }
  if (given.TIDINGS_METRICS_HOST && !given.TIDINGS_METRICS_PORT) {
    faults.push('TIDINGS_METRICS_HOST is set without TIDINGS_METRICS_PORT, which it belongs to')
  }
  if (values && values.TIDINGS_METRICS_PORT === values.TIDINGS_PORT) {
    faults.push('TIDINGS_METRICS_PORT is the same as TIDINGS_PORT; choose another port, or leave it out')
  }
  return faults
}

const configOf = (values: Values, home: string): Config => {
  const baseUrl = (values.TIDINGS_BASE_URL ?? ownUrl(values.TIDINGS_HOST, values.TIDINGS_PORT)).replace(/\/+$/, '')
  return {
    databaseUrl: values.TIDINGS_DATABASE_URL,
    baseUrl,
    behindProxy: isTrue(values.TIDINGS_BEHIND_PROXY),
    issuerUrl: values.TIDINGS_ISSUER_URL ?? baseUrl,
    host: values.TIDINGS_HOST,
    port: values.TIDINGS_PORT,
    masterKeys: values.TIDINGS_MASTER_KEY,
    roles: values.TIDINGS_ROLES,
    home,
    allowNetworks: values.TIDINGS_ALLOW_NETWORKS,
    requireHttps: isTrue(values.TIDINGS_REQUIRE_HTTPS),
    retryScheduleMs: values.TIDINGS_RETRY_SCHEDULE,
    rateLimit: values.TIDINGS_RATE_LIMIT,
    concurrency: values.TIDINGS_CONCURRENCY,
    connections: { api: values.TIDINGS_API_CONNECTIONS, delivery: values.TIDINGS_DELIVERY_CONNECTIONS },
    webhooksPerToken: values.TIDINGS_WEBHOOKS_PER_TOKEN,
    retentionDays: values.TIDINGS_RETENTION_DAYS,
    auditDays: values.TIDINGS_AUDIT_DAYS,
    reportDueDays: values.TIDINGS_REPORT_DUE_DAYS,
    logLevel: values.TIDINGS_LOG_LEVEL,
    operations: values.TIDINGS_METRICS_PORT
      ? { host: values.TIDINGS_METRICS_HOST, port: values.TIDINGS_METRICS_PORT }
      : undefined,
    metricsToken: values.TIDINGS_METRICS_TOKEN,
  }
}

const isTrue = (value: string | undefined): boolean => value === 'true' || value === '1'

/** The address by which its own machine reaches a server that listens on `host`. */
export const ownUrl = (host: string, port: number): string => {
  const shown = host === '0.0.0.0' || host === '::' ? 'localhost' : host
  return `http://${isIPv6(shown) ? `[${shown}]` : shown}:${port}`
}

const withoutEmpty = (env: NodeJS.ProcessEnv): NodeJS.ProcessEnv =>
  Object.fromEntries(Object.entries(env).filter(([, value]) => value !== ''))

/** The sandbox under `home`, if there is one. Its database is beside its settings, even if the folder was moved. */
const readSandbox = (home: string): Record<string, string | undefined> => {
  try {
    const written = parseEnv(readFileSync(join(home, SANDBOX_ENV), 'utf8'))
    return { TIDINGS_DATABASE_URL: `sqlite:${join(home, 'tidings.sqlite')}`, ...written }
  } catch {
    return {}
  }
}
