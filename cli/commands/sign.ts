import { Command } from '@commander-js/extra-typings'
import { stringToSign } from '../../shared/hmac.ts'
import { parseIso } from '../../shared/time.ts'
import { sign } from '../connection/client.ts'
import { Session } from '../connection/session.ts'
import { usageError } from '../errors.ts'
import { examples, readBytes } from '../options.ts'

/** As the server accepts it; an empty one usually comes from a program that was not found. */
const IDEMPOTENCY_KEY = /^[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?$/

const signUsage = () =>
  new Command('sign')
    .description(
      'Prints the headers of a signed request, one a line, as curl -H @- reads them; ' +
        'with --output json as an object, and with --verbose the string to sign. ' +
        'A signature is valid for 5 minutes before and after, and for one mutation.',
    )
    .option('-X, --method <method>', 'HTTP method', 'POST')
    .option('--path <path>', 'path and query, below the server’s URL', '/graphql')
    .option('-d, --body <body>', 'the body: the text itself, @FILE, or - for standard input', '')
    .option('--idempotency-key <key>', 'sign an Idempotency-Key, so that a repeated mutation is done once')
    .option('--at <time>', 'sign for this time (ISO 8601) instead of now')
    .addHelpText(
      'after',
      examples(
        [
          'Send a query with curl',
          `echo '{"query":"{ organisations { id name } }"}' > query.json
tidings sign --body @query.json | curl -H @- --data-binary @query.json http://127.0.0.1:4100/graphql`,
        ],
        [
          'A mutation that may be sent again: sign anew with the same key',
          'tidings sign --body @mutation.json --idempotency-key report-2026-3 | ' +
            'curl -H @- --data-binary @mutation.json http://127.0.0.1:4100/graphql',
        ],
        ['Another path, without a body', `tidings sign --method GET --path '/graphql?query=%7Bviewer%7Bid%7D%7D'`],
      ),
    )

export const signCommand = () =>
  signUsage().action((options, command) => {
    const session = new Session(command)
    const { url: base, apiKey, apiSecret } = session.connection
    const at = options.at === undefined ? Date.now() : parseIso(options.at)
    if (at === undefined)
      throw usageError(`${JSON.stringify(options.at)} is no ISO 8601 time.`, 'Such as: 2026-11-21T08:00:00Z')
    if (!options.path.startsWith('/')) throw usageError('The path does not begin with “/”.', 'Such as: --path /graphql')
    if (options.idempotencyKey !== undefined && !IDEMPOTENCY_KEY.test(options.idempotencyKey))
      throw usageError(
        `${JSON.stringify(options.idempotencyKey)} is no idempotency key.`,
        'Give 1 to 255 printable ASCII characters, such as a new UUID for each mutation.',
      )
    const url = new URL(`${base.href.replace(/\/$/, '')}${options.path}`)
    const body = bodyBytes(options.body)
    const { authorization = '', ...signed } = sign({
      method: options.method,
      url,
      body,
      credentials: { apiKey, apiSecret },
      at: new Date(at),
      idempotencyKey: options.idempotencyKey,
    })
    const covered = { method: options.method, pathAndQuery: url.pathname + url.search }
    session.output.detail(`The string to sign:\n${stringToSign({ ...covered, signedValues: Object.values(signed) })}\n`)
    const { host: _, ...sent } = signed
    const type = body.length > 0 ? { 'content-type': 'application/json' } : {}
    const headers = { ...type, accept: 'application/json', ...sent, authorization }
    const { output } = session
    if (output.formGiven && output.form !== 'table') {
      output.data(`${JSON.stringify(headers, null, output.form === 'json' ? 2 : undefined)}\n`)
    } else {
      output.data(
        Object.entries(headers)
          .map(([name, value]) => `${name}: ${value}\n`)
          .join(''),
      )
      if (process.stdout.isTTY)
        output.message(
          `\nSend them with: tidings sign … | curl -H @- ${body.length > 0 ? '--data-binary @FILE ' : ''}${url.href}`,
        )
    }
  })

/** The body is signed byte by byte, so a file is used unchanged. */
const bodyBytes = (value: string): Uint8Array => {
  if (value === '-') return readBytes(0, 'The body')
  return value.startsWith('@') ? readBytes(value.slice(1), 'The body') : Buffer.from(value)
}
