import { readFileSync } from 'node:fs'
import { type RemoteKeys as KeySource, remoteKeys as keysAt } from '../../receiver/keys.ts'
import type { Jwk } from '../../shared/delivery-token.ts'
import { read, readToken } from '../../shared/token-format.ts'
import { CliError, exitCodes, usageError } from '../errors.ts'
import { neutralise } from '../output/neutralise.ts'

export { jwksUrl, type RemoteKeys as KeySource } from '../../receiver/keys.ts'

/** The unverified `kid` in a token's header, good only for looking up a key; undefined if it cannot be read. */
export const kidOf = (token: string): string | undefined => {
  const kid = read(readToken(token).header, 'kid')
  return typeof kid === 'string' ? kid : undefined
}

/** The keys at a URL, read by the receiver kit. Rejects with a CliError, exit code 5, if they are unavailable. */
export const remoteKeys = (url: string): KeySource => {
  const keys = keysAt(url)
  return kid =>
    keys(kid).catch((error: Error) => {
      throw new CliError(
        exitCodes.unreachable,
        'KEYS_UNREACHABLE',
        neutralise(error.message),
        'Name the issuer with --issuer, or where its keys are with --jwks URL or --jwks FILE.',
      )
    })
}

/** The keys in a file, or at a URL. Throws a CliError, exit code 2, if the file has none. */
export const keysFrom = (source: string): KeySource => {
  if (/^https?:\/\//.test(source) && URL.canParse(source)) return remoteKeys(source)
  const keys = readKeys(readKeyFile(source))
  if (!keys)
    throw usageError(
      `${source} is no JSON Web Key set.`,
      'It has the form {"keys":[…]}, as /.well-known/jwks.json answers it.',
    )
  return async () => keys
}

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
