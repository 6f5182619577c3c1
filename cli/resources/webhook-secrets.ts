import { keyOfSecret, SECRET_FORM } from '../../shared/standard-webhooks.ts'
import type { Session } from '../connection/session.ts'
import { usageError } from '../errors.ts'
import { readBytes } from '../options.ts'

const textOf = (path: string, what: string): string => readBytes(path === '-' ? 0 : path, what).toString('utf8')

/** The secret of Standard Webhooks in a file; `-` for standard input. Throws a CliError, exit code 2. */
export const readSecretFile = (path: string): string => {
  const secret = textOf(path, 'The secret').trim()
  if (keyOfSecret(secret)) return secret
  throw usageError('The secret has another form.', `It must be ${SECRET_FORM}.`)
}

/**
 * Before a secret is made that is shown only once: throws a CliError, exit code 2, if the output would not show it. A
 * secret of the caller's own is not lost.
 */
export const mustShowSecret = ({ output }: Session, own: string | undefined): void => {
  if (own !== undefined) return
  if (output.form === 'id') throw usageError('--output id would lose the secret.', 'Take --output json.')
  output.mustNotBeLost()
}

/** The secrets in a file, one a line; `-` for standard input. Throws a CliError, exit code 2. */
export const readSecretsFile = (path: string): string[] => {
  const secrets = textOf(path, 'The secret')
    .split(/\s+/)
    .filter(secret => secret !== '')
  if (secrets.length > 0 && secrets.every(keyOfSecret)) return secrets
  throw usageError('The secret has another form.', `Each line must be ${SECRET_FORM}.`)
}

/** The static headers in a file, one `Name: value` a line; `-` for standard input. Throws a CliError, exit code 2. */
export const readHeadersFile = (path: string): Record<string, string> => {
  const lines = textOf(path, 'The headers')
    .split(/\r?\n/)
    .flatMap((line, index) => (line.trim() === '' || line.startsWith('#') ? [] : [{ line, number: index + 1 }]))
  const headers: Record<string, string> = Object.create(null)
  for (const { line, number } of lines) {
    const colon = line.indexOf(':')
    // The message does not repeat the line, which may be secret.
    if (colon < 1) throw usageError(`Line ${number} of the headers is no header.`, 'Such as: X-Api-Key: VALUE')
    const name = line.slice(0, colon).trim()
    if (Object.hasOwn(headers, name)) throw usageError(`Line ${number} of the headers names ${name} again.`)
    headers[name] = line.slice(colon + 1).trim()
  }
  return headers
}
