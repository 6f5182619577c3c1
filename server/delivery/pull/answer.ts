import { badInput } from '../../../shared/errors.ts'
import { timeOfId } from '../../../shared/time.ts'
import type { EventType } from '../../../shared/vocabulary.ts'
import { marks, Overtaken, rows, run, type Sql } from '../../database/connect.ts'
import { dialectOf } from '../../database/dialect.ts'
import type { Change } from '../../domain/change.ts'
import { takenEvidence } from '../../domain/deliveries.ts'
import { waitForLines } from '../../domain/lines.ts'
import type { AccessToken } from '../../domain/permissions.ts'
import { TAKEN_TIME } from '../../domain/pull-time.ts'
import { type AttemptRow, type DeliveryRow, deliveries, type WebhookRow } from '../../domain/resources.ts'
import { visibleTo } from '../../domain/visibility.ts'
import { type Evidence, keptHeaders } from '../evidence.ts'
import { type AttemptResult, outcome } from '../outcome.ts'
import type { Job, QueueRow, Settlement } from '../queue.ts'
import { ANSWER_KEPT } from '../send.ts'
import { settleIn } from '../settle.ts'
import { LONGEST_TAKEN_MS, takerOf } from './taken.ts'

/** A client's answer to a delivery that it took. */
export type Answer = {
  deliveryId: string
  attempt: number
  status: number
  headers?: Record<string, unknown> | null
  body?: string | null
}

/** What became of an answer. */
export type Counted = {
  deliveryId: string
  attempt: number
  /** Whether it is the answer of this attempt, now or since it was given before. */
  counted: boolean
  /** Why it does not count. */
  reason: string | null
}

type Recorded = Pick<AttemptRow, 'delivery_id' | 'number' | 'started_at' | 'status_code'> & { evidence: string | null }

/** The state of the deliveries that answers or extensions are about, locked in this transaction. */
type Locked = {
  seen: Map<string, DeliveryRow>
  queued: Map<string, QueueRow>
  attempts: Map<string, Recorded>
  webhooks: Map<string, Pick<WebhookRow, 'epoch' | 'transport' | 'access_token_id' | 'held_until' | 'url'>>
}

const keyOf = (deliveryId: string, attempt: number): string => `${deliveryId} ${attempt}`

/**
 * Records answers of clients by the rules for an endpoint's: `outcome`, then a settle. The first answer to an attempt
 * counts; the same again changes nothing. After the end of the lease an answer is a late one, as of an endpoint. The
 * transaction has waited for the lines of the deliveries.
 *
 * @returns what became of each answer, and the settlements, whose effects on webhooks follow the commit
 */
export const recordAnswers = async (
  { trx, token, now }: Change,
  answers: ReadAnswer[],
  scheduleMs: readonly number[],
): Promise<{ counted: Counted[]; settlements: Settlement[] }> => {
  if (answers.length === 0) return { counted: [], settlements: [] }
  const locked = await lock(
    trx,
    token,
    answers.map(({ answer }) => answer),
  )
  const nowMs = now()
  const given = new Map<string, number>()
  const settlements: Settlement[] = []
  const counted = answers.map(({ answer, result, headers }): Counted => {
    const { deliveryId, attempt, status } = answer
    const key = keyOf(deliveryId, attempt)
    const found = attemptOf(locked, answer)
    const before = given.get(key) ?? locked.attempts.get(key)?.status_code ?? undefined
    if (typeof found === 'string') return { deliveryId, attempt, counted: false, reason: found }
    if (before !== undefined) {
      const reason = before === status ? null : `This attempt was answered with ${before} before. That answer counts.`
      return { deliveryId, attempt, counted: before === status, reason }
    }
    given.set(key, status)
    settlements.push(settlementOf(found, { result, headers, nowMs, scheduleMs }))
    return { deliveryId, attempt, counted: true, reason: null }
  })
  const own = settlements.flatMap(({ job }) => locked.queued.get(job.deliveryId) ?? [])
  if (settlements.length > 0 && (await settleIn(trx, settlements, now, own)).length > 0) throw new Overtaken()
  return { counted, settlements }
}

/** The attempt that an answer is about, or why there is none. */
type Attempted = { job: Job; startedAt: number; evidence: Evidence }

const attemptOf = (locked: Locked, { deliveryId, attempt }: Answer): Attempted | string => {
  const delivery = locked.seen.get(deliveryId)
  if (!delivery) return 'No delivery with this id is visible to this access token.'
  const row = locked.queued.get(deliveryId)
  const isOwn = isHeld(row, attempt)
  const recorded = locked.attempts.get(keyOf(deliveryId, attempt))
  const evidence: Evidence | null = isOwn
    ? JSON.parse(takenEvidence(row.taken))
    : JSON.parse(recorded?.evidence ?? 'null')
  if (!evidence?.pulledBy) return `Attempt ${attempt} of this delivery was not taken by a client.`
  const webhook = locked.webhooks.get(delivery.webhook_id)!
  const job: Job = {
    deliveryId,
    eventId: delivery.event_id,
    webhookId: delivery.webhook_id,
    epoch: isOwn ? JSON.parse(row.taken).epoch : webhook.epoch,
    recovered: row?.recovered === 1,
    // A late answer has no lease.
    lease: isOwn ? row.lease : '',
    attempt,
    failureCount: row?.failure_count ?? 0,
    throttledSinceMs: row?.throttled_since ?? null,
    line: row?.line ?? null,
    url: webhook.url,
    webhook,
    eventType: delivery.event_type,
    eventTime: delivery.created_at,
    payload: '{}',
    requestSealed: null,
    traceparent: null,
  }
  return { job, startedAt: isOwn ? timeOfId(row.lease) : recorded!.started_at, evidence }
}

/** Whether a client holds this attempt. */
const isHeld = (row: QueueRow | undefined, attempt: number): row is QueueRow & { lease: string; taken: string } =>
  row !== undefined && row.lease !== null && row.taken !== null && row.due_at >= TAKEN_TIME && row.attempt === attempt

const settlementOf = (
  { job, startedAt, evidence }: Attempted,
  { result, headers, nowMs, scheduleMs }: Omit<ReadAnswer, 'answer'> & { nowMs: number; scheduleMs: readonly number[] },
): Settlement => {
  const { attempt, failureCount, throttledSinceMs } = job
  const means = outcome(result, { attempt, failureCount, throttledSinceMs, nowMs, scheduleMs })
  return {
    job,
    startedAt,
    durationMs: Math.max(0, nowMs - startedAt),
    result,
    evidence: { ...evidence, responseHeaders: keptHeaders(headers) },
    outcome: means,
  }
}

/** An answer as an endpoint's, with its headers by their names in lower case. */
export type ReadAnswer = { answer: Answer; result: AttemptResult; headers: Record<string, string> }

/** Reads an answer as it would have been read from HTTP. Throws BAD_USER_INPUT. */
export const readAnswer = ({ status, headers: given, body }: Answer): Omit<ReadAnswer, 'answer'> => {
  if (given && (typeof given !== 'object' || Array.isArray(given))) {
    throw badInput('answers', 'headers must be an object, such as {"retry-after": "30"}')
  }
  const headers = Object.fromEntries(
    Object.entries(given ?? {}).map(([name, value]) => [name.toLowerCase(), String(value)]),
  )
  const result: AttemptResult = {
    kind: 'response',
    statusCode: status,
    ...(headers['retry-after'] !== undefined && { retryAfter: headers['retry-after'] }),
    ...(headers['www-authenticate'] !== undefined && { challenge: headers['www-authenticate'] }),
    body: cut(body ?? ''),
  }
  return { result, headers }
}

/** The beginning of a text, without half a character at its end. */
const cut = (text: string): string => {
  const bytes = Buffer.from(text)
  if (bytes.length <= ANSWER_KEPT) return text
  return new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes.subarray(0, ANSWER_KEPT), { stream: true })
}

/** Locks and reads what decides about answers, and waits for the rows that others hold. */
const lock = async (
  trx: Sql,
  token: AccessToken,
  answers: Pick<Answer, 'deliveryId' | 'attempt'>[],
): Promise<Locked> => {
  const ids = [...new Set(answers.map(answer => answer.deliveryId))].toSorted()
  const { forUpdate } = dialectOf(trx)
  const queued = await rows<QueueRow>(
    trx,
    `SELECT * FROM delivery_queue WHERE delivery_id IN (${marks(ids)}) ORDER BY delivery_id${forUpdate}`,
    ids,
  )
  const rowOf = new Map(queued.map(row => [row.delivery_id, row]))
  const isOwn = (id: string) => takerOf(rowOf.get(id))?.id === token.id
  const ended = ids.filter(id => !rowOf.has(id))
  if (ended.length > 0) {
    // Two late answers to one attempt take turns.
    await rows(trx, `SELECT id FROM deliveries WHERE id IN (${marks(ended)}) ORDER BY id${forUpdate}`, ended)
  }
  const seen = await seenBy(trx, token, ids, isOwn)
  // An attempt under its lease has no record yet.
  const recorded = answers.filter(({ deliveryId, attempt }) => !isHeld(rowOf.get(deliveryId), attempt))
  const attempts =
    recorded.length === 0
      ? []
      : await rows<Recorded>(
          trx,
          `SELECT delivery_id, number, started_at, status_code, evidence FROM attempts
           WHERE delivery_id IN (${marks(recorded)})`,
          recorded.map(({ deliveryId }) => deliveryId),
        )
  const about = [...new Set(seen.map(row => row.webhook_id))]
  const webhooks =
    about.length === 0
      ? []
      : await rows<WebhookRow>(
          trx,
          `SELECT id, epoch, transport, access_token_id, held_until, url FROM webhooks WHERE id IN (${marks(about)})`,
          about,
        )
  return {
    seen: new Map(seen.map(row => [row.id, row])),
    queued: rowOf,
    attempts: new Map(attempts.map(row => [keyOf(row.delivery_id, row.number), row])),
    webhooks: new Map(webhooks.map(row => [row.id, row])),
  }
}

/** The end of a lease: null if the client has none on the delivery any more. */
export type Extended = { deliveryId: string; attempt: number; leaseUntil: number | null }

/**
 * The deliveries that a token sees. What it has taken itself it saw then: as an endpoint's, its answer counts whatever
 * has changed since, and what a token sees is the dearest to ask.
 */
const seenBy = async (
  trx: Sql,
  token: AccessToken,
  ids: string[],
  isOwn: (id: string) => boolean,
): Promise<DeliveryRow[]> => {
  const [own, others] = [ids.filter(isOwn), ids.filter(id => !isOwn(id))]
  const taken =
    own.length === 0 ? [] : await rows<DeliveryRow>(trx, `SELECT * FROM deliveries WHERE id IN (${marks(own)})`, own)
  if (others.length === 0) return taken
  const seen: DeliveryRow[] = await trx('deliveries')
    .select('deliveries.*')
    .whereIn('deliveries.id', others)
    .modify(visibleTo(token)(deliveries))
  return [...taken, ...seen]
}

/** Gives clients more time, `seconds` from now, for deliveries that they have taken and not answered. */
export const extendTaken = async (
  { trx, token, now }: Change,
  taken: { deliveryId: string; attempt: number }[],
  seconds: number,
): Promise<Extended[]> => {
  await waitForLines(
    trx,
    taken.map(({ deliveryId }) => deliveryId),
  )
  const locked = await lock(trx, token, taken)
  const nowMs = now()
  const ends = taken.map(({ deliveryId, attempt }): Extended => {
    const row = locked.seen.has(deliveryId) ? locked.queued.get(deliveryId) : undefined
    if (!isHeld(row, attempt)) return { deliveryId, attempt, leaseUntil: null }
    const latest = timeOfId(row.lease) + LONGEST_TAKEN_MS
    // Never earlier than it is already.
    const end = Math.max(row.due_at - TAKEN_TIME, Math.min(nowMs + seconds * 1000, latest))
    return { deliveryId, attempt, leaseUntil: end }
  })
  for (const [end, alike] of Map.groupBy(ends, ({ leaseUntil }) => leaseUntil)) {
    if (end === null) continue
    const ids = alike.map(one => one.deliveryId)
    await run(trx, `UPDATE delivery_queue SET due_at = ? WHERE delivery_id IN (${marks(ids)})`, [
      TAKEN_TIME + end,
      ...ids,
    ])
  }
  return ends
}

/** The result of an attempt whose client did not answer in time. */
export const lapseOf = (
  row: QueueRow,
  { event_type: eventType, ...webhook }: Job['webhook'] & { url: string; event_type: EventType },
  { nowMs, scheduleMs }: { nowMs: number; scheduleMs: readonly number[] },
): Settlement => {
  const startedAt = timeOfId(row.lease!)
  const result: AttemptResult = {
    kind: 'failure',
    reason: 'timeout',
    detail: 'The client that took it gave no answer before its lease ended',
  }
  const history = { failureCount: row.failure_count, throttledSinceMs: row.throttled_since }
  return {
    job: {
      deliveryId: row.delivery_id,
      eventId: row.event_id,
      webhookId: row.webhook_id,
      epoch: JSON.parse(row.taken!).epoch,
      recovered: row.recovered === 1,
      lease: row.lease!,
      attempt: row.attempt,
      ...history,
      line: row.line,
      url: webhook.url,
      webhook,
      eventType,
      eventTime: 0,
      payload: '{}',
      requestSealed: null,
      traceparent: null,
    },
    startedAt,
    durationMs: row.due_at - TAKEN_TIME - startedAt,
    result,
    evidence: JSON.parse(takenEvidence(row.taken!)),
    isLapse: true,
    outcome: outcome(result, { attempt: row.attempt, ...history, nowMs, scheduleMs }),
  }
}
