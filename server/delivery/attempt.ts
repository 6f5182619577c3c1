import { createHash } from 'node:crypto'
import { signDeliveryToken } from '../../shared/sign-delivery-token.ts'
import { toIso } from '../../shared/time.ts'
import { version } from '../../shared/version.ts'
import type { Clock } from '../clock.ts'
import type { Sealer } from '../keys/seal.ts'
import type { Keyring } from '../keys/signing-keys.ts'
import { type Span, startSpan } from '../tracing/tracing.ts'
import { carriedHeaders, withoutCarried } from './carried-headers.ts'
import { type AttemptResult, outcome } from './outcome.ts'
import type { Job, Settlement } from './queue.ts'
import { NotBegun, type Sender } from './send.ts'

/** The tools of every attempt. */
export type AttemptTools = {
  clock: Clock
  keyring: Keyring
  sealer: Sealer
  sender: Sender
  issuerUrl: string
  retryScheduleMs: readonly number[]
}

/** A message to send: a job of the queue, or the ping of a webhook that is not stored yet. */
export type Message = Pick<
  Job,
  | 'deliveryId'
  | 'eventId'
  | 'webhookId'
  | 'url'
  | 'requestSealed'
  | 'eventType'
  | 'eventTime'
  | 'payload'
  | 'traceparent'
>

/** The body of a delivery. The payload is inserted as its stored JSON text. */
export const bodyOf = (
  message: Pick<Message, 'deliveryId' | 'webhookId' | 'eventType' | 'eventTime' | 'payload'>,
): string => {
  const { deliveryId, webhookId, eventType, eventTime, payload } = message
  const head = JSON.stringify({ webhookId, eventId: deliveryId, eventType, eventTime: toIso(eventTime) })
  return `${head.slice(0, -1)},"payload":${payload}}`
}

/** The body of a message and its headers, with a new token. Rejects with NotBegun while no key may sign. */
export const signed = async (
  message: Message,
  { clock, keyring, sealer, issuerUrl }: Pick<AttemptTools, 'clock' | 'keyring' | 'sealer' | 'issuerUrl'>,
  options: { isPulled?: boolean } = {},
): Promise<{ body: string; headers: Record<string, string>; keyId: string }> => {
  // The signing key was revoked, and the next one is not known everywhere yet.
  if (keyring.signsFrom() > clock.now()) throw new NotBegun()
  const { kid, key } = keyring.current()
  const body = bodyOf(message)
  const digest = createHash('sha256').update(body).digest()
  const token = await signDeliveryToken({
    key,
    kid,
    issuer: issuerUrl,
    audience: message.url,
    jti: message.deliveryId,
    sub: message.eventId,
    bodySha256: digest.toString('base64url'),
    issuedAtSeconds: Math.floor(clock.now() / 1000),
  })
  return {
    body,
    headers: {
      ...(message.requestSealed !== null && carriedHeaders(sealer, message, body, clock.now(), options)),
      'content-type': 'application/json',
      // RFC 9530.
      'content-digest': `sha-256=:${digest.toString('base64')}:`,
      authorization: `Bearer ${token}`,
      'user-agent': `Tidings/${version}`,
      // W3C Trace Context: the receiver's spans join the trace of the request that caused the event.
      ...(message.traceparent && { traceparent: message.traceparent }),
    },
    keyId: kid,
  }
}

/** Signs a message with a new token and sends it once. Rejects with NotBegun, as `sender.send` does. */
export const sendOnce = async (message: Message, tools: AttemptTools, mayBegin?: () => boolean) => {
  const { body, headers, keyId } = await signed(message, tools)
  const span = attemptSpan(message)
  // Measured after the signature, which may have waited for its turn.
  const startedAt = tools.clock.now()
  const sent = tools.sender.send({
    url: message.url,
    headers: span ? { ...headers, traceparent: span.traceparent } : headers,
    body,
    ...(mayBegin && { mayBegin }),
  })
  const { durationMs, evidence, ...answered } = await (span ? ended(span, sent) : sent)
  const hide = withoutCarried(tools.sealer, message)
  const result = answered.kind === 'response' ? { ...answered, body: hide(answered.body) } : answered
  if (evidence?.responseHeaders && message.requestSealed !== null) {
    for (const [name, value] of Object.entries(evidence.responseHeaders)) evidence.responseHeaders[name] = hide(value)
  }
  if (evidence) evidence.keyId = keyId
  return { startedAt, durationMs: Math.round(durationMs), result, ...(evidence && { evidence }) }
}

const attemptSpan = ({ deliveryId, eventId, webhookId, eventType, url, traceparent }: Message): Span | undefined => {
  const about = {
    'tidings.delivery.id': deliveryId,
    'tidings.event.id': eventId,
    'tidings.webhook.id': webhookId,
    'http.request.method': 'POST',
    'server.address': URL.parse(url)?.hostname ?? '',
  }
  return startSpan(`deliver ${eventType}`, 'client', about, { parent: traceparent })
}

/** Ends the span of an attempt with its result. An attempt that did not begin leaves no span. */
const ended = async <Result extends AttemptResult>(span: Span, sent: Promise<Result>): Promise<Result> => {
  const result = await sent
  if (result.kind === 'response') {
    span.tell({ 'http.response.status_code': result.statusCode })
    span.end(result.statusCode >= 200 && result.statusCode < 300 ? undefined : String(result.statusCode))
  } else {
    span.tell({ 'error.type': result.reason })
    span.end(result.reason)
  }
  return result
}

/** Makes the attempt of a claimed job and returns its outcome. Rejects with NotBegun, as `sendOnce` does. */
export const attempt = async (job: Job, tools: AttemptTools, mayBegin: () => boolean): Promise<Settlement> => {
  const made = await sendOnce(job, tools, mayBegin)
  const { attempt, failureCount, throttledSinceMs } = job
  const means = outcome(made.result, {
    attempt,
    failureCount,
    throttledSinceMs,
    nowMs: tools.clock.now(),
    scheduleMs: tools.retryScheduleMs,
  })
  return { job, ...made, outcome: means }
}
