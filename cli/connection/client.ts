import { randomUUID } from 'node:crypto'
import { signRequest } from '../../shared/hmac.ts'
import type { ErrorCode, RefusalReason } from '../../shared/vocabulary.ts'
import { CliError, type ExitCode, exitCodes } from '../errors.ts'
import { neutralise } from '../output/neutralise.ts'
import { duration } from '../output/time.ts'
import { entryFor } from '../output/words.ts'
import type { Connection } from './connection.ts'

/** Longer than the server takes to ping an endpoint that does not answer (15 s), which some mutations wait for. */
const TIMEOUT_MS = 60_000

/** Sends a query or mutation and answers with its data. Throws a CliError. */
export type Ask = <Data>(document: string, variables?: object) => Promise<Data>

export interface GraphqlRequest {
  url: URL
  body: string
}

/** The request that `graphql` sends, before it is signed. */
export const graphqlRequest = (base: URL, document: string, variables: object): GraphqlRequest => ({
  url: new URL('graphql', base.href.endsWith('/') ? base : `${base.href}/`),
  body: JSON.stringify({ query: document, variables }),
})

/**
 * Sends a signed GraphQL request and answers with its `data`. What failed in a way that is safe to repeat is repeated
 * twice: a query after a broken connection or a server that is just starting, a mutation only if it never left.
 * @throws CliError with the exit code that the server's error stands for.
 */
export const graphql = async <Data>(
  connection: Connection,
  document: string,
  variables: object = {},
): Promise<Data> => {
  const request = graphqlRequest(connection.url, document, variables)
  const mutates = hasMutation(document)
  const safeToRepeat = (error: unknown) => error instanceof Unreachable && (error.unsent || !mutates)
  const attempt = () => send<Data>(connection, request)
  try {
    return await attempt()
  } catch (error) {
    if (!safeToRepeat(error)) throw error
    const { default: pRetry } = await import('p-retry')
    return pRetry(attempt, { retries: 1, minTimeout: 300, shouldRetry: ({ error }) => safeToRepeat(error) })
  }
}

/** Whether a document may hold a mutation. Errs on the side of yes: what looks like one is not repeated. */
export const hasMutation = (document: string): boolean => /\bmutation\b/.test(document)

/** The server was not reached, or what answered was not (yet) it. */
class Unreachable extends CliError {
  /** Nothing of the request can have arrived. */
  readonly unsent: boolean

  constructor(message: string, hint: string, unsent: boolean, code = 'UNREACHABLE') {
    super(exitCodes.unreachable, code, message, hint)
    this.unsent = unsent
  }
}

const send = async <Data>({ apiKey, apiSecret }: Connection, { url, body }: GraphqlRequest): Promise<Data> => {
  const { host: _, ...headers } = sign({ method: 'POST', url, body, credentials: { apiKey, apiSecret } })
  let response: Response
  let text: string
  try {
    response = await fetch(url, {
      method: 'POST',
      headers: { ...headers, 'content-type': 'application/json', accept: 'application/json' },
      body,
      redirect: 'manual',
      signal: AbortSignal.timeout(TIMEOUT_MS),
    })
    text = await response.text()
  } catch (error) {
    throw notReached(url, error)
  }
  const answer = parseAnswer(text)
  if (!answer) throw notTidings(url, response)
  const [error] = answer.errors ?? []
  if (error && response.status === 503) {
    throw new Unreachable(neutralise(error.message), 'Try again in a moment.', true, 'UNAVAILABLE')
  }
  if (error) throw serverError(error, response, apiKey)
  return answer.data as Data
}

/**
 * The headers of a signed request, made now and with a nonce of its own. Throws a CliError when the secret is not one.
 */
export const sign = (
  request: Omit<Parameters<typeof signRequest>[0], 'at' | 'nonce'> & { at?: Date; nonce?: string },
): Record<string, string> => {
  try {
    return signRequest({ at: new Date(), nonce: randomUUID(), ...request })
  } catch (error) {
    if ((error as { code?: unknown }).code !== 'INVALID_API_SECRET') throw error
    throw new CliError(
      exitCodes.notPermitted,
      'INVALID_API_SECRET',
      (error as Error).message,
      'See where it comes from with: tidings config. Save it again with: tidings login',
    )
  }
}

interface ServerError {
  message: string
  extensions?: Record<string, unknown>
}

const parseAnswer = (text: string): { data?: unknown; errors?: ServerError[] } | undefined => {
  try {
    const answer: unknown = JSON.parse(text)
    const known = typeof answer === 'object' && answer !== null && ('data' in answer || 'errors' in answer)
    return known ? (answer as { data?: unknown; errors?: ServerError[] }) : undefined
  } catch {
    return undefined
  }
}

/** What the server said no to, and all that is known of it. */
interface Refusal {
  message: string
  /** Of the error, made safe for a terminal where it is printed. */
  extensions: Record<string, unknown>
  response: Response
  apiKey: string
}

const serverError = ({ message, extensions = {} }: ServerError, response: Response, apiKey: string): CliError => {
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
    entryFor(HINTS, code)?.({ message, extensions, response, apiKey }),
  )
}

/** Why an endpoint refused its ping is in its own words, if anywhere. */
const whatItSaid = ({ response }: Record<string, unknown>): string => {
  const text = typeof response === 'string' ? neutralise(response.replaceAll(/\s+/g, ' ').trim()) : ''
  return text === '' ? '' : ` It said: ${text.length > 300 ? `${text.slice(0, 300)}…` : text}`
}

const EXIT_CODES: Record<ErrorCode, ExitCode> = {
  UNAUTHENTICATED: exitCodes.notPermitted,
  FORBIDDEN: exitCodes.notPermitted,
  NOT_FOUND: exitCodes.notFound,
  BAD_USER_INPUT: exitCodes.failed,
  PING_FAILED: exitCodes.failed,
  CONFLICT: exitCodes.failed,
  RESULT_TOO_LARGE: exitCodes.failed,
  QUERY_TOO_COMPLEX: exitCodes.failed,
  RATE_LIMITED: exitCodes.failed,
  UNAVAILABLE: exitCodes.unreachable,
  INTERNAL_SERVER_ERROR: exitCodes.failed,
}

const none = (): undefined => undefined

/** What to do about each error; undefined where its message says it. */
const HINTS: Record<ErrorCode, (refusal: Refusal) => string | undefined> = {
  UNAUTHENTICATED: ({ extensions, apiKey }) =>
    (entryFor(REFUSAL_HINTS, String(extensions.reason)) ?? whichToken)(neutralise(apiKey)),
  FORBIDDEN: () => 'An admin can make one that may: tidings tokens create --help',
  NOT_FOUND: () =>
    'Check the id. What an access token may not see does not exist for it: tidings whoami shows what it sees.',
  BAD_USER_INPUT: ({ message }) =>
    /"EventType" enum/.test(message) ? 'The event types are in: tidings webhooks create --help' : undefined,
  PING_FAILED: () => 'Mend the endpoint and run this again. To try without one of your own: tidings listen --register',
  CONFLICT: none,
  RESULT_TOO_LARGE: () =>
    'Narrow it with a selector, or page: --limit 1000 --sort id, and then --after with the last id of each page.',
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
      'Try again. If it stays, tell whoever runs the server the request id: ' +
      `${neutralise(String(requestId ?? 'none'))}`
    )
  },
}

const whichToken = (_apiKey: string): string =>
  'See which server and key are used, and why, with: tidings config. Save others with: tidings login'
const askForAnother = (ended: string): string =>
  `This access token was ${ended}. Ask an admin for a new one, then: tidings login`

/** What to do about a request that was refused with 401. */
const REFUSAL_HINTS: Record<RefusalReason, (apiKey: string) => string> = {
  clock_skew: () => 'Set this machine’s clock, for instance by switching on network time.',
  unknown_key: apiKey =>
    `Is ${apiKey} the key that was meant, and the server? See both, and where they come from, with: tidings config`,
  bad_signature: apiKey => `The secret does not belong to API key ${apiKey}. Save both again with: tidings login`,
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

const UNSENT = new Set([
  'ECONNREFUSED',
  'ENOTFOUND',
  'EAI_AGAIN',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'UND_ERR_CONNECT_TIMEOUT',
])

const notReached = (url: URL, error: unknown): CliError => {
  if (error instanceof DOMException && error.name === 'TimeoutError') {
    return new Unreachable(
      `${url.origin} did not answer within ${duration(TIMEOUT_MS)}.`,
      'Try again, or ask whoever runs the server.',
      false,
    )
  }
  const code = causeCode(error)
  if (/CERT|SELF_SIGNED|UNABLE_TO_VERIFY/.test(code)) {
    return new Unreachable(
      `${url.origin} was not reached: its certificate is not accepted (${code}).`,
      'See what is wrong with it, and what to do, with: tidings doctor',
      true,
    )
  }
  const hint =
    code === 'ECONNREFUSED'
      ? 'Is the server running? A sandbox starts with: npm start. See which server is meant with: tidings config'
      : code === 'ENOTFOUND' || code === 'EAI_AGAIN'
        ? 'Check the host name, and that this machine is online. See which server is meant with: tidings config'
        : 'See which server is meant with: tidings config'
  return new Unreachable(`${url.origin} was not reached: ${REASONS[code] ?? code}.`, hint, UNSENT.has(code))
}

const REASONS: Record<string, string> = {
  ECONNREFUSED: 'nothing listens there (ECONNREFUSED)',
  ENOTFOUND: 'there is no such host (ENOTFOUND)',
  EAI_AGAIN: 'its name could not be looked up (EAI_AGAIN)',
  ECONNRESET: 'the connection was broken off (ECONNRESET)',
  UND_ERR_SOCKET: 'the connection was broken off',
  UND_ERR_CONNECT_TIMEOUT: 'connecting took too long',
  ERR_SSL_WRONG_VERSION_NUMBER: 'what listens there does not speak TLS; is it http?',
}

/** The code of the innermost cause: fetch wraps what happened, sometimes as several attempts at several addresses. */
const causeCode = (error: unknown): string => {
  if (!(error instanceof Error)) return String(error)
  const { code } = error as { code?: unknown }
  if (error instanceof AggregateError && error.errors.length > 0) return causeCode(error.errors[0])
  if (error.cause instanceof Error) return causeCode(error.cause)
  return typeof code === 'string' ? code : neutralise(error.message)
}

const notTidings = (url: URL, response: Response): CliError => {
  if (response.status >= 502 && response.status <= 504) {
    return new Unreachable(
      `${url.origin} answered ${response.status}: the server behind it is not there.`,
      'Try again in a moment.',
      false,
    )
  }
  const location = response.headers.get('location')
  const to = location ? ` (a redirect to ${neutralise(location)})` : ''
  return new CliError(
    exitCodes.unreachable,
    'NOT_TIDINGS',
    `${url.href} answered ${response.status}${to}, and not as a Tidings server does.`,
    'Check the base URL with: tidings config. It is the part before /graphql.',
  )
}
