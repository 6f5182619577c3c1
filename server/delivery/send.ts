import { subscribe } from 'node:diagnostics_channel'
import { Readable } from 'node:stream'
import { getProxyForUrl } from 'proxy-from-env'
import { Agent, type Dispatcher, errors } from 'undici'
import { codeOf } from '../../shared/errors.ts'
import type { FailureReason } from '../../shared/vocabulary.ts'
import { whenArrivedIsRead } from '../arrived.ts'
import { type ConnectionFacts, factsOf, inTenths } from './connection-facts.ts'
import { type Evidence, keptHeaders, ownHeaders, type Phases } from './evidence.ts'
import { createGuardedConnector, type ProxyFor } from './guarded-connector.ts'
import type { Lookup } from './names.ts'
import { AddressNotAllowedError, type NetworkGuard } from './network-guard.ts'
import type { AttemptResult } from './outcome.ts'
import { ProxyError } from './proxy.ts'
import { limitReading, TooLongAnswer } from './read-limit.ts'

/** The most bytes that an attempt reads, whatever the answer consists of; then the connection is closed. */
export const ANSWER_READ_LIMIT = 16 * 1024
/** Bytes of an answer's body that are kept. */
export const ANSWER_KEPT = 1024
/** Bytes of an answer's status line and headers. */
const ANSWER_HEAD_LIMIT = 16 * 1024
/**
 * How long an unused connection is kept, unless the receiver announces another time. Receivers close theirs after 5 s
 * or more.
 */
const KEEP_ALIVE_MS = 4000
const LONGEST_KEEP_ALIVE_MS = 60_000

export type Sender = {
  /**
   * Makes one attempt and resolves to its result. The status counts once the headers are complete, even if the body is
   * cut, reset, endless or slow.
   *
   * @returns `evidence`: what is known of the request beside its result; missing if it had no connection
   * @param request.mayBegin called when there is a connection; if it returns false, nothing is sent
   * @throws NotBegun if `mayBegin` returned false
   */
  send(request: {
    url: string
    headers: Record<string, string>
    /** In parts, it needs a `content-length` among the headers. */
    body: string | Uint8Array | AsyncIterable<Uint8Array>
    method?: 'POST' | 'PUT'
    mayBegin?: () => boolean
    /** Hangs up. */
    signal?: AbortSignal
  }): Promise<AttemptResult & { durationMs: number; evidence?: Evidence }>
  /** Lets requests under way finish, then closes every connection. */
  close(): Promise<void>
}

/** The request must no longer be sent, as found when it had a connection. */
export class NotBegun extends Error {
  override name = 'NotBegun'
}

/**
 * Sends deliveries over HTTP/1.1, one request at a time on a connection. Connections are kept and reused per origin; an
 * unused origin costs nothing once its connections have timed out. Redirects are not followed.
 *
 * @param options.connectTimeoutMs for the lookup, the connection and the TLS handshake together
 * @param options.attemptTimeoutMs for the whole attempt, waiting for a free connection included
 * @param options.maxConnectionsPerOrigin further requests to the same origin wait for a free connection, within their
 *   own time
 * @param options.lookup in place of the system's name resolution
 * @param options.onInside called with the reason of a failure that only the operator may see
 * @param options.proxyFor replaces the rules of HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, in upper or lower case
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
    // The attempt has its own timer over all its parts.
    headersTimeout: 0,
    bodyTimeout: 0,
  })

  return {
    send: ({ url, headers, body, method = 'POST', mayBegin = () => true, signal }) =>
      new Promise((resolve, reject) => {
        const startedMs = performance.now()
        const target = URL.parse(url)
        const onResult = (result: AttemptResult | undefined): void => {
          clearTimeout(timer)
          if (result === undefined) reject(new NotBegun())
          else resolve({ ...result, durationMs: performance.now() - startedMs, ...withEvidence(attempt, headers) })
        }
        const attempt = new Attempt({ mayBegin, onResult, onInside: error => onInside(error, target?.host ?? '') })
        const late = { reason: 'timeout', detail: `No answer within ${attemptTimeoutMs / 1000} s` } as const
        const timer = setTimeout(whenArrivedIsRead, attemptTimeoutMs, () => attempt.giveUp(late))
        signal?.addEventListener('abort', () => attempt.giveUp(HUNG_UP))

        if (target === null || !/^https?:$/.test(target.protocol)) {
          return attempt.fail('invalid_url', 'The URL must begin with https:// or http://')
        }
        const path = target.pathname + target.search
        const isWhole = typeof body === 'string' || body instanceof Uint8Array
        const content = isWhole ? body : Readable.from(body)
        agent.dispatch({ origin: target.origin, path, method, headers, body: content }, attempt)
      }),
    close: () => agent.close(),
  }
}

const withEvidence = ({ evidence }: Attempt, headers: Record<string, string>): { evidence?: Evidence } | undefined => {
  if (evidence === undefined) return undefined
  evidence.requestHeaders = ownHeaders(headers)
  return { evidence }
}

const phasesOf = ({ remoteAddress: _address, used: _used, ...phases }: ConnectionFacts): Phases => phases

/** The attempt whose request undici is about to write, in the same turn. */
let beginning: Attempt | undefined

subscribe('undici:client:sendHeaders', message => {
  const attempt = beginning
  beginning = undefined
  attempt?.onBegun((message as { socket: object }).socket)
})

/** Ends an attempt that needs no more data; nobody sees this error. */
const ENOUGH = new Error('The result is known.')

/**
 * One request as undici reports it, until the answer ends, enough of it has arrived, an error occurs, or time is up.
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
  #sentAtMs = 0
  /** What is known of the request since it had a connection. */
  evidence: Evidence | undefined

  /** @param given.onResult called once, without a result if `mayBegin` returned false */
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
    else beginning = this
  }

  onBegun(socket: object): void {
    this.#sentAtMs = performance.now()
    const connection = factsOf(socket) ?? {}
    // The connection offers no other version in TLS, and the request's first line names it.
    this.evidence = { httpVersion: '1.1', phases: connection.used ? {} : phasesOf(connection) }
    if (connection.remoteAddress !== undefined) this.evidence.remoteAddress = connection.remoteAddress
    connection.used = true
  }

  onResponseStart(
    _controller: Dispatcher.DispatchController,
    statusCode: number,
    headers: Record<string, string | string[] | undefined>,
  ): void {
    // 1XX announces an answer and is not one.
    if (statusCode < 200) return
    if (this.evidence?.phases) {
      this.evidence.phases.firstByteMs = inTenths(performance.now() - this.#sentAtMs)
      this.evidence.responseHeaders = keptHeaders(headers)
    }
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

  giveUp(failure: Failure): void {
    this.#conclude(failure)
    this.#controller?.abort(ENOUGH)
  }

  fail(reason: FailureReason, detail: string): void {
    this.#finish({ kind: 'failure', reason, detail })
  }

  /** Ends with the answer so far if its headers are complete, else with the failure. */
  #conclude({ reason, detail }: Failure): void {
    if (this.#head === undefined) this.fail(reason, detail)
    else this.#finish({ kind: 'response', ...this.#head, body: this.#text() })
  }

  #finish(result: AttemptResult | undefined): void {
    if (this.#finished) return
    this.#finished = true
    this.#onResult(result)
  }

  /** Decodes UTF-8, with U+FFFD for invalid bytes; drops a character that the limit cut in two. */
  #text(): string {
    const bytes = Buffer.concat(this.#kept)
    if (this.#bytesRead <= ANSWER_KEPT) return bytes.toString()
    return new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes, { stream: true })
  }
}

type Failure = { reason: FailureReason; detail: string }

const HUNG_UP: Failure = { reason: 'connection_reset', detail: 'The sender hung up' }
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
  EAI_AGAIN: 'dns_error',
  ETIMEOUT: 'dns_error',
  ESERVFAIL: 'dns_error',
  EBADRESP: 'dns_error',
  EFORMERR: 'dns_error',
  EPROTO: 'tls_error',
  UND_ERR_HEADERS_OVERFLOW: 'malformed_response',
  UND_ERR_RES_CONTENT_LENGTH_MISMATCH: 'malformed_response',
}

/** Told of a name that is not known and of one with internal addresses alike: nobody can look for the latter. */
const NO_PUBLIC_ADDRESS: Failure = { reason: 'dns_error', detail: 'No public address was found for its name' }

/** Describes a failed connection without the address, which may be internal. */
const WORDS: Partial<Record<FailureReason, string>> = {
  connection_refused: 'Nothing listens there, or a firewall refuses the connection',
  connection_reset: 'Closed before an answer came',
  connect_timeout: 'No connection in time',
  unreachable: 'No route to its address',
}

const isInside = (error: Error): error is AddressNotAllowedError | ProxyError =>
  error instanceof AddressNotAllowedError || error instanceof ProxyError

/** undici's codes for an answer that fits no request. */
const UNASKED: Readonly<Record<string, string>> = {
  'bad response': 'The endpoint sent 100 Continue, which was not requested',
  'bad upgrade': 'The endpoint changed the protocol, which was not requested',
}

/** OpenSSL's and Node's codes for a rejected certificate or a failed handshake. */
const TLS_CODE =
  /^(ERR_(TLS|SSL|OSSL)_|CERT_|CRL_|UNABLE_TO_|SELF_SIGNED_|DEPTH_ZERO_|ERROR_IN_|INVALID_|HOSTNAME_MISMATCH|PATH_LENGTH_)/

/** If several addresses of a name fail in different ways, the first error stands for all. */
const causeOf = (error: Error): Error =>
  error instanceof AggregateError && error.errors[0] instanceof Error ? error.errors[0] : error

/** The text of an error for the endpoint's owner. */
const explain = (error: Error): Failure => {
  if (error instanceof AddressNotAllowedError) {
    return error.isLiteral ? { reason: 'address_not_allowed', detail: 'It is not a public address' } : NO_PUBLIC_ADDRESS
  }
  if (error instanceof ProxyError) return { reason: 'connection_failed', detail: 'No connection to it was possible' }
  const code = String(codeOf(error) ?? '')
  if (code === 'ENOTFOUND' || code === 'ENODATA') return NO_PUBLIC_ADDRESS
  const detail = error.message.replace(/\p{Cc}+/gu, ' ').slice(0, 300)
  if (error instanceof errors.HTTPParserError || error instanceof TooLongAnswer)
    return { reason: 'malformed_response', detail }
  const unasked = UNASKED[error.message]
  if (unasked !== undefined) return { reason: 'malformed_response', detail: unasked }
  if (code === 'UND_ERR_SOCKET') return { reason: 'connection_reset', detail: 'Closed before an answer came' }
  const reason = REASONS[code] ?? (TLS_CODE.test(code) ? 'tls_error' : 'connection_failed')
  // Our own messages contain no address either.
  return { reason, detail: (code.startsWith('UND_ERR') ? undefined : WORDS[reason]) ?? detail }
}
