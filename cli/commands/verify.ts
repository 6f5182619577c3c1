import { Command } from '@commander-js/extra-typings'
import type { Check } from '../../shared/delivery-token.ts'
import { Session } from '../connection/session.ts'
import { CliError, exitCodes, usageError } from '../errors.ts'
import { collect, examples, readText } from '../options.ts'
import { type Colours, cellText } from '../output/output.ts'
import { roomFor, wrap } from '../output/wrap.ts'
import { checkToken } from '../verify/check-token.ts'
import { readToken } from '../verify/token-source.ts'

export const verifyCommand = () =>
  new Command('verify')
    .description(
      'Checks a delivery token as a receiver must, and shows every check with what it expected, ' +
        'what it found and what to do. Exit code 6 if one fails.',
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
    .option('--webhook-id <ids>', 'the ids of your own webhooks, one of which the body must name', collect)
    .option('--strict', 'fail if issuer or audience are unknown, instead of leaving them unchecked')
    .option('--at <time>', 'check at this time (ISO 8601) instead of now')
    .addHelpText(
      'after',
      examples(
        ['The header just copied from a log', 'tidings verify --clipboard --audience https://example.com/hooks'],
        [
          'A token that has expired since, at the time it was received',
          'tidings verify @token.txt --at 2026-11-21T00:40:01Z',
        ],
        ['What tidings listen --save kept; finds replays among them', 'tidings verify --request received/*.http'],
        ['Without a connection', 'tidings verify - --jwks jwks.json --issuer https://tidings.example.com < token.txt'],
      ),
    )
    .action(async (argument, options, command) => {
      const session = new Session(command)
      const [request, ...more] = options.request ?? []
      if (more.length > 0) {
        if (argument !== undefined || options.clipboard || options.body !== undefined) {
          throw usageError('Several requests are given, and a token or a body too.', 'Give only the requests.')
        }
        const { verifyMany } = await import('../verify/many.ts')
        return verifyMany(session, [request!, ...more], options)
      }
      if (argument === '-' || request === '-') tellToPaste(session)
      const given = await readToken({ argument, ...options, request })
      const body = options.body === undefined ? given.body : readText(options.body, 'The body')
      const isExact = options.body !== undefined || given.isExact
      const checked = await checkToken(session, { ...given, body, isExact }, options)
      const { checks } = checked
      const { output } = session
      output.one({ id: checked.claims?.jti, ...checked }, colours => describe(checks, colours))
      const failed = checks.filter(check => check.status === 'failed')
      if (failed.length === 0) {
        const skipped = checks.filter(check => check.status === 'skipped').map(check => check.name.replace('_', ' '))
        const reserve = skipped.length === 0 ? '' : `, as far as it was checked: not for ${skipped.join(', ')}`
        output.message(`The token is valid${reserve}.`)
        return
      }
      throw new CliError(
        exitCodes.verificationFailed,
        'VERIFICATION_FAILED',
        `The token is not valid: ${failed.map(({ name }) => name.replace('_', ' ')).join(', ')} failed.`,
        // People see it beside the check.
        output.forPeople ? undefined : failed.find(({ advice }) => advice)?.advice,
      )
    })

/** Nothing else shows that the command waits for standard input. */
const tellToPaste = ({ output }: Session): void => {
  if (process.stdin.isTTY) output.message('Paste it here, then press Enter and ctrl-D.')
}

const describe = (checks: Check[], colours: Colours): string =>
  checks.map(check => describeCheck(check, colours)).join('')

const WIDTH = 11

const describeCheck = ({ name, status, expected, found, advice }: Check, colours: Colours): string => {
  const label = name.replace('_', ' ').padEnd(WIDTH)
  const indent = ' '.repeat(WIDTH + 3)
  const fill = (text: string, style: (line: string) => string): string =>
    wrap(text, roomFor(WIDTH + 3))
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
