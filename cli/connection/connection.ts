import { readFileSync } from 'node:fs'
import { CliError, exitCodes, usageError } from '../errors.ts'
import { noSuchProfile, type Profile, type Profiles, profilesPath } from './profiles.ts'

/** A server and its access token. */
export interface Connection {
  url: URL
  apiKey: string
  /** Base64; the secret half of the access token. Never printed. */
  apiSecret: string
  /** Where each comes from, if that is known. */
  from?: { apiKey: string; apiSecret: string }
}

/** The connection flags. `apiSecret` can only be `-`, for standard input. */
export interface ConnectionFlags {
  profile?: string | undefined
  url?: string | undefined
  apiKey?: string | undefined
  apiSecret?: string | undefined
  apiSecretFile?: string | undefined
  caFile?: string | undefined
}

/** A setting and the source of its value, for `tidings config` and for messages. */
export interface Setting {
  value: string
  source: string
}

export interface Settings {
  profile: Setting | undefined
  url: Setting | undefined
  apiKey: Setting | undefined
  apiSecret: Setting | undefined
  /** Notes about the sources, such as an environment variable that overrides a profile's value. */
  warnings: string[]
  /** Why saved profiles could not be read, which matters only if a setting is missing. */
  profilesFault?: CliError | undefined
}

/**
 * Resolves each setting by itself: flag, then environment, then profile. A profile's secret is used only with that
 * profile's API key, because with another it would fail.
 * @throws CliError if a named profile does not exist, or a secret is given in a way that others could see
 */
export const resolveSettings = (flags: ConnectionFlags, environment: NodeJS.ProcessEnv, stored: Profiles): Settings => {
  const chosen = chooseProfile(flags, environment, stored)
  const fromProfile = (field: keyof Profile): Setting | undefined =>
    chosen && { value: chosen.stored[field], source: `profile ${chosen.setting.value}` }
  const fromEnvironment = (name: string): Setting | undefined => {
    const value = environment[name]
    return value ? { value, source: name } : undefined
  }
  const fromFlag = (value: string | undefined, flag: string): Setting | undefined =>
    value === undefined ? undefined : { value, source: flag }

  const url = fromFlag(flags.url, '--url') ?? fromEnvironment('TIDINGS_URL') ?? fromProfile('url')
  const apiKey = fromFlag(flags.apiKey, '--api-key') ?? fromEnvironment('TIDINGS_API_KEY') ?? fromProfile('apiKey')
  const pairedWithProfile = apiKey !== undefined && apiKey.value === chosen?.stored.apiKey
  const apiSecret =
    secretFromFlags(flags) ??
    secretFromEnvironment(environment) ??
    (pairedWithProfile ? fromProfile('apiSecret') : undefined)

  const warnings = flags.profile === undefined ? [] : hiddenByEnvironment(flags.profile, [url, apiKey, apiSecret])
  return { profile: chosen?.setting, url, apiKey, apiSecret, warnings }
}

/** The server's base URL, for commands that need no access token. Throws a CliError if none is known. */
export const serverUrl = (settings: Settings): URL => {
  if (!settings.url) throw settings.profilesFault ?? notConnected('No server is named')
  return parseServerUrl(settings.url)
}

/** The whole connection. Throws a CliError, exit code 4, that says which part is missing. */
export const connect = (settings: Settings): Connection => {
  const url = serverUrl(settings)
  if (!settings.apiKey) throw settings.profilesFault ?? notConnected('No API key is known')
  if (!settings.apiSecret) {
    if (settings.profilesFault) throw settings.profilesFault
    throw notConnected(`There is no secret for API key ${settings.apiKey.value} (from ${settings.apiKey.source})`)
  }
  const { apiKey, apiSecret } = settings
  return {
    url,
    apiKey: apiKey.value,
    apiSecret: apiSecret.value,
    from: { apiKey: apiKey.source, apiSecret: apiSecret.source },
  }
}

const chooseProfile = (flags: ConnectionFlags, environment: NodeJS.ProcessEnv, stored: Profiles) => {
  const named: Setting | undefined =
    flags.profile !== undefined
      ? { value: flags.profile, source: '--profile' }
      : environment.TIDINGS_PROFILE
        ? { value: environment.TIDINGS_PROFILE, source: 'TIDINGS_PROFILE' }
        : stored.current !== undefined
          ? { value: stored.current, source: profilesPath() }
          : undefined
  const setting = named ?? { value: 'sandbox', source: 'default' }
  const profile = Object.hasOwn(stored.profiles, setting.value) ? stored.profiles[setting.value] : undefined
  if (profile) return { setting, stored: profile }
  if (named) throw noSuchProfile(named.value, stored)
  return undefined
}

const secretFromFlags = (flags: ConnectionFlags): Setting | undefined => {
  if (flags.apiSecret !== undefined && flags.apiSecretFile !== undefined) {
    throw usageError('--api-secret and --api-secret-file are both given.', 'Give one of them.')
  }
  if (flags.apiSecretFile !== undefined) return secretFromFile(flags.apiSecretFile, '--api-secret-file')
  if (flags.apiSecret === undefined) return undefined
  if (flags.apiSecret !== '-') {
    throw usageError(
      'A secret on the command line can be read by every process on this machine, and stays in the shell’s history.',
      'Pipe it in with --api-secret -, name a file with --api-secret-file, or set TIDINGS_API_SECRET_FILE. ' +
        'Replace the one just typed if it was real.',
    )
  }
  if (process.stdin.isTTY) {
    throw usageError(
      '--api-secret - reads standard input, which is a terminal.',
      'Pipe the secret in, or use: tidings login',
    )
  }
  return trimmed(readFileSync(0, 'utf8'), 'standard input')
}

const secretFromEnvironment = (environment: NodeJS.ProcessEnv): Setting | undefined => {
  const { TIDINGS_API_SECRET: value, TIDINGS_API_SECRET_FILE: file } = environment
  if (value && file) {
    throw usageError('TIDINGS_API_SECRET and TIDINGS_API_SECRET_FILE are both set.', 'Unset one of them.')
  }
  if (file) return secretFromFile(file, 'TIDINGS_API_SECRET_FILE')
  return value ? { value, source: 'TIDINGS_API_SECRET' } : undefined
}

const secretFromFile = (path: string, source: string): Setting => {
  let text: string
  try {
    text = readFileSync(path, 'utf8')
  } catch (error) {
    throw usageError(
      `The file that ${source} names cannot be read: ${(error as Error).message}`,
      'Check its path and its owner.',
    )
  }
  return trimmed(text, source)
}

const trimmed = (text: string, source: string): Setting => {
  const value = text.trim()
  if (!value) throw usageError(`The secret from ${source} is empty.`)
  return { value, source }
}

const parseServerUrl = ({ value, source }: Setting): URL => {
  const url = URL.parse(value)
  if (!url || !/^https?:$/.test(url.protocol)) {
    throw usageError(
      `${JSON.stringify(value)} (from ${source}) is not the address of a server.`,
      'Give the base URL with its scheme, such as https://tidings.example.com or http://127.0.0.1:4100.',
    )
  }
  if (url.username || url.password || url.search || url.hash) {
    throw usageError(
      `The server’s URL (from ${source}) has more than a scheme, a host and a path.`,
      'Leave out user, query and fragment.',
    )
  }
  // The address of the API itself is often what is at hand.
  url.pathname = url.pathname.replace(/\/graphql\/?$/, '/')
  return url
}

const notConnected = (what: string): CliError =>
  new CliError(
    exitCodes.notPermitted,
    'NOT_LOGGED_IN',
    `${what}.`,
    'Log in with: tidings login. Or set TIDINGS_URL, TIDINGS_API_KEY and TIDINGS_API_SECRET_FILE. ' +
      'Or start a sandbox with: npm start',
  )

const hiddenByEnvironment = (profile: string, used: (Setting | undefined)[]): string[] => {
  const variables = used.flatMap(setting => (setting?.source.startsWith('TIDINGS_') ? [setting.source] : []))
  if (variables.length === 0) return []
  return [
    `${variables.join(' and ')} in the environment ${variables.length === 1 ? 'overrides' : 'override'} ` +
      `what profile ${profile} says.`,
  ]
}
