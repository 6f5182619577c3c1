import { readFileSync } from 'node:fs'
import { isIP } from 'node:net'
import { didYouMean } from '../../shared/did-you-mean.ts'

/** The connection options of mysql2 that a URL holds. */
export type MysqlAddress = {
  host: string
  port: number
  user: string
  password: string
  database: string
  ssl?: {
    rejectUnauthorized: boolean
    verifyIdentity: boolean
    ca: string | undefined
    cert: string | undefined
    key: string | undefined
  }
}

const OPTIONS = ['ssl-mode', 'ssl-ca', 'ssl-cert', 'ssl-key'] as const
const MODES = ['DISABLED', 'REQUIRED', 'VERIFY_CA', 'VERIFY_IDENTITY'] as const
type Mode = (typeof MODES)[number]

/** Names of `ssl-mode` in other drivers. */
const OTHER_NAMES = ['sslmode', 'ssl_mode', 'sslMode', 'ssl', 'tls', 'useSSL', 'requireSSL']

const NOT_READABLE =
  'is no URL such as mysql://user:password@host:3306/database; in a password write # as %23, / as %2F, ? as %3F, ' +
  '@ as %40 and % as %25'

/**
 * Reads `mysql://user:password@host:port/database?ssl-mode=…&ssl-ca=…&ssl-cert=…&ssl-key=…`, with MySQL's own options
 * for encrypted connections; the last three are paths of PEM files. With only `ssl-ca` the mode is VERIFY_CA, with
 * neither it is DISABLED. Throws an Error that names what is wrong and repeats only options, because a URL contains a
 * password.
 */
export const parseMysqlUrl = (text: string): MysqlAddress => {
  const url = URL.parse(text)
  if (url?.protocol !== 'mysql:' || !url.hostname) {
    throw new Error(NOT_READABLE)
  }
  // If a password contains an unescaped delimiter, its rest looks like a name, and names are shown in messages.
  if ([url.pathname, url.hash, ...url.searchParams.keys()].some(part => part.includes('@'))) {
    throw new Error(NOT_READABLE)
  }
  const host = decodeURIComponent(url.hostname).replace(/^\[|\]$/g, '')
  const ssl = sslOf(url.searchParams, host)
  return {
    host,
    port: Number(url.port) || 3306,
    user: decodeURIComponent(url.username),
    password: decodeURIComponent(url.password),
    database: decodeURIComponent(url.pathname.slice(1)),
    ...(ssl && { ssl }),
  }
}

const sslOf = (given: URLSearchParams, host: string): MysqlAddress['ssl'] => {
  for (const name of given.keys()) checkOption(name, given)
  const mode = modeOf(given)
  if (mode === 'DISABLED') return undefined
  if (mode === 'VERIFY_IDENTITY' && isIP(host)) {
    throw new Error(`has ssl-mode=VERIFY_IDENTITY, which needs a host's name; ${host} is an address`)
  }
  const read = (name: (typeof OPTIONS)[number]) => readPem(name, given.get(name))
  return {
    rejectUnauthorized: mode !== 'REQUIRED',
    verifyIdentity: mode === 'VERIFY_IDENTITY',
    ca: read('ssl-ca'),
    cert: read('ssl-cert'),
    key: read('ssl-key'),
  }
}

const checkOption = (name: string, given: URLSearchParams): void => {
  if (given.getAll(name).length > 1) throw new Error(`has ${name} twice`)
  if (OPTIONS.some(option => option === name)) return
  const meant = OTHER_NAMES.includes(name) ? '; did you mean ssl-mode=REQUIRED?' : didYouMean(name, OPTIONS)
  throw new Error(`has the option ${JSON.stringify(name)}, which is not one of ${OPTIONS.join(', ')}${meant}`)
}

const modeOf = (given: URLSearchParams): Mode => {
  const written = given.get('ssl-mode')
  if (written === null) {
    if (given.has('ssl-ca')) return 'VERIFY_CA'
    if (given.has('ssl-cert') || given.has('ssl-key')) return 'REQUIRED'
    return 'DISABLED'
  }
  const mode = MODES.find(mode => mode === written.toUpperCase())
  if (!mode) {
    const why = /^preferred$/i.test(written) ? ': it would go without encryption, unseen' : ''
    throw new Error(`has ssl-mode=${written}${why}; choose from ${MODES.join(', ')}`)
  }
  const hasFiles = OPTIONS.slice(1).some(option => given.has(option))
  if (mode === 'DISABLED' && hasFiles)
    throw new Error('has ssl-mode=DISABLED, and also files for an encrypted connection')
  return mode
}

const readPem = (name: string, path: string | null): string | undefined => {
  if (path === null) return undefined
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    throw new Error(`has ${name}=${path}, which cannot be read: ${(error as Error).message}`)
  }
}
