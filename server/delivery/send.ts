import { getProxyForUrl } from 'proxy-from-env'
import { Agent, type Dispatcher, errors } from 'undici'
import type { FailureReason } from '../../shared/vocabulary.ts'
import { whenArrivedIsRead } from '../arrived.ts'
import {
  AddressNotAllowedError,
  createGuardedConnector,
  type Lookup,
  type NetworkGuard,
  type ProxyFor,
} from './network-guard.ts'
import type { AttemptResult } from './outcome.ts'
import { ProxyError } from './proxy.ts'
import { limitReading, TooLongAnswer } from './read-limit.ts'

/** Bytes that an attempt reads at most, of whatever an answer is made of; then the connection is given up. */
export const ANSWER_READ_LIMIT = 16 * 1024
/** Bytes of an answer's body that are kept. */
export const ANSWER_KEPT = 1024
/** Bytes of an answer's status line and headers. */
const ANSWER_HEAD_LIMIT = 16 * 1024
/**
 * Milliseconds that an unused connection is kept, unless the server announces another time. Receivers close theirs
 * after 5 s and more.
 */
const KEEP_ALIVE_MS = 4000
const LONGEST_KEEP_ALIVE_MS = 60_000

export type Sender = {
  /**
   * Makes one attempt, and resolves. What was answered counts from the moment the headers are complete: a body
   * that is cut, reset, endless or slow does not take the status back.
   *
   * @param request.mayBegin asked when there is a connection; if it says no, nothing is sent
   * @throws NotBegun if `mayBegin` has said no
   */
  send(request: {
    url: string
    headers: Record<string, string>
    body: string
    mayBegin?: () => boolean
  }): Promise<AttemptResult & { durationMs: number }>
  /** Lets what is under way finish, then closes every connection. */
  close(): Promise<void>
}

/** The request was not to be sent any more when there was a connection for it. */
export class NotBegun extends Error {
  override name = 'NotBegun'
}

/**
 * Sends deliveries over HTTP/1.1, one request at a time on a connection. Connections are kept and reused per origin,
 * and an origin that is no longer sent to costs nothing once its connections have timed out. Redirects are not
 * followed.
 *
 * @param options.connectTimeoutMs for the lookup, the connection and the TLS handshake together
 * @param options.attemptTimeoutMs for the whole attempt, waiting for a free connection included
 * @param options.maxConnectionsPerOrigin further requests to the same origin wait for a free connection, within their
 *   own time
 * @param options.lookup in place of the system's name resolution
 * @param options.onInside told why an attempt failed where the reason is for who runs the server, and no one else
 * @param options.proxyFor in place of what HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY say, in upper or lower case
 */
export const createSender = ({
  guard,
  connectTimeoutMs = 5000,
  attemptTimeoutMs = 15_000,
  maxConnectionsPerOrigin = 64,
  lookup,
  onInside = () => {},
  proxyFor = getProxyForUrl,
}: {
  guard: NetworkGuard
  connectTimeoutMs?: number
  attemptTimeoutMs?: number
  maxConnectionsPerOrigin?: number
  lookup?: Lookup
  onInside?: (error: Error, host: string) => void
  proxyFor?: ProxyFor
}): Sender => {
  const connect = createGuardedConnector(guard, { connectTimeoutMs, proxyFor, ...(lookup && { lookup }) })
  const agent = new Agent({
    connect: limitReading(connect, ANSWER_READ_LIMIT),
    connections: maxConnectionsPerOrigin,
    allowH2: false,
    pipelining: 1,
    maxHeaderSize: ANSWER_HEAD_LIMIT,
    keepAliveTimeout: KEEP_ALIVE_MS,
    keepAliveMaxTimeout: LONGEST_KEEP_ALIVE_MS,
    // The attempt has a timer of its own, over all of its parts.
    headersTimeout: 0,
    bodyTimeout: 0,
  })

  return {
    send: ({ url, headers, body, mayBegin = () => true }) =>
      new Promise((resolve, reject) => {
        const startedMs = performance.now()
        const target = URL.parse(url)
        const onResult = (result: AttemptResult | undefined): void => {
          clearTimeout(timer)
          if (result === undefined) reject(new NotBegun())
          else resolve({ ...result, durationMs: performance.now() - startedMs })
        }
        const attempt = new Attempt({ mayBegin, onResult, onInside: error => onInside(error, target?.host ?? '') })
        const timer = setTimeout(whenArrivedIsRead, attemptTimeoutMs, () => attempt.giveUp(attemptTimeoutMs))

        if (target === null || !/^https?:$/.test(target.protocol)) {
          return attempt.fail('invalid_url', 'The URL must begin with https:// or http://')
        }
        const path = target.pathname + target.search
        agent.dispatch({ origin: target.origin, path, method: 'POST', headers, body }, attempt)
      }),
    close: () => agent.close(),
  }
}

/** What an attempt that needs no more is ended with; nobody sees it. */
const ENOUGH = new Error('The result is known.')

/**
 * One request as undici reports it, from its start to the first of: the answer's end, enough of the answer, an error,
 * no more time.
 */
class Attempt implements Dispatcher.DispatchHandler {
  readonly #mayBegin: () => boolean
  readonly #onResult: (result: AttemptResult | undefined) => void
  readonly #onInside: (error: Error) => void
  #controller: Dispatcher.DispatchController | undefined
  #finished = false
  #head: { statusCode: number; retryAfter?: string; challenge?: string } | undefined
  #bytesRead = 0
  #kept: Buffer[] = []

  /** @param given.onResult called once; with nothing if `mayBegin` has said no */
  constructor(given: {
    mayBegin: () => boolean
    onResult: (result: AttemptResult | undefined) => void
    onInside: (error: Error) => void
  }) {
    this.#mayBegin = given.mayBegin
    this.#onResult = given.onResult
    this.#onInside = given.onInside
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller
    if (!this.#finished && !this.#mayBegin()) this.#finish(undefined)
    if (this.#finished) controller.abort(ENOUGH)
  }

  onResponseStart(
    _controller: Dispatcher.DispatchController,
    statusCode: number,
    headers: Record<string, string | string[] | undefined>,
  ): void {
    // 1XX announces an answer, and is none.
    if (statusCode < 200) return
    const retryAfter = [headers['retry-after']].flat()[0]
    const challenge = headers['www-authenticate'] && [headers['www-authenticate']].flat().join(', ')
    this.#head = { statusCode, ...(retryAfter !== undefined && { retryAfter }), ...(challenge && { challenge }) }
  }

  onResponseData(_controller: Dispatcher.DispatchController, chunk: Buffer): void {
    // Copied: a view would keep the whole of undici's read buffer alive.
    if (this.#bytesRead < ANSWER_KEPT) this.#kept.push(Buffer.from(chunk.subarray(0, ANSWER_KEPT - this.#bytesRead)))
    this.#bytesRead += chunk.length
    if (this.#bytesRead < ANSWER_READ_LIMIT) return
    this.#conclude(NO_HEAD)
    this.#controller?.abort(ENOUGH)
  }

  onResponseEnd(): void {
    this.#conclude(NO_HEAD)
  }

  onResponseError(_controller: Dispatcher.DispatchController, error: Error): void {
    const cause = causeOf(error)
    if (!this.#finished && isInside(cause)) this.#onInside(cause)
    this.#conclude(explain(cause))
  }

  giveUp(afterMs: number): void {
    this.#conclude({ reason: 'timeout', detail: `No answer within ${afterMs / 1000} s` })
    this.#controller?.abort(ENOUGH)
  }

  fail(reason: FailureReason, detail: string): void {
    this.#finish({ kind: 'failure', reason, detail })
  }

  /** With what has come of the answer if its headers are complete, else with the failure. */
  #conclude({ reason, detail }: Failure): void {
    if (this.#head === undefined) this.fail(reason, detail)
    else this.#finish({ kind: 'response', ...this.#head, body: this.#text() })
  }

  #finish(result: AttemptResult | undefined): void {
    if (this.#finished) return
    this.#finished = true
    this.#onResult(result)
  }

  /** UTF-8 with U+FFFD for what is not; a character that the limit cuts in two is left out. */
  #text(): string {
    const bytes = Buffer.concat(this.#kept)
    if (this.#bytesRead <= ANSWER_KEPT) return bytes.toString()
    return new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes, { stream: true })
  }
}

type Failure = { reason: FailureReason; detail: string }

/** Cannot happen: undici reports neither body nor end without the head. */
const NO_HEAD: Failure = { reason: 'malformed_response', detail: 'The answer has no status' }

const REASONS: Readonly<Record<string, FailureReason>> = {
  ECONNREFUSED: 'connection_refused',
  ECONNRESET: 'connection_reset',
  EPIPE: 'connection_reset',
  UND_ERR_CONNECT_TIMEOUT: 'connect_timeout',
  ETIMEDOUT: 'connect_timeout',
  EHOSTUNREACH: 'unreachable',
  ENETUNREACH: 'unreachable',
  EHOSTDOWN: 'unreachable',
  EADDRNOTAVAIL: 'unreachable',
  ENOTFOUND: 'dns_error',
  EAI_AGAIN: 'dns_error',
  ENODATA: 'dns_error',
  EPROTO: 'tls_error',
  UND_ERR_HEADERS_OVERFLOW: 'malformed_response',
  UND_ERR_RES_CONTENT_LENGTH_MISMATCH: 'malformed_response',
}

/** What failed on the way to an address, in words that do not have the address: it may be one inside. */
const WORDS: Partial<Record<FailureReason, string>> = {
  connection_refused: 'Nothing listens there, or it is kept from us',
  connection_reset: 'Closed before an answer came',
  connect_timeout: 'No connection in time',
  unreachable: 'There is no way to its address',
}

const isInside = (error: Error): error is AddressNotAllowedError | ProxyError =>
  error instanceof AddressNotAllowedError || error instanceof ProxyError

/** What undici says of an answer that fits no request of ours. */
const UNASKED: Readonly<Record<string, string>> = {
  'bad response': '100 Continue came, which was not asked for',
  'bad upgrade': 'A change of protocol came, which was not asked for',
}

/** OpenSSL's and Node's names for a certificate or a handshake that is not accepted. */
const TLS_CODE =
  /^(ERR_(TLS|SSL|OSSL)_|CERT_|CRL_|UNABLE_TO_|SELF_SIGNED_|DEPTH_ZERO_|ERROR_IN_|INVALID_|HOSTNAME_MISMATCH|PATH_LENGTH_)/

/** Of a name's several addresses each failed in a way of its own; the first speaks for all. */
const causeOf = (error: Error): Error =>
  error instanceof AggregateError && error.errors[0] instanceof Error ? error.errors[0] : error

/** What the owner of the endpoint is told of an error. */
const explain = (error: Error): Failure => {
  if (error instanceof AddressNotAllowedError) return { reason: error.code, detail: error.told }
  if (error instanceof ProxyError) return { reason: 'connection_failed', detail: 'No connection to it was to be had' }
  const code = 'code' in error && typeof error.code === 'string' ? error.code : ''
  const detail = error.message.replace(/\p{Cc}+/gu, ' ').slice(0, 300)
  if (error instanceof errors.HTTPParserError || error instanceof TooLongAnswer)
    return { reason: 'malformed_response', detail }
  const unasked = UNASKED[error.message]
  if (unasked !== undefined) return { reason: 'malformed_response', detail: unasked }
  if (code === 'UND_ERR_SOCKET') return { reason: 'connection_reset', detail: 'Closed before an answer came' }
  const reason = REASONS[code] ?? (TLS_CODE.test(code) ? 'tls_error' : 'connection_failed')
  // What we say ourselves has no address in it either.
  return { reason, detail: (code.startsWith('UND_ERR') ? undefined : WORDS[reason]) ?? detail }
}
