import { createHash, createHmac, generateKeyPairSync, type KeyObject, sign } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { TOKEN_LIFETIME_SECONDS } from '../../shared/delivery-token.ts'
import { TidingsError } from '../../shared/errors.ts'
import { events } from '../../shared/events.ts'
import { version } from '../../shared/version.ts'
import type { RehearsalScene } from '../../shared/vocabulary.ts'
import type { WebhookRow } from '../domain/resources.ts'
import { lockActive } from '../domain/webhooks.ts'
import { newId } from '../ids.ts'
import { type AttemptTools, bodyOf, type Message } from './attempt.ts'
import { carriedHeaders, withoutCarried } from './carried-headers.ts'
import type { AttemptResult } from './outcome.ts'
import { requireSigning } from './ping.ts'
import type { Registrant } from './registration.ts'

// A rehearsal sends a webhook's endpoint what only the holder of the signing key can: deliveries with one fault each.
// None is stored. Each is addressed to this endpoint, is of no use anywhere else, and expires within 5 minutes.

/** A request before it is sent. A scene changes some of it; the token is signed afterwards. */
type Draft = {
  header: Record<string, unknown>
  claims: Record<string, unknown>
  /** What signs: an Ed25519 key, a secret for HMAC, or nothing. */
  key: KeyObject | Buffer | undefined
  body: string
  method: 'POST' | 'PUT'
  /** The Authorization header, by the token. */
  authorization: (token: string) => string | undefined
  pace: Pace
}

/**
 * How the body is sent: at once; with a pause in its middle; its last byte at the same time as that of the scene's
 * other requests; or at once, and then the sender hangs up.
 */
type Pace = 'whole' | 'paused' | 'together' | 'lost'

/** One request of a scene. */
type Step = {
  /** Steps with the same number are the same delivery. */
  delivery?: number
  eventType?: string
  payload?: object
  /** Seconds from now to the event. */
  eventOffset?: number
  /** Whether the very request of the step before is sent again. */
  again?: true
  /** The pause before it, in milliseconds. */
  afterMs?: number
  /** Whether it is left out unless the step before was answered 503. */
  ifUnavailable?: true
  change?: (draft: Draft, signer: Signer) => Partial<Draft>
}
type Signer = { publicKey: Buffer }

const TYPE = 'project_report_quarterly_submitted'
const step = (change?: Step['change']): Step => (change === undefined ? {} : { change })
const claims =
  (changed: (claims: Record<string, unknown>) => object): Step['change'] =>
  draft => ({ claims: { ...draft.claims, ...changed(draft.claims) } })
/** Another body, with its digest in the token. */
const telling =
  (changed: (body: Record<string, unknown>) => object, claimed: object = {}): Step['change'] =>
  draft => {
    const body = JSON.stringify(changed(JSON.parse(draft.body)))
    return { body, claims: { ...draft.claims, body_sha256: digestOf(body).toString('base64url'), ...claimed } }
  }
/** The token as if it was made that many seconds from now. */
const madeAt = (seconds: number): Step['change'] =>
  claims(({ iat, exp }) => ({ iat: Number(iat) + seconds, exp: Number(exp) + seconds }))
const untrusted = (): KeyObject => generateKeyPairSync('ed25519').privateKey
/** Nobody's, by RFC 2606. */
const NOBODY = 'https://rehearsal.invalid'
/** More than the 1 MiB that a receiver should read. */
const LONG = ' '.repeat(1024 * 1024 + 1)
const AT_ONCE = 5
const THREE_DAYS_SECONDS = 3 * 86_400
const EXAMPLES = [
  TYPE,
  'project_report_quarterly_approved',
  'project_report_quarterly_overdue',
  'token_expired',
] as const

const EXPIRED = madeAt(-TOKEN_LIFETIME_SECONDS - 120)
const BY_OTHER_KEY = (): Partial<Draft> => ({ key: untrusted() })
const OTHER_BODY = (draft: Draft): Partial<Draft> => ({ body: draft.body.replace(/"quarter":"\d+/, '"quarter":"1999') })
const OTHER_BODY_WITH =
  (digest: (body: string) => string): Step['change'] =>
  draft => {
    const body = String(OTHER_BODY(draft).body)
    return { body, claims: { ...draft.claims, body_sha256: digest(body) } }
  }
const bearing =
  (token: string): Step['change'] =>
  () => ({ authorization: () => `Bearer ${token}` })
const paced =
  (pace: Pace): Step['change'] =>
  () => ({ pace })

const scenes: Record<RehearsalScene, Step[]> = {
  ping: [{ eventType: 'ping', payload: {} }],
  examples: EXAMPLES.map((eventType, delivery) => ({ delivery, eventType, payload: events[eventType].example })),
  unknown_type: [{ eventType: 'rehearsal_of_tomorrow', payload: { tomorrow: true } }],
  more_in_payload: [{ payload: { ...events[TYPE].example, tomorrow: [1] } }],
  clock_ahead: [step(madeAt(30))],
  nearly_expired: [step(madeAt(15 - TOKEN_LIFETIME_SECONDS))],
  slow: [step(paced('paused'))],
  late: [{ eventOffset: -THREE_DAYS_SECONDS }],
  reordered: [
    { delivery: 0, eventOffset: 0 },
    { delivery: 1, eventOffset: -60 },
  ],
  no_token: [step(() => ({ authorization: () => undefined }))],
  other_scheme: ['Basic', 'Basic eDp5, Bearer'].map(scheme =>
    step(() => ({ authorization: token => `${scheme} ${token}` })),
  ),
  no_jwt: ['a.b.c', 'token', '..'].map(it => step(bearing(it))),
  alg_none: ['none', 'nOnE'].map(alg => step(draft => ({ header: { ...draft.header, alg }, key: undefined }))),
  hmac_with_public_key: [
    step((draft, { publicKey }) => ({ header: { ...draft.header, alg: 'HS256' }, key: publicKey })),
  ],
  other_key: [step(BY_OTHER_KEY)],
  // Signed by the right key, which its kid does not name: neither the signature nor its lack may decide.
  unknown_key: [step(draft => ({ header: { ...draft.header, kid: newId(0) } }))],
  own_key_in_header: [
    step(draft => {
      const { privateKey, publicKey } = generateKeyPairSync('ed25519')
      return { header: { ...draft.header, jwk: publicKey.export({ format: 'jwk' }) }, key: privateKey }
    }),
  ],
  critical_extension: [step(draft => ({ header: { ...draft.header, crit: ['rehearsal'], rehearsal: 1 } }))],
  other_issuer: [step(claims(() => ({ iss: NOBODY }))), step(claims(({ iss }) => ({ iss: `${iss}.invalid` })))],
  // One that begins as this endpoint's URL could be another's.
  other_audience: [step(claims(() => ({ aud: `${NOBODY}/hooks` })))],
  listed_audience: [step(claims(({ aud }) => ({ aud: [aud, `${NOBODY}/hooks`] })))],
  expired: [step(EXPIRED)],
  // It expires no later than any other.
  from_the_future: [step(claims(({ iat }) => ({ iat: Number(iat) + TOKEN_LIFETIME_SECONDS - 60 })))],
  other_body: [
    step(OTHER_BODY),
    step(OTHER_BODY_WITH(() => '')),
    step(OTHER_BODY_WITH(body => digestOf(body).toString('base64url').slice(0, 1))),
  ],
  other_event: [
    step(claims(() => ({ jti: newId(0) }))),
    step(claims(() => ({ jti: undefined }))),
    step(telling(body => ({ ...body, eventId: undefined }), { jti: undefined })),
  ],
  other_webhook: [step(telling(body => ({ ...body, webhookId: crypto.randomUUID() })))],
  other_method: [step(() => ({ method: 'PUT' }))],
  long_body: [
    step(draft => {
      const body = draft.body + LONG
      return { body, claims: { ...draft.claims, body_sha256: digestOf(body).toString('base64url') } }
    }),
  ],
  replay: [step(), { again: true }],
  retry: [step(madeAt(-5)), step()],
  lost_answer: [step(paced('lost')), { afterMs: 500 }, { afterMs: 2000, ifUnavailable: true }],
  together: Array.from({ length: AT_ONCE }, (_, nth) => (nth === 0 ? step(paced('together')) : { again: true })),
  refused_first: [step(BY_OTHER_KEY), step(EXPIRED), step()],
}
/** Scenes whose requests are sent at once. */
const AT_ONCE_SCENES: ReadonlySet<RehearsalScene> = new Set(['together'])

/** The answer to one request of a rehearsal. */
export type RehearsalAnswer = {
  eventType: string
  statusCode: number | null
  failure: string | null
  detail: string | null
  /** The answer's WWW-Authenticate header. */
  challenge: string | null
  durationMs: number
}

/** Plays a scene to an active webhook's endpoint, and resolves to its answers. Throws NOT_FOUND or CONFLICT. */
export const rehearse = async (
  { change, look, loop, token, tools }: Registrant,
  { webhookId, scene }: { webhookId: string; scene: RehearsalScene },
): Promise<RehearsalAnswer[]> => {
  const webhook = await change(within => lockActive(within, webhookId))
  if (webhook.transport === 'pull') {
    const message = 'The webhook is pulled: nothing is sent, so there is nothing to rehearse.'
    throw new TidingsError('CONFLICT', message, { webhookId, status: webhook.status })
  }
  requireSigning(tools)
  return loop.pings.run({ tokenId: token.id, webhookId }, async () => {
    await look(async () => {})
    return play(webhook, scene, tools)
  })
}

const play = async (webhook: WebhookRow, scene: RehearsalScene, tools: AttemptTools): Promise<RehearsalAnswer[]> => {
  const nowMs = tools.clock.now()
  const ids = new Map<number, { deliveryId: string; eventId: string }>()
  const messageOf = ({
    delivery = 0,
    eventType = TYPE,
    payload = events[TYPE].example,
    eventOffset = 0,
  }: Step): Message => {
    const known = ids.get(delivery) ?? { deliveryId: newId(nowMs), eventId: newId(nowMs) }
    ids.set(delivery, known)
    const { id: webhookId, url, request_sealed: requestSealed } = webhook
    const eventTime = nowMs + eventOffset * 1000
    // A receiver must take types that come later: `unknown_type` is none of today's.
    const type = eventType as Message['eventType']
    const text = JSON.stringify(payload)
    return { ...known, webhookId, url, requestSealed, eventType: type, eventTime, payload: text, traceparent: null }
  }
  const steps = scenes[scene]
  let last: Prepared | undefined
  const prepared = steps.map(each => {
    last = each.again && last ? last : prepare(messageOf(each), each.change, tools)
    return last
  })
  const arrive = barrier(prepared.length)
  if (AT_ONCE_SCENES.has(scene)) return Promise.all(prepared.map(it => send(it, tools, arrive)))
  const answers: RehearsalAnswer[] = []
  const startedMs = performance.now()
  for (const [nth, it] of prepared.entries()) {
    const { afterMs = 0, ifUnavailable } = steps[nth]!
    if (ifUnavailable && answers.at(-1)?.statusCode !== 503) break
    await delay(afterMs)
    const answer = await send(it, tools, arrive)
    answers.push(answer)
    // What follows means nothing, and would wait as long.
    if (answer.failure !== null && it.pace !== 'lost') break
    if (performance.now() - startedMs > LONG_SCENE_MS) break
  }
  return answers
}

/** After so long no further request of a scene begins: whoever asked waits for 40 s. */
const LONG_SCENE_MS = 20_000

type Prepared = {
  message: Message
  request: { url: string; method: 'POST' | 'PUT'; headers: Record<string, string>; body: string }
  pace: Pace
}

const prepare = (message: Message, change: Step['change'], tools: AttemptTools): Prepared => {
  const { clock, keyring, issuerUrl } = tools
  const { kid, key } = keyring.current()
  const iat = Math.floor(clock.now() / 1000)
  const body = bodyOf(message)
  const draft: Draft = {
    header: { alg: 'EdDSA', kid, typ: 'JWT' },
    claims: {
      iss: issuerUrl,
      aud: message.url,
      sub: message.eventId,
      jti: message.deliveryId,
      iat,
      exp: iat + TOKEN_LIFETIME_SECONDS,
      body_sha256: digestOf(body).toString('base64url'),
    },
    key,
    body,
    method: 'POST',
    authorization: token => `Bearer ${token}`,
    pace: 'whole',
  }
  const sent = { ...draft, ...change?.(draft, { publicKey: publicBytes(tools) }) }
  const authorization = sent.authorization(tokenOf(sent))
  const headers = {
    ...carriedHeaders(tools.sealer, message, sent.body, clock.now()),
    'content-type': 'application/json',
    'content-digest': `sha-256=:${digestOf(sent.body).toString('base64')}:`,
    ...(authorization !== undefined && { authorization }),
    'user-agent': `Tidings/${version}`,
  }
  const { method, pace } = sent
  return { message, request: { url: message.url, method, headers, body: sent.body }, pace }
}

const digestOf = (body: string): Buffer => createHash('sha256').update(body).digest()

const publicBytes = ({ keyring }: AttemptTools): Buffer =>
  Buffer.from(String(keyring.current().key.export({ format: 'jwk' }).x), 'base64url')

const tokenOf = ({ header, claims, key }: Draft): string => {
  const encode = (value: object) => Buffer.from(JSON.stringify(value)).toString('base64url')
  const input = `${encode(header)}.${encode(claims)}`
  if (key === undefined) return `${input}.`
  const signature = Buffer.isBuffer(key)
    ? createHmac('sha256', key).update(input).digest()
    : sign(null, Buffer.from(input), key)
  return `${input}.${signature.toString('base64url')}`
}

/** The pause in the middle of a slow body. */
const PAUSE_MS = 2000
/** How long the last byte of a body waits for the other requests of its scene. */
const MEETING_MS = 2000

/** What resolves for all once as many have called it, or the first has waited for long. */
const barrier = (count: number): (() => Promise<void>) => {
  const { promise, resolve } = Promise.withResolvers<void>()
  let arrived = 0
  return () => {
    arrived += 1
    if (arrived === 1) setTimeout(resolve, MEETING_MS)
    if (arrived === count) resolve()
    return promise
  }
}

/** The body in two parts. `between` is awaited after the first, and `after` called when the second was written. */
const inParts = async function* (body: string, length: number, between: () => Promise<unknown>, after = () => {}) {
  const bytes = Buffer.from(body)
  yield bytes.subarray(0, length)
  await between()
  yield bytes.subarray(length)
  after()
}

const send = async (
  { message, request, pace }: Prepared,
  { sender, sealer }: AttemptTools,
  arrive: () => Promise<void>,
): Promise<RehearsalAnswer> => {
  const { headers, body, ...rest } = request
  const length = Buffer.byteLength(body)
  const hangingUp = new AbortController()
  const parts = {
    paused: () => inParts(body, 20, () => delay(PAUSE_MS)),
    together: () => inParts(body, length - 1, arrive),
    // Nothing answers before the last byte.
    lost: () =>
      inParts(
        body,
        length - 1,
        () => delay(50),
        () => setImmediate(() => hangingUp.abort()),
      ),
  }
  const sent = await sender.send(
    pace === 'whole'
      ? { ...rest, headers, body }
      : {
          ...rest,
          headers: { ...headers, 'content-length': String(length) },
          body: parts[pace](),
          signal: hangingUp.signal,
        },
  )
  const result = resultOf(sent, withoutCarried(sealer, message))
  return { eventType: message.eventType, durationMs: Math.round(sent.durationMs), ...result }
}

const resultOf = (result: AttemptResult, hide: (text: string) => string) =>
  result.kind === 'response'
    ? { statusCode: result.statusCode, failure: null, detail: null, challenge: hide(result.challenge ?? '') || null }
    : { statusCode: null, failure: result.reason, detail: result.detail, challenge: null }
