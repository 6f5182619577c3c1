import { createHash } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { TidingsError } from '../../../shared/errors.ts'
import type { RehearsalAnswer } from '../../../shared/rehearsal.ts'
import { version } from '../../../shared/version.ts'
import type { RehearsalScene } from '../../../shared/vocabulary.ts'
import type { WebhookRow } from '../../domain/resources.ts'
import { lockActive } from '../../domain/webhooks.ts'
import { newId } from '../../ids.ts'
import { type AttemptTools, bodyOf, type Message } from '../attempt.ts'
import { carriedHeaders, withoutCarried } from '../carried-headers.ts'
import type { AttemptResult } from '../outcome.ts'
import { requireSigning } from '../ping.ts'
import type { Registrant } from '../registration.ts'
import type { DeliveryVector } from './delivery-vectors.ts'
import { Mint } from './mint.ts'
import { type Draft, type Pace, type Step, scenes, TYPICAL } from './scenes.ts'

// A rehearsal sends a webhook's endpoint what only the holder of the signing key can: deliveries with one fault each.
// None is stored. What a handler may be given is addressed to this endpoint, is of no use anywhere else, and expires
// within 5 minutes.

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
  loop.rehearsals.take(token.id, scenes[scene].length)
  // The token may be revoked while a scene is played, or the webhook disabled.
  const inPlace: InPlace = send =>
    loop.pings.run({ tokenId: token.id, webhookId }, async () => {
      await look(within => lockActive(within, webhookId))
      return send()
    })
  return new Play(webhook, scene, tools, inPlace).answers()
}

/** Sends in one of the places for pings, if that is still allowed. */
type InPlace = <T>(send: () => Promise<T>) => Promise<T>

/** How many of a scene's vectors are under way at once. */
const BESIDE = 2
/** After so many requests without an answer no further one is sent. */
const MOST_FAILURES = 5
/** After so long no further request of a scene begins: whoever asked waits for 40 s. */
const LONG_SCENE_MS = 20_000
const LEFT_OUT = {
  statusCode: null,
  failure: 'not_sent',
  detail: `Those before it had no answer, or took ${LONG_SCENE_MS / 1000} s`,
  challenge: null,
  durationMs: 0,
}

type Prepared = {
  message: Message
  request: { url: string; method: 'POST' | 'PUT'; headers: Record<string, string>; body: Buffer }
  pace: Pace
}

class Play {
  readonly #webhook: WebhookRow
  readonly #steps: Step[]
  readonly #tools: AttemptTools
  readonly #inPlace: InPlace
  readonly #nowMs: number
  readonly #deliveryIds = new Map<number, string>()
  readonly #eventIds = new Map<number, string>()
  readonly #startedMs = performance.now()

  constructor(webhook: WebhookRow, scene: RehearsalScene, tools: AttemptTools, inPlace: InPlace) {
    this.#webhook = webhook
    this.#steps = scenes[scene]
    this.#tools = tools
    this.#inPlace = inPlace
    this.#nowMs = tools.clock.now()
  }

  answers(): Promise<RehearsalAnswer[]> {
    if (this.#steps.some(({ vector }) => vector !== undefined)) return this.#beside()
    if (this.#steps.some(({ again, delivery }) => again && delivery !== undefined)) return this.#inRounds()
    return this.#inOrder()
  }

  get #isLong(): boolean {
    return performance.now() - this.#startedMs > LONG_SCENE_MS
  }

  /** Vectors, none of which depends on another. */
  async #beside(): Promise<RehearsalAnswer[]> {
    const answers: RehearsalAnswer[] = []
    let isOver = false
    let failures = 0
    let next = 0
    const work = async (): Promise<void> => {
      while (next < this.#steps.length) {
        const nth = next++
        const step = { ...this.#steps[nth]!, delivery: nth }
        if (isOver || this.#isLong) {
          answers[nth] = { ...LEFT_OUT, ...this.#named(step) }
          continue
        }
        const answer = await this.#inPlace(async () => this.#send(step, await this.#prepare(step)))
        answers[nth] = answer
        if (answer.failure !== null) failures += 1
        // The others would wait as long.
        if (answer.failure === 'timeout' || failures === MOST_FAILURES) isOver = true
      }
    }
    await Promise.all(Array.from({ length: BESIDE }, work))
    return answers
  }

  /** The same request several times at once, then the next. Ends when one of them was handled more than once. */
  async #inRounds(): Promise<RehearsalAnswer[]> {
    const answers: RehearsalAnswer[] = []
    for (const round of Map.groupBy(this.#steps, ({ delivery }) => delivery).values()) {
      if (this.#isLong) break
      const arrive = barrier(round.length)
      const made = await this.#inPlace(async () => {
        const prepared = await this.#prepare(round[0]!)
        return Promise.all(round.map(step => this.#send(step, prepared, arrive)))
      })
      answers.push(...made)
      if (made.filter(isDone).length !== 1) break
    }
    return answers
  }

  async #inOrder(): Promise<RehearsalAnswer[]> {
    const answers: RehearsalAnswer[] = []
    let last: Prepared | undefined
    // Made beforehand: what comes again after a pause is of the same moment.
    const prepared: Prepared[] = []
    for (const step of this.#steps) {
      last = step.again && last ? last : await this.#prepare(step)
      prepared.push(last)
    }
    for (const [nth, step] of this.#steps.entries()) {
      const { afterMs = 0, ifUnavailable } = step
      if (ifUnavailable && answers.at(-1)?.statusCode !== 503) break
      await delay(afterMs)
      const answer = await this.#inPlace(() => this.#send(step, prepared[nth]!))
      answers.push(answer)
      // What follows means nothing, and would wait as long.
      if (answer.failure !== null && prepared[nth]!.pace !== 'lost') break
      if (this.#isLong) break
    }
    return answers
  }

  #messageOf({
    delivery = 0,
    event = delivery,
    eventType = TYPICAL.eventType,
    payload = TYPICAL.payload,
    eventOffset = 0,
  }: Step): Message {
    const { id: webhookId, url, request_sealed: requestSealed } = this.#webhook
    return {
      ...{ webhookId, url, requestSealed },
      deliveryId: this.#idIn(this.#deliveryIds, delivery),
      eventId: this.#idIn(this.#eventIds, event),
      // A receiver must take types that come later: some are none of today's.
      eventType: eventType as Message['eventType'],
      eventTime: this.#nowMs + eventOffset * 1000,
      payload: JSON.stringify(payload),
      traceparent: null,
    }
  }

  #idIn(ids: Map<number, string>, nth: number): string {
    const id = ids.get(nth) ?? newId(this.#nowMs)
    ids.set(nth, id)
    return id
  }

  async #prepare(step: Step): Promise<Prepared> {
    const message = this.#messageOf(step)
    const { vector, change } = step
    return vector ? ofVector(message, vector, this.#tools) : ofDraft(message, change, this.#tools)
  }

  #named({ delivery = 0, eventType = TYPICAL.eventType, vector }: Step) {
    return { delivery, eventType, vector: vector?.name ?? null, isAdvisable: vector?.isAdvisable ?? false }
  }

  async #send(step: Step, { message, request, pace }: Prepared, arrive = barrier(1)): Promise<RehearsalAnswer> {
    const { sender, sealer } = this.#tools
    const { headers, body, ...rest } = request
    const hangingUp = new AbortController()
    const sent = await sender.send({
      ...rest,
      headers: { ...headers, 'content-length': String(body.length) },
      body: PACES[pace](body, arrive, () => hangingUp.abort()),
      signal: hangingUp.signal,
    })
    const result = resultOf(sent, withoutCarried(sealer, message))
    return { ...this.#named(step), ...result, durationMs: Math.round(sent.durationMs) }
  }
}

const isDone = ({ statusCode }: RehearsalAnswer): boolean =>
  statusCode !== null && statusCode >= 200 && statusCode < 300

const mintOf = (
  { webhookId, url: audience, deliveryId: jti, eventId: sub }: Message,
  body: string,
  tools: AttemptTools,
) =>
  new Mint({
    ...{ issuer: tools.issuerUrl, audience, ...tools.keyring.current(), webhookId, jti, sub, body },
    iat: Math.floor(tools.clock.now() / 1000),
  })

const ofDraft = (message: Message, change: Step['change'], tools: AttemptTools): Prepared => {
  const mint = mintOf(message, bodyOf(message), tools)
  const draft: Draft = { claims: mint.claims, key: mint.key, body: mint.body, pace: 'whole' }
  const { claims, key, body, pace } = { ...draft, ...change?.(draft) }
  const authorization = `Bearer ${mint.byHand(JSON.stringify(mint.header), JSON.stringify(claims), key)}`
  return prepared(message, { authorization, body: Buffer.from(body), pace }, tools)
}

const ofVector = async (message: Message, { make }: DeliveryVector, tools: AttemptTools): Promise<Prepared> => {
  const mint = mintOf(message, bodyOf(message), tools)
  const { method, authorization, body = mint.body, bodyBase64, spaces = 0 } = await make(mint)
  const bytes = bodyBase64 === undefined ? Buffer.from(body + ' '.repeat(spaces)) : Buffer.from(bodyBase64, 'base64')
  const sent = {
    method: method === 'PUT' ? ('PUT' as const) : ('POST' as const),
    authorization: authorization === undefined ? `Bearer ${mint.good}` : authorization,
  }
  return prepared(message, { ...sent, body: bytes, pace: 'whole' }, tools)
}

const prepared = (
  message: Message,
  given: { method?: 'POST' | 'PUT'; authorization: string | null; body: Buffer; pace: Pace },
  { sealer, clock }: AttemptTools,
): Prepared => {
  const { method = 'POST', authorization, body, pace } = given
  const headers = {
    ...carriedHeaders(sealer, message, body.toString(), clock.now()),
    'content-type': 'application/json',
    'content-digest': `sha-256=:${createHash('sha256').update(body).digest('base64')}:`,
    // HTTP carries bytes.
    ...(authorization !== null && { authorization: Buffer.from(authorization).toString('latin1') }),
    'user-agent': `Tidings/${version}`,
  }
  return { message, request: { url: message.url, method, headers, body }, pace }
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
const inParts = async function* (body: Buffer, length: number, between: () => Promise<unknown>, after = () => {}) {
  yield body.subarray(0, length)
  await between()
  yield body.subarray(length)
  after()
}

type Sent = Buffer | AsyncIterable<Buffer>
/** How the body is sent. */
const PACES: Record<Pace, (body: Buffer, arrive: () => Promise<void>, hangUp: () => void) => Sent> = {
  whole: body => body,
  paused: body => inParts(body, 20, () => delay(PAUSE_MS)),
  together: (body, arrive) => inParts(body, body.length - 1, arrive),
  // Nothing answers before the last byte.
  lost: (body, _arrive, hangUp) =>
    inParts(
      body,
      body.length - 1,
      () => delay(50),
      () => setImmediate(hangUp),
    ),
}

const resultOf = (result: AttemptResult, hide: (text: string) => string) =>
  result.kind === 'response'
    ? { statusCode: result.statusCode, failure: null, detail: null, challenge: hide(result.challenge ?? '') || null }
    : { statusCode: null, failure: result.reason, detail: result.detail, challenge: null }
