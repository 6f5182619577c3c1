import { Command } from '@commander-js/extra-typings'
import { type Check, type Verification, verifyDeliveryToken } from '../../shared/delivery-token.ts'
import { parseIso } from '../../shared/time.ts'
import { Session } from '../connection/session.ts'
import { CliError, exitCodes, usageError } from '../errors.ts'
import { collect, examples, readText } from '../options.ts'
import { type Colours, cellText } from '../output/output.ts'
import { roomFor, wrap } from '../output/wrap.ts'
import { withAdvice } from '../verify/check-advice.ts'
import { jwksUrl, keysFrom, kidOf } from '../verify/jwks.ts'
import { claimsOf, readToken } from '../verify/token-source.ts'

export const verifyCommand = () =>
  new Command('verify')
    .description(
      'Checks a delivery token as a receiver must, and shows every check with what was expected, ' +
        'what was found and what to do. Exit code 6 when one fails.',
    )
    .argument('[token]', 'the token, or the whole Authorization header; - reads either from standard input')
    .option('--clipboard', 'take the Authorization header, or the token alone, from the clipboard')
    .option(
      '--request <file>',
      'take token, body and audience from a request as listen --save keeps it, or as curl tells it with -v, ' +
        '--trace or --trace-ascii; - for standard input',
    )
    .option('--issuer <url>', 'what iss must equal; the server’s URL unless given')
    .option('--audience <url>', 'what aud must equal: the endpoint’s URL as registered')
    .option(
      '--jwks <source>',
      'URL or file of the issuer’s keys; from the issuer’s /.well-known/jwks.json unless given',
    )
    .option('--body <body>', 'the delivery’s body, to compare eventId with jti: the text, @FILE, or -')
    .option('--webhook-id <ids>', 'the ids of your own webhooks, one of which the body must name', collect)
    .option('--at <time>', 'check as of this time (ISO 8601) instead of now')
    .addHelpText(
      'after',
      examples(
        ['The header just copied from a log', 'tidings verify --clipboard --audience https://example.com/hooks'],
        [
          'A token that has expired since, as of when it was received',
          'tidings verify @token.txt --at 2026-11-21T00:40:01Z',
        ],
        ['A request that tidings listen --save kept', 'tidings verify --request received/delivery.http'],
        ['Without a connection', 'tidings verify - --jwks jwks.json --issuer https://tidings.example.com < token.txt'],
      ),
    )
    .action(async (argument, options, command) => {
      const session = new Session(command)
      if (argument === '-' || options.request === '-') tellToPaste(session)
      const given = await readToken({ argument, ...options })
      const body = options.body === undefined ? given.body : readText(options.body, 'The body')
      const audience = options.audience ?? given.audience
      const at = options.at === undefined ? undefined : parseAt(options.at)
      const issuer = options.issuer ?? session.settings.url?.value.replace(/\/$/, '')
      const keySource = options.jwks ?? (issuer && jwksUrl(issuer))
      if (!keySource)
        throw usageError(
          'It is not known whose keys to check with.',
          `Name the sender’s address with --issuer, or a file or URL of its keys with --jwks.${issuerOf(given.token)}`,
        )
      const verification = await verifyDeliveryToken(given.token, {
        keys: await session.output.waiting(hostOf(keySource), keysFrom(keySource)(kidOf(given.token))),
        ...(issuer !== undefined && { issuer }),
        ...(audience !== undefined && { audience }),
        ...(body !== undefined && { body }),
        ...(options.webhookId !== undefined && { webhookIds: options.webhookId }),
        ...(at !== undefined && { at }),
      })
      const issuerAssumed = options.issuer === undefined
      const isRewritten = options.body === undefined && !given.isExact
      const checked = isRewritten ? withoutDigest(verification) : verification
      const checks = await withAdvice(checked, { token: given.token, keySource, issuer, issuerAssumed, audience, at })
      const { output } = session
      output.one({ id: verification.claims?.jti, ...checked, checks }, colours => describe(checks, colours))
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
        // For people it stands with the check.
        output.forPeople ? undefined : failed.find(({ advice }) => advice)?.advice,
      )
    })

const hostOf = (keySource: string): string => URL.parse(keySource)?.host || keySource

/** Of a body that is not told byte for byte, the digest is not known. */
const withoutDigest = (verification: Verification): Verification => {
  const checks = verification.checks.map(
    (check): Check =>
      check.name === 'body_digest'
        ? {
            name: check.name,
            status: 'skipped',
            advice: 'curl --trace-ascii does not tell the body byte for byte; --trace does.',
          }
        : check,
  )
  return { ...verification, checks, ok: checks.every(({ status }) => status !== 'failed') }
}

/** Whom the token names: for a person to judge, and not to be believed by itself. */
const issuerOf = (token: string): string => {
  const { iss } = claimsOf(token)
  return typeof iss === 'string' ? ` The token says that it comes from ${cellText(iss)}.` : ''
}

/** Nothing shows that standard input is waited for. */
const tellToPaste = ({ output }: Session): void => {
  if (process.stdin.isTTY) output.message('Paste it here, then press Enter and ctrl-D.')
}

const parseAt = (text: string): Date => {
  const ms = parseIso(text)
  if (ms === undefined)
    throw usageError(`${JSON.stringify(text)} is no ISO 8601 time.`, 'Such as: 2026-11-21T00:40:01Z')
  return new Date(ms)
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
