import { readFileSync } from 'node:fs'
import type { Jwk } from '../shared/delivery-token.ts'
import { CliError, exitCodes, usageError } from './errors.ts'
import { neutralise } from './output/neutralise.ts'

/** The public keys that a token may be checked with; asked for each token, by its `kid`. */
export type KeySource = (kid: string | undefined) => Promise<readonly Jwk[]>

/** As long as the service lets them be cached. */
const FRESH_MS = 300_000
/** An unknown `kid` may mean new keys, but strangers must not be able to cause a request with each token. */
const LEAST_BETWEEN_MS = 10_000
const TIMEOUT_MS = 10_000

/** Where an issuer publishes its keys. */
export const jwksUrl = (issuer: string): string => `${issuer.replace(/\/$/, '')}/.well-known/jwks.json`

/** The keys at a URL, fetched when first needed, and again when they have aged or a token names one that is not among them. */
export const remoteKeys = (url: string): KeySource => {
  let keys: readonly Jwk[] | undefined
  let fetchedAt = 0
  return async kid => {
    const age = Date.now() - fetchedAt
    const unknown = keys !== undefined && !keys.some(key => key.kid === kid)
    if (keys === undefined || age > FRESH_MS || (unknown && age > LEAST_BETWEEN_MS)) {
      try {
        keys = await fetchKeys(url)
        fetchedAt = Date.now()
      } catch (error) {
        // An issuer that is being restarted publishes the key that is known already, once it is back.
        if (keys === undefined || unknown) throw error
      }
    }
    return keys
  }
}

/** The keys in a file, or at a URL. Throws a CliError, exit code 5, when the URL does not answer with a key set. */
export const keysFrom = (source: string): KeySource => {
  if (/^https?:\/\//.test(source)) return remoteKeys(source)
  const keys = readKeys(readKeyFile(source))
  if (!keys)
    throw usageError(
      `${source} is no JSON Web Key set.`,
      'It has the form {"keys":[…]}, as /.well-known/jwks.json answers it.',
    )
  return async () => keys
}

/** The `kid` in a token's header, believed in nothing but for looking a key up; undefined if it cannot be read. */
export const kidOf = (token: string): string | undefined => {
  try {
    const { kid } = JSON.parse(Buffer.from(token.split('.')[0]!, 'base64url').toString('utf8'))
    return typeof kid === 'string' ? kid : undefined
  } catch {
    return undefined
  }
}

const fetchKeys = async (url: string): Promise<readonly Jwk[]> => {
  let response: Response
  let text: string
  try {
    response = await fetch(url, {
      redirect: 'error',
      headers: { accept: 'application/json' },
      signal: AbortSignal.timeout(TIMEOUT_MS),
    })
    text = await response.text()
  } catch (error) {
    const { cause = error } = error as { cause?: unknown }
    throw noKeys(
      url,
      cause instanceof Error ? cause.message || String((cause as NodeJS.ErrnoException).code) : String(cause),
    )
  }
  const keys = response.ok ? readKeys(text) : undefined
  if (!keys) throw noKeys(url, response.ok ? 'what is there is no JSON Web Key set' : `it answered ${response.status}`)
  return keys
}

const noKeys = (url: string, why: string): CliError =>
  new CliError(
    exitCodes.unreachable,
    'KEYS_UNREACHABLE',
    `The issuer’s keys at ${neutralise(url)} could not be had: ${neutralise(why)}.`,
    'Name the issuer with --issuer, or where its keys are with --jwks URL or --jwks FILE.',
  )

const readKeyFile = (path: string): string => {
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    throw usageError(
      `The file of --jwks cannot be read: ${(error as Error).message}.`,
      'Give a URL that begins with https:// or http://, or a file.',
    )
  }
}

const readKeys = (text: string): readonly Jwk[] | undefined => {
  try {
    const { keys } = JSON.parse(text)
    return Array.isArray(keys) ? keys : undefined
  } catch {
    return undefined
  }
}
