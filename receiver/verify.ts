import { type Check, examineDelivery, explained, type Jwk } from '../shared/delivery-token.ts'
import { show } from '../shared/show.ts'
import { type Bytes, bytesOf, isRaw, MAX_BODY_BYTES, readFetchBody, tooLarge } from './body.ts'
import { type Ping, readEvent, type TidingsEvent } from './event.ts'
import { Fault, type FaultDetails } from './fault.ts'
import { type KeySource, type RemoteKeys, remoteKeys } from './keys.ts'
import { type CheckedVerifyOptions, checkVerifyOptionsAlone, type VerifyOptions } from './options.ts'

/** A request as it arrived. */
export interface DeliveryRequest {
  /** By default POST; anything else is answered 405. */
  method?: string | undefined
  /** The `Authorization` header. */
  authorization: string | null | undefined
  /** The raw body, or a function that reads it and is called once, whatever the answer. */
  body: Uint8Array | string | (() => Promise<Uint8Array | string>)
  /** The framework's own request, passed to the handler. */
  request?: unknown
  /** Keeps the runtime alive for work after the answer. */
  waitUntil?: ((promise: Promise<unknown>) => void) | undefined
  /** Whether something else has answered already, or the client no longer waits for an answer. */
  isAnswered?: (() => boolean) | undefined
}

/** A verified token. */
export interface DeliveryToken {
  kid: string
  claims: {
    iss: string
    aud: string
    jti: string
    iat: number
    exp: number
    sub?: string
    body_sha256?: string
  } & Record<string, unknown>
}

export interface VerifiedDelivery {
  event: TidingsEvent | Ping
  token: DeliveryToken
}

const shared = new Map<string, RemoteKeys>()

/** One shared source for each URL, so that keys are fetched once however often the options are written down. */
const sharedKeys: typeof remoteKeys = url => {
  if (!shared.has(url)) shared.set(url, remoteKeys(url))
  return shared.get(url)!
}

/**
 * Verifies a delivery and nothing more: it does not look whether the delivery was handled before. Answer a `ping` with
 * 200 too.
 *
 * @param request a Request of the Fetch API, or its parts
 * @throws {Fault} when the answer must not be 2XX; `error.answer` is the answer
 * @throws {TypeError} when an option is wrong
 * @example
 *   const event = await verifyDelivery(request, { issuer, audience })
 */
export const verifyDelivery = async (
  request: Request | DeliveryRequest,
  options: VerifyOptions,
): Promise<TidingsEvent | Ping> => {
  const verify = verifier(checkVerifyOptionsAlone(options, sharedKeys))
  const { event } = await verify(request instanceof Request ? fromFetch(request) : request)
  return event
}

export const fromFetch = (request: Request): DeliveryRequest => ({
  method: request.method,
  authorization: request.headers.get('authorization'),
  body: () => readFetchBody(request),
  request,
})

/** Makes the function that turns a request into its verified event. That function rejects only with Faults. */
export const verifier =
  ({ issuer, audience, keys, webhookId, now }: CheckedVerifyOptions) =>
  async ({ method = 'POST', authorization, body, waitUntil }: DeliveryRequest): Promise<VerifiedDelivery> => {
    // The body is read first: after an answer to an unread body the connection can carry no other request.
    const read = await readBody(body).catch(asFault)
    if (method !== 'POST') throw new Fault('method', 'Deliveries come with POST.', { headers: { allow: 'POST' } })
    const token = bearerToken(authorization)
    if (token === undefined) throw new Fault('token_missing', 'There is no “Authorization: Bearer …” header.')
    if (read instanceof Fault) throw read

    const { failed, isSigned, kid, claims, content } = await examineDelivery(token, {
      keys: it => published(keys, it, waitUntil),
      issuer,
      ...(typeof audience !== 'function' && { audience }),
      at: new Date(timeOf(now)),
      body: read,
      ...(typeof webhookId === 'string' && { webhookIds: [webhookId] }),
      ...(Array.isArray(webhookId) && { webhookIds: webhookId }),
    })
    const verified = claims as DeliveryToken['claims']
    const details = (): FaultDetails => ({
      ...(kid !== undefined && { kid: cut(kid) }),
      ...(isSigned && typeof verified.jti === 'string' && { eventId: cut(verified.jti) }),
    })
    if (failed) throw faultOf(explained(failed), details())
    if (typeof audience === 'function' && !(await asked('audience', () => audience(verified.aud), details))) {
      throw faultOf(
        { name: 'audience', expected: 'an audience of this receiver', found: show(verified.aud) },
        details(),
      )
    }
    const sub = typeof verified.sub === 'string' && verified.sub !== '' ? verified.sub : undefined
    const event = readEvent(content() as Record<string, unknown>, sub)
    if (typeof event === 'string') throw new Fault('body', event, { details: details() })
    if (
      typeof webhookId === 'function' &&
      !(await asked('webhookId', () => webhookId(event.webhookId, event), details))
    ) {
      throw faultOf(
        { name: 'webhook', expected: 'a webhook of this receiver', found: show(event.webhookId) },
        details(),
      )
    }
    return { event, token: { kid: kid!, claims: verified } }
  }

const readBody = async (body: DeliveryRequest['body']): Promise<Bytes> => {
  const raw = typeof body === 'function' ? await body() : body
  if (!isRaw(raw)) throw new Fault('body_already_read', 'What reads the body has given neither bytes nor text.')
  const bytes = bytesOf(raw)
  if (bytes.length > MAX_BODY_BYTES) throw tooLarge()
  return bytes
}

const asFault = (error: unknown): Fault =>
  error instanceof Fault ? error : new Fault('body_incomplete', 'The body could not be read.', { cause: error })

/** Unavailable keys are not the sender's fault: the answer is not a 4XX, which would end the delivery. */
const published = async (
  keys: KeySource,
  kid: string | undefined,
  waitUntil: DeliveryRequest['waitUntil'],
): Promise<readonly Jwk[]> => {
  try {
    const found: unknown = await keys(kid, { waitUntil })
    if (Array.isArray(found) && found.length > 0) return found
    throw new TypeError('The source of the keys has given no list of keys.')
  } catch (cause) {
    throw new Fault('keys_unavailable', 'The issuer’s keys could not be had.', { cause })
  }
}

/** The time, checked: a clock that returns no number would accept every expired token. */
const timeOf = (now: () => number): number => {
  const ms = attempted('now', now)
  if (Number.isFinite(ms)) return ms
  throw optionFailed('now', new TypeError(`${String(ms)} is no time in epoch milliseconds.`))
}

const attempted = <T>(name: string, ask: () => T): T => {
  try {
    return ask()
  } catch (error) {
    throw optionFailed(name, error)
  }
}

const asked = async (
  name: string,
  ask: () => boolean | Promise<boolean>,
  details: () => FaultDetails,
): Promise<boolean> => {
  try {
    return (await ask()) === true
  } catch (error) {
    throw optionFailed(name, error, details())
  }
}

const optionFailed = (name: string, cause: unknown, details: FaultDetails = {}): Fault =>
  new Fault('option_failed', `The receiver’s own ${name} failed; its log says why.`, { cause, details })

/** The token after “Bearer ” in an Authorization header (RFC 6750 section 2.1; the scheme's case does not matter). */
export const bearerToken = (header: string | null | undefined): string | undefined =>
  typeof header === 'string' ? /^Bearer +(\S.*)$/i.exec(header)?.[1]?.trimEnd() : undefined

const faultOf = ({ name, expected, found, advice }: Omit<Check, 'status'>, details: FaultDetails): Fault => {
  const message = `${expected === undefined ? '' : `expected ${expected}, found ${found}. `}${advice ?? ''}`.trim()
  return new Fault(name, message, {
    details: { ...details, ...(expected !== undefined && { expected }), ...(found !== undefined && { found }) },
  })
}

/** One line without control characters. */
const cut = (text: string): string => show(text).slice(1, -1)
