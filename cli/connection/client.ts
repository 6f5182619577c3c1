import { randomUUID } from 'node:crypto'
import { setTimeout as wait } from 'node:timers/promises'
import { signRequest } from '../../shared/hmac.ts'
import type { ErrorCode, RefusalReason } from '../../shared/vocabulary.ts'
import { CliError, type ExitCode, exitCodes } from '../errors.ts'
import { neutralise } from '../output/neutralise.ts'
import { duration } from '../output/time.ts'
import { entryFor } from '../output/words.ts'
import type { Connection } from './connection.ts'

/**
 * For a request and its repetitions. Longer than the server takes to ping an endpoint that does not answer (15 s),
 * which some mutations wait for.
 */
const TIMEOUT_MS = 60_000
/** How often a request is repeated that never left, or that changes nothing. */
const REPEATS = 2
/**
 * How often a mutation is that may have been done. What its server held that has died is free for another within 10 s.
 */
const MUTATION_REPEATS = 6
const FIRST_PAUSE_MS = 300

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
 * Sends a signed GraphQL request and answers with its `data`. It is repeated after a broken connection, and when the
 * server is not there or busy; a mutation under one Idempotency-Key, by which it is done once.
 *
 * @param onRepeat told why it is repeated, and after how long
 * @throws CliError with the exit code that the server's error stands for.
 */
export const graphql = async <Data>(
  connection: Connection,
  document: string,
  variables: object = {},
  onRepeat: (why: string, pauseMs: number) => void = () => {},
): Promise<Data> => {
  const request = graphqlRequest(connection.url, document, variables)
  const idempotencyKey = hasMutation(document) ? randomUUID() : undefined
  const deadline = performance.now() + TIMEOUT_MS
  const seen = new Set<Done>()
  for (let repeats = 0; ; repeats++) {
    try {
      return await send<Data>(connection, request, { idempotencyKey, timeoutMs: deadline - performance.now() })
    } catch (error) {
      if (!(error instanceof Passing)) throw error
      seen.add(error.done)
      const most =
        idempotencyKey !== undefined && (seen.has('refused') || seen.has('unknown')) ? MUTATION_REPEATS : REPEATS
      const pauseMs = Math.max(error.retryAfterMs, FIRST_PAUSE_MS * 2 ** repeats)
      if (repeats === most || performance.now() + pauseMs >= deadline) {
        throw idempotencyKey !== undefined && seen.has('unknown') ? whatMayBeDone(error) : error
      }
      onRepeat(error.message, pauseMs)
      await wait(pauseMs)
    }
  }
}

/** Whether a document may hold a mutation. Errs on the side of yes: a query is answered as ever. */
export const hasMutation = (document: string): boolean => /\bmutation\b/.test(document)

/**
 * What of a request was done: `nothing`, since it never left; `refused` by a server that can't do it now; or it is
 * `unknown`.
 */
type Done = 'nothing' | 'refused' | 'unknown'

/** What may pass: the server was not reached, or what answered was not (yet) it, or it is at work on the request. */
class Passing extends CliError {
  readonly done: Done
  /** How long the server asks to wait. */
  readonly retryAfterMs: number

  constructor(
    done: Done,
    message: string,
    hint: string,
    { exitCode = exitCodes.unreachable, code = 'UNREACHABLE', retryAfterMs = 0 }: Partial<Asked> = {},
  ) {
    super(exitCode, code, message, hint)
    this.done = done
    this.retryAfterMs = retryAfterMs
  }
}
type Asked = { exitCode: ExitCode; code: ErrorCode | 'UNREACHABLE'; retryAfterMs: number }

const whatMayBeDone = ({ exitCode, code, message, hint }: Passing): CliError =>
  new CliError(exitCode, code, message, `It may have been done all the same: look before you run this again. ${hint}`)

const send = async <Data>(
  { apiKey, apiSecret }: Connection,
  { url, body }: GraphqlRequest,
  { idempotencyKey, timeoutMs }: { idempotencyKey: string | undefined; timeoutMs: number },
): Promise<Data> => {
  const credentials = { apiKey, apiSecret }
  const { host: _, ...headers } = sign({ method: 'POST', url, body, credentials, idempotencyKey })
  let response: Response
  let text: string
  try {
    response = await fetch(url, {
      method: 'POST',
      headers: { ...headers, 'content-type': 'application/json', accept: 'application/json' },
      body,
      redirect: 'manual',
      signal: AbortSignal.timeout(Math.ceil(timeoutMs)),
    })
    text = await response.text()
  } catch (error) {
    throw notReached(url, error)
  }
  const answer = parseAnswer(text)
  if (!answer) throw notTidings(url, response)
  const [error] = answer.errors ?? []
  const passing = error && passingError(error, response)
  if (passing) throw passing
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

/** What the server says that it cannot do now; undefined if it can, and won't. */
const passingError = ({ message, extensions = {} }: ServerError, response: Response): Passing | undefined => {
  const retryAfterMs = 1000 * Number(/^\d+$/.exec(response.headers.get('retry-after') ?? '')?.[0] ?? 0)
  if (response.status === 503) {
    return new Passing('refused', neutralise(message), 'Try again in a moment.', { code: 'UNAVAILABLE', retryAfterMs })
  }
  // The same request, as it was sent before its connection broke.
  if (response.status === 409 && extensions.retryAfterSeconds !== undefined) {
    const is = { exitCode: exitCodes.failed, code: 'CONFLICT', retryAfterMs } as const
    return new Passing('unknown', 'The server is still at work on this.', 'Look at what it comes to.', is)
  }
  return undefined
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
    return new Passing(
      'unknown',
      `${url.origin} did not answer within ${duration(TIMEOUT_MS)}.`,
      'Try again, or ask whoever runs the server.',
    )
  }
  const code = causeCode(error)
  if (/CERT|SELF_SIGNED|UNABLE_TO_VERIFY/.test(code)) {
    return new Passing(
      'nothing',
      `${url.origin} was not reached: its certificate is not accepted (${code}).`,
      'See what is wrong with it, and what to do, with: tidings doctor',
    )
  }
  const hint =
    code === 'ECONNREFUSED'
      ? 'Is the server running? A sandbox starts with: npm start. See which server is meant with: tidings config'
      : code === 'ENOTFOUND' || code === 'EAI_AGAIN'
        ? 'Check the host name, and that this machine is online. See which server is meant with: tidings config'
        : 'See which server is meant with: tidings config'
  const done = UNSENT.has(code) ? 'nothing' : 'unknown'
  return new Passing(done, `${url.origin} was not reached: ${REASONS[code] ?? code}.`, hint)
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
    return new Passing(
      'unknown',
      `${url.origin} answered ${response.status}: the server behind it is not there.`,
      'Try again in a moment.',
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
