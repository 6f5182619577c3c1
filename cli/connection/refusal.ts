import type { ErrorCode, RefusalReason } from '../../shared/vocabulary.ts'
import { CliError, type ExitCode, exitCodes } from '../errors.ts'
import { neutralise } from '../output/neutralise.ts'
import { duration } from '../output/time.ts'
import { entryFor } from '../output/words.ts'
import type { Connection } from './connection.ts'

/** An error of a GraphQL answer. */
export interface ServerError {
  message: string
  extensions?: Record<string, unknown>
}

/** A refused request and what is known about it. */
interface Refusal {
  message: string
  /** The error's message; printing makes it safe for a terminal. */
  extensions: Record<string, unknown>
  response: Response
  apiKey: string
  from: Connection['from']
}

export const serverError = (
  { message, extensions = {} }: ServerError,
  response: Response,
  { apiKey, from }: Pick<Connection, 'apiKey' | 'from'>,
): CliError => {
  const code = typeof extensions.code === 'string' ? neutralise(extensions.code) : 'FAILED'
  const more =
    extensions.reason === 'clock_skew'
      ? bothClocks(extensions, response)
      : code === 'PING_FAILED'
        ? whatItSaid(extensions)
        : ''
  return new CliError(
    entryFor(EXIT_CODES, code) ?? exitCodes.failed,
    code,
    neutralise(message.replace(/\bVariable "\$\w+" has invalid value: /, '')) + more,
    entryFor(HINTS, code)?.({ message, extensions, response, apiKey, from }),
  )
}

/** Only the endpoint's own words can say why it refused its ping. */
const whatItSaid = ({ response }: Record<string, unknown>): string => {
  const text = typeof response === 'string' ? neutralise(response.replaceAll(/\s+/g, ' ').trim()) : ''
  return text === '' ? '' : ` It said: ${text.length > 300 ? `${text.slice(0, 300)}…` : text}`
}

const EXIT_CODES: Record<ErrorCode, ExitCode> = {
  UNAUTHENTICATED: exitCodes.notPermitted,
  FORBIDDEN: exitCodes.notPermitted,
  NOT_FOUND: exitCodes.notFound,
  BAD_USER_INPUT: exitCodes.usage,
  PING_FAILED: exitCodes.failed,
  CONFLICT: exitCodes.failed,
  RESULT_TOO_LARGE: exitCodes.failed,
  QUERY_TOO_COMPLEX: exitCodes.failed,
  RATE_LIMITED: exitCodes.failed,
  UNAVAILABLE: exitCodes.unreachable,
  INTERNAL_SERVER_ERROR: exitCodes.failed,
}

const none = (): undefined => undefined

/** The hint for each error; undefined if its message already says it. */
const HINTS: Record<ErrorCode, (refusal: Refusal) => string | undefined> = {
  UNAUTHENTICATED: ({ extensions, apiKey, from }) =>
    (entryFor(REFUSAL_HINTS, String(extensions.reason)) ?? whichToken)(neutralise(apiKey), from),
  FORBIDDEN: () => 'An admin can create one with it: tidings tokens create --help',
  NOT_FOUND: () =>
    'Check the id. What an access token may not see does not exist for it: tidings whoami shows what it sees.',
  BAD_USER_INPUT: ({ message }) =>
    /"EventType" enum/.test(message) ? 'The event types are in: tidings webhooks create --help' : undefined,
  PING_FAILED: ({ message }) =>
    message.includes('Nobody pulled')
      ? 'Run this again while a client pulls, such as: tidings listen --pull --webhook-id ID'
      : 'Repair the endpoint and run this again. To try without an endpoint of your own: tidings listen --register',
  CONFLICT: none,
  RESULT_TOO_LARGE: () =>
    'Narrow it with a selector, or ask for fewer fields. A list of the command line gets all rows page by page ' +
    'with --all.',
  QUERY_TOO_COMPLEX: none,
  RATE_LIMITED: ({ response }) => {
    const seconds = response.headers.get('retry-after')
    return seconds && /^\d+$/.test(seconds)
      ? `Try again in ${duration(Number(seconds) * 1000)}.`
      : 'Try again in a minute.'
  },
  UNAVAILABLE: none,
  INTERNAL_SERVER_ERROR: ({ extensions, response }) => {
    const requestId = extensions.requestId ?? response.headers.get('x-request-id')
    return (
      'Try again. If the error stays, give the request id to whoever runs the server: ' +
      `${neutralise(String(requestId ?? 'none'))}`
    )
  },
}

const whichToken = (_apiKey: string): string =>
  'See which server and key are used, and why, with: tidings config. Save others with: tidings login'
const askForAnother = (ended: string): string =>
  `This access token was ${ended}. Ask an admin for a new one, then: tidings login`

const isSaved = (source: string): boolean => source.startsWith('profile ') || source === 'the prompt'

/** The hint for a request refused with 401. */
const REFUSAL_HINTS: Record<RefusalReason, (apiKey: string, from: Connection['from']) => string> = {
  clock_skew: () => 'Set this machine’s clock, for instance by switching on network time.',
  unknown_key: apiKey =>
    `Check the key ${apiKey} and the server. See both, and where they come from, with: tidings config`,
  bad_signature: (apiKey, from) =>
    from === undefined || isSaved(from.apiSecret)
      ? `The secret does not belong to API key ${apiKey}. Save both again with: tidings login`
      : `The secret (from ${from.apiSecret}) does not belong to API key ${apiKey} (from ${from.apiKey}). Correct ` +
        `${from.apiSecret}, or leave it out to use a saved profile.`,
  expired: () => askForAnother('good until its time'),
  revoked: () => askForAnother('withdrawn'),
  missing: whichToken,
  malformed: whichToken,
  body_hash_mismatch: whichToken,
  replayed: whichToken,
}

const bothClocks = (extensions: Record<string, unknown>, response: Response): string => {
  const said = extensions.serverTime ?? response.headers.get('date')
  const server = typeof said === 'string' ? Date.parse(said) : Number.NaN
  if (Number.isNaN(server)) return ''
  const here = Date.now()
  const apart = `${duration(Math.abs(here - server))} ${here < server ? 'behind' : 'ahead'}`
  return (
    ` This machine’s clock: ${new Date(here).toISOString()}. The server’s: ${new Date(server).toISOString()}. ` +
    `This one is ${apart}.`
  )
}
