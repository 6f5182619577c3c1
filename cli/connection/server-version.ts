import { neutralise } from '../output/neutralise.ts'

const TIMEOUT_MS = 3_000

/** The server's version from its OpenAPI description; undefined if it has none. */
export const serverVersion = async (base: URL): Promise<string | undefined> => {
  try {
    const url = new URL('spec/webhooks.json', base.href.replace(/\/?$/, '/'))
    const response = await fetch(url, { redirect: 'manual', signal: AbortSignal.timeout(TIMEOUT_MS) })
    const { info } = (await response.json()) as { info?: { version?: unknown } }
    return typeof info?.version === 'string' ? neutralise(info.version) : undefined
  } catch {
    return undefined
  }
}

/**
 * A note if the versions differ in the major number, or before 1.0.0 in the minor number (semver.org, 4). Undefined
 * otherwise.
 */
export const difference = (server: string | undefined, own: string): string | undefined => {
  if (server === undefined || line(server) === line(own)) return undefined
  const [older, newer] = isOlder(own, server) ? ['this command line', 'server'] : ['the server', 'command line']
  return (
    `The server is version ${server} and this command line ${own}: ${older} may not know what the ${newer} does. ` +
    'Use the same version for both.'
  )
}

const line = (version: string): string => {
  const [major, minor] = version.split('.')
  return major === '0' ? `0.${minor}` : `${major}`
}

const isOlder = (one: string, other: string): boolean => one.localeCompare(other, 'en', { numeric: true }) < 0
