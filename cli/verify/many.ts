import type { Session } from '../connection/session.ts'
import { CliError, exitCodes } from '../errors.ts'
import { safeJson } from '../output/neutralise.ts'
import { type Colours, cellText } from '../output/output.ts'
import { count } from '../output/time.ts'
import { type AnyCheck, checkDelivery, type Expectations } from './check-token.ts'
import { readToken } from './token-source.ts'

/** The result of one of many saved requests. */
interface Verified {
  file: string
  id: unknown
  ok: boolean
  /** The file with the same token, if there is one. */
  replayOf: string | null
  checks: AnyCheck[]
}

/**
 * Checks saved requests and prints a line for each. A request with the token of another is a replay; a retry has the
 * same jti and its own token. Throws a CliError, exit code 6, if one is invalid.
 */
export const verifyMany = async (session: Session, files: string[], options: Expectations): Promise<void> => {
  const { output } = session
  const results: Verified[] = []
  const seen = new Map<string, string>()
  for (const file of files) {
    const needsToken = options.secretFile === undefined || options.issuer !== undefined || options.jwks !== undefined
    const given = await readToken({ request: file }, { needsToken })
    const replayOf = (needsToken ? seen.get(given.token) : undefined) ?? null
    const { claims, ok, checks } = await checkDelivery(session, given, { ...options, seen: () => replayOf !== null })
    if (replayOf === null) seen.set(given.token, file)
    const result = { file, id: claims?.jti ?? null, ok, replayOf, checks }
    results.push(result)
    if (output.form === 'table') output.data(`${describe(result, output.colours)}\n`)
    else if (output.form === 'id') output.data(`${cellText(result.id)}\n`)
    else if (output.form === 'ndjson') output.data(`${safeJson(result)}\n`)
  }
  if (output.form === 'json') output.data(`${safeJson(results, 2)}\n`)
  const failed = results.filter(({ ok }) => !ok)
  output.message(`${count(results.length, 'request')}: ${results.length - failed.length} valid, ${failed.length} not.`)
  if (failed.length === 0) return
  throw new CliError(
    exitCodes.verificationFailed,
    'VERIFICATION_FAILED',
    `${failed.length} of ${count(results.length, 'request')} did not verify.`,
    `See one in full with: tidings verify --request ${failed[0]!.file}`,
  )
}

const describe = ({ file, id, ok, replayOf, checks }: Verified, colours: Colours): string => {
  const named = `${ok ? colours.green('✓') : colours.red('✗')} ${cellText(file)}  ${cellText(id)}`
  if (ok) return named
  const failed = checks.filter(({ status }) => status === 'failed').map(({ name }) => name.replace('_', ' '))
  const replay = replayOf === null ? '' : `, the token of ${cellText(replayOf)}`
  return `${named}  ${colours.red(`${failed.join(', ')}${replay}`)}`
}
