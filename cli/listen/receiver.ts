import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as delay, setImmediate as othersTurn } from 'node:timers/promises'
import { MAX_BODY_BYTES } from '../../receiver/body.ts'
import { bearerToken } from '../../receiver/verify.ts'
import { type Check, type CheckName, type Verification, verifyDeliveryToken } from '../../shared/delivery-token.ts'
import { checkStandard, standardOf } from '../verify/check-standard.ts'
import { type KeySource, kidOf, remoteKeys } from '../verify/jwks.ts'
import { forwardTo } from './forward.ts'
import { listenHere } from './here.ts'
import type { ScriptedResponse } from './scripted-responses.ts'

export interface LocalReceiverOptions {
  /** 0 takes any free port. */
  port: number
  /** Deliveries to other paths are answered 404. */
  path: string
  /** The URL of the issuer's JSON Web Key Set, or another source of its keys. */
  keysUrl: string | KeySource
  /** The value that `iss` must equal. */
  issuer: string
  /** The value that `aud` must equal, if the endpoint is registered under another URL, such as a tunnel's. */
  audience?: string
  /** Secrets of Standard Webhooks, by one of which each delivery must be signed; by default that is not checked. */
  secrets?: readonly string[]
  /** The accepted webhooks; by default any. */
  webhookIds?: readonly string[]
  /** Responses to verified deliveries, in order; the last one repeats. By default 200. */
  responses?: ScriptedResponse[]
  /** Pings are answered 200 and take none of `responses`, unless this is set. */
  scriptPings?: boolean
  /** Milliseconds before a verified delivery is answered. */
  delayMs?: number
  /** Forwards verified deliveries to this URL, and passes its answers back. */
  forward?: URL
  /** Accepts any certificate there. */
  insecure?: boolean
  /** Whether a verified delivery is for this receiver; others are answered 200 silently. */
  isWanted?: (eventId: string) => Promise<boolean>
  /** Called for a request before it is verified or answered; its content may be false. */
  onRequest?: (eventId: string | undefined) => void
  onDelivery: (arrival: Arrival) => void
}

/** A request, its verification and its answer. All of it is untrusted: see neutralise. */
export interface Arrival {
  receivedAtMs: number
  method: string
  path: string
  headers: IncomingMessage['headers']
  body: string
  /** Undefined if it was not a delivery: another path or method, no token, a body too long, or no keys available. */
  verification: Verification | undefined
  /** The body's members, to be trusted only if verified. */
  eventId: string | undefined
  eventType: string | undefined
  /** A status code, or what was done instead. */
  answered: number | 'reset' | 'hang'
  /** Why it was not answered as a delivery, in a sentence. */
  reason: string | undefined
  durationMs: number
}

export interface LocalReceiver {
  /** The address it listens on, which is to be registered unless `audience` was given. */
  url: string
  /** Overrides the answer to the next verified delivery; without an argument, restores the usual one. */
  answerNext(answer: ScriptedResponse | undefined, onAnswered: () => void): void
  close(): Promise<void>
}

/**
 * A receiver on the loopback address that does what a receiver must: it verifies each token against the issuer's keys,
 * refuses invalid ones with 401, and records each `jti` once its event is answered with 2XX.
 * @throws CliError when the port is taken.
 */
export const startLocalReceiver = async (options: LocalReceiverOptions): Promise<LocalReceiver> => {
  const reception = new Reception(options)
  const server = createServer((request, response) => {
    reception.handle(request, response).catch(error => {
      // A sender that hangs up halfway has sent nothing; any other error is thrown.
      if (!request.errored) throw error
    })
  })
  await listenHere(server, options.port)
  reception.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}${options.path}`
  return {
    url: reception.url,
    answerNext(answer, onAnswered) {
      reception.next = answer && { answer, onAnswered }
    },
    close: () =>
      new Promise(resolve => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}

/** What comes in, and what is made of it. */
class Reception {
  url = ''
  /** The answer to the next verified delivery, in place of the usual one. */
  next: { answer: ScriptedResponse; onAnswered: () => void } | undefined
  readonly #options: LocalReceiverOptions
  readonly #keys: KeySource
  readonly #script: ScriptedResponse[]
  readonly #forward: ReturnType<typeof forwarding> | undefined
  readonly #handled = new Set<string>()
  /** Of several requests of one delivery at once, one is handled. */
  readonly #underWay = new Set<string>()

  constructor(options: LocalReceiverOptions) {
    this.#options = options
    this.#keys = typeof options.keysUrl === 'string' ? remoteKeys(options.keysUrl) : options.keysUrl
    this.#script = [...(options.responses ?? [])]
    this.#forward = options.forward && forwarding(options.forward, options.insecure ?? false)
  }

  async handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const receivedAtMs = Date.now()
    const body = await readAll(request)
    this.#options.onRequest?.(readBody(body ?? '').eventId)
    const made =
      body === undefined ? refused(413, 'The body is longer than 1 MiB.') : await this.#receive(request, body)
    const decision = (await hasHungUp(request)) ? { ...made, answered: 'reset' as const, reason: HUNG_UP } : made
    const { answered, reason, verification } = decision
    if (decision.jti !== undefined) {
      if (typeof answered === 'number' && answered < 300) this.#handled.add(decision.jti)
      this.#underWay.delete(decision.jti)
    }
    answer(request, response, decision)
    if (decision.isLeftOut) return
    this.#options.onDelivery({
      receivedAtMs,
      method: request.method ?? '',
      path: brief(request.url ?? '', LONGEST_FOUND),
      headers: request.headers,
      body: body ?? '',
      verification,
      ...readBody(body ?? ''),
      answered,
      reason,
      durationMs: Date.now() - receivedAtMs,
    })
  }

  async #receive(request: IncomingMessage, body: string): Promise<Decision> {
    const path = request.url ?? '/'
    if (path !== this.#options.path) return refused(404, `Deliveries are expected at ${this.#options.path}.`)
    if (request.method !== 'POST') return refused(405, 'Deliveries come with POST.')
    const token = bearerToken(request.headers.authorization)
    if (token === undefined) return refused(401, 'There is no “Authorization: Bearer …” header.')
    let published: Awaited<ReturnType<KeySource>>
    try {
      published = await this.#keys(kidOf(token))
    } catch (error) {
      // This is not the sender's fault, so the answer is no 4XX, which would end the delivery.
      return refused(503, (error as Error).message)
    }
    const verification = await verifyDeliveryToken(token, {
      keys: published,
      issuer: this.#options.issuer,
      audience: this.#options.audience ?? this.url,
      body,
      ...(this.#options.webhookIds && { webhookIds: this.#options.webhookIds }),
      seen: jti => this.#handled.has(jti),
    })
    const failed = verification.checks.find(({ status }) => status === 'failed')
    if (failed) return { ...refused(401, describeFailure(verification.checks), failed.name), verification }
    const wrong = this.#options.secrets && failureOf(request, body, this.#options.secrets)
    if (wrong) return { ...refused(401, wrong), verification: { ...verification, ok: false } }
    const jti = String(verification.claims?.jti)
    if (this.#underWay.has(jti) || this.#handled.has(jti)) return { ...refused(503, UNDER_WAY), verification }
    this.#underWay.add(jti)
    return { ...(await this.#respond(request, body)), verification, jti }
  }

  /** The answer to a delivery that is valid. */
  async #respond(request: IncomingMessage, body: string): Promise<Decision> {
    const { eventId, eventType } = readBody(body)
    if (this.#options.isWanted && eventId !== undefined && !(await this.#options.isWanted(eventId))) {
      return { ...scriptedResponse(FINE), isLeftOut: true }
    }
    if (this.#options.delayMs) await delay(this.#options.delayMs)
    if (this.next) {
      const { answer, onAnswered } = this.next
      this.next = undefined
      onAnswered()
      return scriptedResponse(answer)
    }
    return this.#forward ? await this.#forward(request, body) : scriptedResponse(this.#nextResponse(eventType))
  }

  #nextResponse(eventType: string | undefined): ScriptedResponse {
    if (this.#script.length === 0 || (eventType === 'ping' && !this.#options.scriptPings)) return FINE
    return (this.#script.length > 1 ? this.#script.shift() : this.#script[0]) ?? FINE
  }
}

/** Why a request is not signed by any of these secrets; undefined if it is. */
const failureOf = (request: IncomingMessage, body: string, secrets: readonly string[]): string | undefined => {
  const headers = standardOf(name => request.headers[name] as string | undefined)
  const failed = checkStandard(headers, { body, secrets, atMs: Date.now() }).find(({ status }) => status === 'failed')
  if (!failed) return undefined
  return `${failed.name}: expected ${failed.expected}, found ${failed.found}. ${failed.advice ?? ''}`.trim()
}

/** The answer and its reason. */
interface Decision {
  answered: number | 'reset' | 'hang'
  headers: Record<string, string>
  body: Buffer | string
  reason: string | undefined
  verification: Verification | undefined
  /** Of a delivery that is handled by this request. */
  jti?: string
  isLeftOut?: true
}

const FINE: ScriptedResponse = { kind: 'status', statusCode: 200 }

const refused = (statusCode: number, reason: string, check?: CheckName): Decision => ({
  answered: statusCode,
  // RFC 6750 section 3: a 401 says which scheme was expected. The service looks for the check “replay” in it.
  headers: {
    'content-type': 'application/json',
    ...(statusCode === 401 && {
      'www-authenticate': `Bearer error="invalid_token"${check ? `, error_description="${check}"` : ''}`,
    }),
  },
  // A check says whom it would let in: that is for the terminal.
  body: JSON.stringify({ error: check ?? reason }),
  reason,
  verification: undefined,
})

const scriptedResponse = (response: ScriptedResponse): Decision => {
  const nothing = { headers: {}, body: '', reason: undefined, verification: undefined }
  if (response.kind !== 'status') return { ...nothing, answered: response.kind }
  const { statusCode, retryAfterSeconds } = response
  return {
    ...nothing,
    answered: statusCode,
    headers: retryAfterSeconds === undefined ? {} : { 'retry-after': String(retryAfterSeconds) },
  }
}

/** Forwards a delivery; one that is not answered there is answered with 502 and the reason. */
const forwarding = (to: URL, insecure: boolean) => {
  const send = forwardTo(to, insecure)
  return async (request: IncomingMessage, body: string): Promise<Decision> => {
    try {
      const { status, ...answer } = await send(request, body)
      return { ...answer, answered: status, reason: undefined, verification: undefined }
    } catch (error) {
      return refused(502, `${to.href} did not answer: ${error instanceof Error ? error.message : String(error)}`)
    }
  }
}

const HUNG_UP = 'The sender hung up before the answer, so the delivery is not handled: it comes again.'

const UNDER_WAY = 'Another request of this delivery is being handled, or was handled just now.'

/**
 * Turns of the event loop after which this process knows whether the connection of a request, received while it slept,
 * has ended.
 */
const TURNS = 3

/**
 * Whether nobody waits for the answer any more. Recording the event as handled would then make the next attempt a
 * replay.
 */
const hasHungUp = async ({ socket }: IncomingMessage): Promise<boolean> => {
  for (let n = 0; n < TURNS && !socket.destroyed; n++) await othersTurn()
  return socket.destroyed
}

const answer = (request: IncomingMessage, response: ServerResponse, { answered, headers, body }: Decision): void => {
  if (answered === 'hang') return
  if (answered === 'reset') return void request.socket.resetAndDestroy()
  response.writeHead(answered, headers)
  response.end(body)
}

/** The whole body; undefined if it is too long. */
const readAll = async (request: IncomingMessage): Promise<string | undefined> => {
  const chunks: Buffer[] = []
  let length = 0
  for await (const chunk of request) {
    length += (chunk as Buffer).length
    if (length <= MAX_BODY_BYTES) chunks.push(chunk as Buffer)
  }
  return length > MAX_BODY_BYTES ? undefined : Buffer.concat(chunks).toString('utf8')
}

const readBody = (body: string): { eventId: string | undefined; eventType: string | undefined } => {
  const text = (value: unknown) => (typeof value === 'string' ? brief(value, LONGEST_NAME) : undefined)
  try {
    const content = JSON.parse(body)
    return { eventId: text(content?.eventId), eventType: text(content?.eventType) }
  } catch {
    return { eventId: undefined, eventType: undefined }
  }
}

/** The most characters shown of an untrusted id or type, and of a check's finding. */
const LONGEST_NAME = 64
const LONGEST_FOUND = 300

const brief = (text: string, most: number): string => (text.length > most ? `${text.slice(0, most)}…` : text)

const describeFailure = (checks: Check[]): string =>
  checks
    .filter(check => check.status === 'failed')
    .map(({ name, expected, found, advice }) => {
      const compared = expected ? `expected ${expected}, found ${brief(String(found), LONGEST_FOUND)}. ` : ''
      return `${name}: ${compared}${advice ?? ''}`.trim()
    })
    .join(' ')
