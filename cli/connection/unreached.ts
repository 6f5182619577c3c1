import { codeOf } from '../../shared/errors.ts'
import type { ErrorCode } from '../../shared/vocabulary.ts'
import { CliError, type ExitCode, exitCodes } from '../errors.ts'
import { neutralise } from '../output/neutralise.ts'
import { duration } from '../output/time.ts'
import { proxyFor } from './network.ts'
import type { ServerError } from './refusal.ts'

// Temporary reasons why a request has no answer.

/**
 * The effect of a request: `nothing`, because it was never sent; `refused` by a server that cannot do it now; or
 * `unknown`.
 */
export type Done = 'nothing' | 'refused' | 'unknown'

/**
 * A temporary failure: the server was not reached, something else answered, or the server still works on the request.
 */
export class Passing extends CliError {
  readonly done: Done
  /** The wait that the server asks for. */
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

export const whatMayBeDone = ({ exitCode, code, message, hint }: Passing): CliError =>
  new CliError(exitCode, code, message, `It may have been done: check before you run this again. ${hint}`)

/** A temporary refusal of the server; undefined for a permanent one. */
export const passingError = ({ message, extensions = {} }: ServerError, response: Response): Passing | undefined => {
  const retryAfterMs = 1000 * Number(/^\d+$/.exec(response.headers.get('retry-after') ?? '')?.[0] ?? 0)
  if (response.status === 503) {
    return new Passing('refused', neutralise(message), 'Try again in a moment.', { code: 'UNAVAILABLE', retryAfterMs })
  }
  // The same request, sent before its connection broke.
  if (response.status === 409 && extensions.retryAfterSeconds !== undefined) {
    const is = { exitCode: exitCodes.failed, code: 'CONFLICT', retryAfterMs } as const
    return new Passing('unknown', 'The server is still working on this.', 'Check the result later.', is)
  }
  return undefined
}

const UNSENT = new Set([
  'ECONNREFUSED',
  'ENOTFOUND',
  'EAI_AGAIN',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'UND_ERR_CONNECT_TIMEOUT',
])

export const notReached = (url: URL, error: unknown, withinMs: number): CliError => {
  if (error instanceof DOMException && error.name === 'TimeoutError') {
    return new Passing(
      'unknown',
      `${url.origin} did not answer within ${duration(withinMs)}.`,
      'Try again, or ask whoever runs the server.',
    )
  }
  const code = causeCode(error)
  const proxy = proxyFor(url, process.env)
  if (/CERT|SELF_SIGNED|UNABLE_TO_VERIFY/.test(code)) {
    return new Passing(
      'nothing',
      `${url.origin} was not reached: its certificate is not accepted (${code}).`,
      'See what is wrong with it, and what to do, with: tidings doctor',
    )
  }
  if (proxy) {
    return new Passing(
      UNSENT.has(code) ? 'nothing' : 'unknown',
      `${url.origin} was not reached by way of proxy ${proxy.value} (from ${proxy.source}): ${REASONS[code] ?? code}.`,
      `To reach the host without it: NO_PROXY=${url.hostname}. See more with: tidings doctor`,
    )
  }
  const hint =
    code === 'ECONNREFUSED'
      ? 'Is the server running? A sandbox starts with: npm start. See which server is used with: tidings config'
      : code === 'ENOTFOUND' || code === 'EAI_AGAIN'
        ? 'Check the host name, and that this machine is online. See which server is used with: tidings config'
        : 'See which server is used with: tidings config'
  const done = UNSENT.has(code) ? 'nothing' : 'unknown'
  return new Passing(done, `${url.origin} was not reached: ${REASONS[code] ?? code}.`, hint)
}

const REASONS: Record<string, string> = {
  ECONNREFUSED: 'nothing listens there (ECONNREFUSED)',
  ENOTFOUND: 'there is no such host (ENOTFOUND)',
  EAI_AGAIN: 'its name could not be looked up (EAI_AGAIN)',
  ECONNRESET: 'the connection was reset (ECONNRESET)',
  UND_ERR_SOCKET: 'the connection was broken off',
  UND_ERR_CONNECT_TIMEOUT: 'connecting took too long',
  ERR_SSL_WRONG_VERSION_NUMBER: 'what listens there does not speak TLS; is it http?',
}

/** The code of the innermost cause: fetch wraps what happened, sometimes as several attempts at several addresses. */
const causeCode = (error: unknown): string => {
  if (!(error instanceof Error)) return String(error)
  const code = codeOf(error)
  if (error instanceof AggregateError && error.errors.length > 0) return causeCode(error.errors[0])
  if (error.cause instanceof Error) return causeCode(error.cause)
  return typeof code === 'string' ? code : neutralise(error.message)
}

export const notTidings = (url: URL, response: Response): CliError => {
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
