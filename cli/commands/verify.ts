import { Command } from '@commander-js/extra-typings'
import { type Check, type Verification, verifyDeliveryToken } from '../../shared/delivery-token.ts'
import { parseIso } from '../../shared/time.ts'
import { CliError, exitCodes, usageError } from '../errors.ts'
import { jwksUrl, keysFrom, kidOf } from '../jwks.ts'
import { examples, readBytes, readText } from '../options.ts'
import { type Colours, cellText } from '../output/output.ts'
import { possibleUrls, readRequest } from '../saved-request.ts'
import { Session } from '../session.ts'

export const verifyCommand = () =>
  new Command('verify')
    .description(
      'Checks a delivery token as a receiver must, and shows every check with what was expected, what was found and what to do. Exit code 6 when one fails.',
    )
    .argument('[token]', 'the token, with or without “Bearer ”; - for standard input')
    .option('--request <file>', 'take token, body and audience from a saved HTTP request; - for standard input')
    .option('--issuer <url>', 'what iss must equal; the server’s URL unless given')
    .option('--audience <url>', 'what aud must equal: the endpoint’s URL as registered')
    .option(
      '--jwks <source>',
      'URL or file of the issuer’s keys; from the issuer’s /.well-known/jwks.json unless given',
    )
    .option('--body <body>', 'the delivery’s body, to compare eventId with jti: the text, @FILE, or -')
    .option('--at <time>', 'check as of this time (ISO 8601) instead of now')
    .addHelpText(
      'after',
      examples(
        [
          'A token from a log, as of when it was received',
          'tidings verify eyJ… --audience https://example.com/hooks --at 2026-11-21T00:40:01Z',
        ],
        ['A request that tidings listen --save kept', 'tidings verify --request deliveries/0193….http'],
        ['Without a connection', 'tidings verify - --jwks jwks.json --issuer https://tidings.example.com < token.txt'],
      ),
    )
    .action(async (argument, options, command) => {
      const session = new Session(command)
      const { token, body, audience } = readInput(argument, options)
      const issuer = options.issuer ?? session.settings.url?.value.replace(/\/$/, '')
      const source = options.jwks ?? (issuer && jwksUrl(issuer))
      if (!source)
        throw usageError(
          'It is not known whose keys to check with.',
          'Name the issuer with --issuer, or its keys with --jwks.',
        )
      const verification = await verifyDeliveryToken(token, {
        keys: await keysFrom(source)(kidOf(token)),
        ...(issuer !== undefined && { issuer }),
        ...(audience !== undefined && { audience }),
        ...(body !== undefined && { body }),
        ...(options.at !== undefined && { at: parseAt(options.at) }),
      })
      session.output.one({ id: verification.claims?.jti, ...verification }, colours => describe(verification, colours))
      if (verification.ok) return
      const failed = verification.checks.filter(check => check.status === 'failed').map(check => check.name)
      throw new CliError(
        exitCodes.verificationFailed,
        'VERIFICATION_FAILED',
        `The token is not valid: ${failed.join(', ')} failed.`,
        firstAdvice(verification.checks),
      )
    })

interface Input {
  request?: string | undefined
  audience?: string | undefined
  body?: string | undefined
}

const readInput = (argument: string | undefined, { request, ...given }: Input) => {
  const explicitBody = given.body === undefined ? undefined : readText(given.body, 'The body')
  if (request === undefined) {
    if (argument === undefined)
      throw usageError('No token is given.', 'Give the token, - to read it from standard input, or --request FILE.')
    return { token: bare(readText(argument, 'The token')), body: explicitBody, audience: given.audience }
  }
  if (argument !== undefined) throw usageError('A token and --request are both given.', 'Give one of them.')
  const saved = readRequest(readBytes(request === '-' ? 0 : request, 'The saved request').toString('utf8'))
  if (saved.authorization === undefined)
    throw usageError('The saved request has no Authorization header.', 'Save it whole; tidings listen --save does.')
  const token = bare(saved.authorization)
  const urls = possibleUrls(saved)
  const audience = given.audience ?? urls.find(url => url === audienceOf(token)) ?? urls[0]
  return { token, body: explicitBody ?? saved.body, audience }
}

/** What follows “Bearer ” in the header, which may have been pasted with its name. */
const bare = (text: string): string => text.trim().replace(/^(authorization:\s*)?bearer\s+/i, '')

/** Only to tell which of the URLs that a request may have come to is meant. */
const audienceOf = (token: string): unknown => {
  try {
    return JSON.parse(Buffer.from(token.split('.')[1] ?? '', 'base64url').toString('utf8')).aud
  } catch {
    return undefined
  }
}

const parseAt = (text: string): Date => {
  const ms = parseIso(text)
  if (ms === undefined)
    throw usageError(`${JSON.stringify(text)} is no ISO 8601 time.`, 'Such as: 2026-11-21T00:40:01Z')
  return new Date(ms)
}

const describe = ({ ok, checks }: Verification, colours: Colours): string => {
  const lines = checks.flatMap(check => describeCheck(check, colours))
  const skipped = checks.filter(check => check.status === 'skipped').map(check => check.name)
  const verdict = ok ? colours.green('The token is valid') : colours.red('The token is not valid')
  const reserve = ok && skipped.length > 0 ? `, as far as it was checked: not for ${skipped.join(', ')}` : ''
  return `${lines.join('\n')}\n\n${verdict}${reserve}.\n`
}

const WIDTH = 11

const describeCheck = ({ name, status, expected, found, advice }: Check, colours: Colours): string[] => {
  const label = name.replace('_', ' ').padEnd(WIDTH)
  const indent = ' '.repeat(WIDTH + 3)
  if (status === 'passed')
    return [`${colours.green('✓')} ${label} ${colours.dim(cellText(found ?? expected ?? 'as it should be'))}`]
  if (status === 'skipped')
    return [`${colours.dim('–')} ${label} ${colours.dim(`not checked. ${cellText(advice ?? '')}`)}`]
  return [
    `${colours.red('✗')} ${label} expected ${cellText(expected)}`,
    `${indent}found    ${cellText(found)}`,
    ...(advice ? [`${indent}${colours.yellow(cellText(advice))}`] : []),
  ]
}

const firstAdvice = (checks: Check[]): string | undefined =>
  checks.find(check => check.status === 'failed' && check.advice)?.advice
