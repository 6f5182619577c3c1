import { Command } from '@commander-js/extra-typings'
import { isId } from '../../shared/ids.ts'
import { Session } from '../connection/session.ts'
import { CliError, exitCodes, usageError } from '../errors.ts'
import { collect, examples, readText } from '../options.ts'
import { type Colours, cellText } from '../output/output.ts'
import { roomFor, wrap } from '../output/wrap.ts'
import { resolveId } from '../resources/ids.ts'
import { type AnyCheck, checkDelivery } from '../verify/check-token.ts'
import { keysFrom } from '../verify/jwks.ts'
import { readToken } from '../verify/token-source.ts'

const verifyUsage = () =>
  new Command('verify')
    .description(
      'Checks a delivery token as a receiver must, and shows every check with what it expected, ' +
        'what it found and what to do. With --secret-file it checks the signatures of Standard Webhooks instead, ' +
        'without a connection, and the token too if --issuer or --jwks is given. Exit code 6 if a check fails.',
    )
    .argument('[token]', 'the token, or the whole Authorization header; - reads either from standard input')
    .option('--clipboard', 'read the Authorization header, or only the token, from the clipboard')
    .option(
      '--request <files...>',
      'read token, body and audience from a request that listen --save kept, or from curl’s output with -v, ' +
        '--trace or --trace-ascii; - for standard input. Several requests get a line each',
    )
    .option('--issuer <url>', 'what iss must equal; by default the server’s URL')
    .option('--audience <url>', 'what aud must equal: the endpoint’s URL as registered')
    .option('--jwks <source>', 'URL or file of the issuer’s keys; by default the issuer’s /.well-known/jwks.json')
    .option('--body <body>', 'the delivery’s body, to compare eventId with jti: the text, @FILE, or -')
    .option('--secret-file <path>', 'secrets of Standard Webhooks (whsec_…), one a line; - for standard input')
    .option('--webhook-id <ids>', 'the ids or names of your own webhooks, one of which the body must name', collect)
    .option('--strict', 'fail if issuer or audience are unknown, instead of leaving them unchecked')
    .option('--at <time>', 'check at this time (ISO 8601) instead of now')
    .option('--evidence <file>', 'check a document of deliveries export instead, without a connection')
    .addHelpText(
      'after',
      examples(
        ['The header just copied from a log', 'tidings verify --clipboard --audience https://example.com/hooks'],
        [
          'A token that has expired since, at the time it was received',
          'tidings verify @token.txt --at 2026-11-21T00:40:01Z',
        ],
        ['What tidings listen --save kept; finds replays among them', 'tidings verify --request received/*.http'],
        [
          'The signature by Standard Webhooks, without a connection',
          'tidings verify --request request.http --secret-file secret.txt --at 2026-11-21T00:40:01Z',
        ],
        [
          'The evidence of a delivery, with the issuer’s keys from elsewhere',
          'tidings verify --evidence evidence.json --jwks jwks.json',
        ],
        ['Without a connection', 'tidings verify - --jwks jwks.json --issuer https://tidings.example.com < token.txt'],
      ),
    )

export const verifyCommand = () =>
  verifyUsage().action(async (argument, given, command) => {
    const session = new Session(command)
    if (given.evidence !== undefined) {
      if (argument !== undefined || given.request !== undefined || given.clipboard) {
        throw usageError('Evidence is given, and a token too.', 'Give one of them.')
      }
      return verifyEvidence(session, given.evidence, given.jwks)
    }
    const [request, ...more] = given.request ?? []
    const options = { ...given, webhookId: await namedIds(session, given.webhookId) }
    if (more.length > 0) {
      if (argument !== undefined || options.clipboard || options.body !== undefined) {
        throw usageError('Several requests are given, and a token or a body too.', 'Give only the requests.')
      }
      const { verifyMany } = await import('../verify/many.ts')
      return verifyMany(session, [request!, ...more], options)
    }
    if (argument === '-' || request === '-') tellToPaste(session)
    const needsToken = options.secretFile === undefined || options.issuer !== undefined || options.jwks !== undefined
    const read = await readToken({ argument, ...options, request }, { needsToken })
    const body = options.body === undefined ? read.body : readText(options.body, 'The body')
    const isExact = options.body !== undefined || read.isExact
    const checked = await checkDelivery(session, { ...read, body, isExact }, options)
    const { checks } = checked
    const { output } = session
    output.one({ id: checked.claims?.jti, ...checked }, colours => describe(checks, colours))
    const failed = checks.filter(check => check.status === 'failed')
    if (failed.length === 0) {
      const skipped = checks.filter(check => check.status === 'skipped').map(check => labelOf(check.name))
      const reserve = skipped.length === 0 ? '' : `, as far as it was checked: not for ${skipped.join(', ')}`
      output.message(`The ${needsToken ? 'token' : 'signature'} is valid${reserve}.`)
      return
    }
    throw new CliError(
      exitCodes.verificationFailed,
      'VERIFICATION_FAILED',
      `The ${needsToken ? 'token' : 'signature'} is not valid: ` +
        `${failed.map(({ name }) => labelOf(name)).join(', ')} failed.`,
      // People see it beside the check.
      output.forPeople ? undefined : failed.find(({ advice }) => advice)?.advice,
    )
  })

const verifyEvidence = async ({ output }: Session, file: string, jwks: string | undefined): Promise<void> => {
  const { checkEvidence, readEvidence } = await import('../verify/evidence.ts')
  const evidence = readEvidence(file)
  const checks = await checkEvidence(evidence, jwks === undefined ? undefined : await keysFrom(jwks)(undefined))
  const failed = checks.filter(({ status }) => status === 'failed')
  const result = { id: evidence.delivery.id, ok: failed.length === 0, checks }
  output.one(result, colours => describe(checks, colours))
  if (failed.length === 0) {
    return output.message(
      jwks === undefined
        ? 'The evidence is as it was signed. Whose key that is was not checked: give the issuer’s keys with --jwks.'
        : 'The evidence is as the issuer signed it.',
    )
  }
  throw new CliError(
    exitCodes.verificationFailed,
    'VERIFICATION_FAILED',
    `The evidence is not as it was exported: ${failed.map(({ name }) => name).join(', ')} failed.`,
    output.forPeople ? undefined : failed[0]?.advice,
  )
}

/** Whole ids need no server. */
const namedIds = async (session: Session, given: string[] | undefined): Promise<string[] | undefined> =>
  given && Promise.all(given.map(one => (isId(one) ? one : resolveId(session, 'webhooks', one))))

/** Nothing else shows that the command waits for standard input. */
const tellToPaste = ({ output }: Session): void => {
  if (process.stdin.isTTY) output.message('Paste it here, then press Enter and ctrl-D.')
}

const labelOf = (name: string): string => name.replaceAll('_', ' ')

/** A check of a token, a signature or evidence. */
type ShownCheck = Omit<AnyCheck, 'name'> & { name: string }

const describe = (checks: ShownCheck[], colours: Colours): string =>
  checks.map(check => describeCheck(check, colours, Math.max(...checks.map(({ name }) => name.length)))).join('')

const describeCheck = (
  { name, status, expected, found, advice }: ShownCheck,
  colours: Colours,
  width: number,
): string => {
  const label = labelOf(name).padEnd(width)
  const indent = ' '.repeat(width + 3)
  const fill = (text: string, style: (line: string) => string): string =>
    wrap(text, roomFor(width + 3))
      .map(style)
      .join(`\n${indent}`)
  if (status === 'passed')
    return `${colours.green('✓')} ${label} ${colours.dim(cellText(found ?? expected ?? 'as it should be'))}\n`
  if (status === 'skipped')
    return `${colours.dim('–')} ${label} ${fill(`not checked. ${cellText(advice ?? '')}`, colours.dim)}\n`
  return [
    `${colours.red('✗')} ${label} expected ${cellText(expected)}`,
    `${indent}found    ${cellText(found)}`,
    ...(advice ? [indent + fill(`→ ${cellText(advice)}`, colours.yellow)] : []),
    '',
  ].join('\n')
}
