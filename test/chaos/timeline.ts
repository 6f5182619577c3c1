import type { AttemptRow, DeliveryRow } from '../../server/domain/resources.ts'
import type { Arrival } from './arrivals.ts'
import type { Disturbance } from './faults.ts'

// The invariants of one delivery, as seen by the database and by its endpoint. Each rule returns its violations.

export type Timeline = {
  delivery: DeliveryRow
  /** By number. */
  attempts: AttemptRow[]
  /** Oldest first. */
  arrivals: Arrival[]
  scheduleMs: readonly number[]
  /** Faults between two times, by the machine's clock. */
  disturbances: (from: number, to: number, ...kinds: Disturbance['kind'][]) => Disturbance[]
  /** The longest time from an endpoint's answer to its record in the database, where it was recorded. */
  recordedWithinMs: number
}

type Rule = (timeline: Timeline) => string[]

/** How far apart two processes may read the database's clock, and an event and its note in a log may lie. */
const CLOCKS_MS = 250
/** A token is made when its request is sent. */
const SENT_WITHIN_S = 3
const TOKEN_LIFETIME_S = 300

const isSuccess = (status: number | null): boolean => status !== null && status >= 200 && status < 300
const isRejection = (status: number | null): boolean =>
  status !== null && status >= 400 && status < 500 && status !== 429
const endOf = ({ started_at, duration_ms }: AttemptRow): number => started_at + (duration_ms ?? 0)
const isLost = ({ failure }: AttemptRow): boolean => failure === 'lost'

const settled: Rule = ({ delivery, attempts, arrivals, scheduleMs, disturbances, recordedWithinMs }) => {
  const { status } = delivery
  const acknowledged = arrivals.filter(arrival => isSuccess(arrival.status))
  if (status === 'delivered') {
    return acknowledged.length > 0 ? [] : ['is delivered, but the endpoint has not acknowledged it']
  }
  // The sender may not know of it: its process ended or froze first, and later attempts failed.
  const known = acknowledged.find(
    ({ isWritten, arrivedAt, endedAt }) =>
      isWritten && disturbances(arrivedAt - CLOCKS_MS, endedAt! + recordedWithinMs, 'kill', 'freeze').length === 0,
  )
  if (known) return [`is ${status}, but the endpoint has acknowledged it`]
  if (status === 'rejected') {
    return arrivals.some(arrival => isRejection(arrival.status)) ? [] : ['is rejected, but not by the endpoint']
  }
  if (status === 'dropped') {
    const failures = attempts.filter(attempt => !isLost(attempt) && attempt.status_code !== 429).length
    return failures > scheduleMs.length ? [] : [`is dropped after ${failures} failures of ${scheduleMs.length + 1}`]
  }
  return [`is ${status}`]
}

/**
 * An event acknowledged twice: only if something ended or froze
 * before the first acknowledgement can have been recorded.
 */
const acknowledgedOnce: Rule = ({ arrivals, disturbances, recordedWithinMs }) => {
  const [first, second] = arrivals.filter(({ status, isWritten }) => isSuccess(status) && isWritten)
  if (!first || !second) return []
  const recordedBy = (first.endedAt ?? second.arrivedAt) + recordedWithinMs
  if (disturbances(first.arrivedAt - CLOCKS_MS, recordedBy, 'kill', 'freeze').length > 0) return []
  return [`was acknowledged at ${time(first.arrivedAt)} and again at ${time(second.arrivedAt)}`]
}

const notTwiceAtOnce: Rule = ({ arrivals, disturbances }) =>
  pairs(arrivals).flatMap(([one, next]) => {
    if (one.endedAt !== null && one.endedAt <= next.arrivedAt + CLOCKS_MS) return []
    if (disturbances(one.arrivedAt - CLOCKS_MS, next.arrivedAt, 'kill', 'freeze').length > 0) return []
    return [`arrived at ${time(next.arrivedAt)} while the arrival of ${time(one.arrivedAt)} was being answered`]
  })

/** Not before the wait is over, by the log of attempts and by the endpoint's. */
const waited: Rule = timeline => {
  const wrong: string[] = []
  for (const { one, next, waitMs } of waits(timeline)) {
    const gapMs = next.started_at - endOf(one)
    if (gapMs >= waitMs - CLOCKS_MS) continue
    if (timeline.disturbances(one.started_at, next.started_at, 'freeze').length > 0) continue
    wrong.push(`attempt ${next.number} came ${gapMs} ms after attempt ${one.number}, not ${waitMs}`)
  }
  let failures = 0
  for (const [one, next] of pairs(timeline.arrivals)) {
    // A failure that may not have been counted has had the wait of one fewer.
    if (!one.isWritten || isSuccess(one.status) || one.status === 429) continue
    if (timeline.disturbances(one.arrivedAt - CLOCKS_MS, next.arrivedAt).length > 0) continue
    // The sender counts from when it had the answer. An endpoint may hear long after it that an endless one has ended.
    const gapMs = next.arrivedAt - one.answeredAt!
    const waitMs = timeline.scheduleMs[failures++] ?? 0
    if (gapMs < waitMs - CLOCKS_MS) wrong.push(`arrived again after ${gapMs} ms, not ${waitMs}`)
  }
  return wrong
}

/**
 * Attempts one after another, with the wait that the schedule has between them:
 * none where the first was lost or throttled. A failure counts only if it was
 * recorded in time, which it may not have been if something was out of order.
 */
export const waits = ({ attempts, scheduleMs, disturbances }: Timeline) => {
  const found: { one: AttemptRow; next: AttemptRow; waitMs: number }[] = []
  let failures = 0
  for (const [one, next] of pairs(attempts)) {
    if (isLost(one) || one.status_code === 429) continue
    const waitMs = scheduleMs[failures]
    if (waitMs !== undefined) found.push({ one, next, waitMs })
    if (disturbances(one.started_at - CLOCKS_MS, next.started_at).length === 0) failures += 1
  }
  return found
}

const numbered: Rule = ({ delivery, attempts }) => {
  const numbers = attempts.map(({ number }) => number)
  if (numbers.some((number, index) => number !== index + 1)) return [`has attempts ${numbers.join(', ')}`]
  const last = attempts.findLast(attempt => !isLost(attempt))
  if (!last || delivery.attempt_count === last.number || delivery.attempt_count === attempts.length) return []
  return [`counts ${delivery.attempt_count} attempts, and its log has ${numbers.length}`]
}

/** Each request that arrived has its row, and each row says what was answered. */
const logged: Rule = ({ attempts, arrivals }) => {
  const left = new Set(arrivals)
  const take = (attempt: AttemptRow, fits: (arrival: Arrival) => boolean): boolean => {
    const from = attempt.started_at - CLOCKS_MS
    const to = isLost(attempt) ? Number.POSITIVE_INFINITY : endOf(attempt) + CLOCKS_MS
    for (const arrival of left) {
      if (arrival.arrivedAt < from || arrival.arrivedAt > to || !fits(arrival)) continue
      left.delete(arrival)
      return true
    }
    return false
  }
  const wrong: string[] = []
  // Shortest first, because much may have arrived during an attempt that froze.
  const made = attempts.toSorted((a, b) => (a.duration_ms ?? 0) - (b.duration_ms ?? 0))
  for (const attempt of made.filter(({ status_code }) => status_code !== null)) {
    if (take(attempt, ({ status }) => status === attempt.status_code)) continue
    wrong.push(`attempt ${attempt.number} says ${attempt.status_code}, which the endpoint did not answer then`)
  }
  for (const attempt of made.filter(({ failure }) => failure !== null && failure !== 'lost')) {
    const isOwnFault = take(attempt, ({ did, isWritten }) => did !== 'reply' || !isWritten)
    if (isOwnFault || /^(connection_refused|connect_timeout)$/.test(attempt.failure!)) continue
    // What was answered too late for it, or while the sender was frozen.
    if (take(attempt, () => true)) continue
    if (attempt.failure === 'connection_reset' || attempt.failure === 'timeout') continue
    wrong.push(`attempt ${attempt.number} says ${attempt.failure}, and nothing arrived then`)
  }
  for (const attempt of attempts.filter(isLost)) take(attempt, () => true)
  for (const arrival of left) {
    wrong.push(
      `arrived at ${time(arrival.arrivedAt)} (${arrival.status ?? arrival.did}), and no attempt is logged for it`,
    )
  }
  return wrong
}

/** A 4XX is the end. */
const rejectedOnce: Rule = ({ arrivals, disturbances, recordedWithinMs }) => {
  const at = arrivals.findIndex(arrival => isRejection(arrival.status) && arrival.isWritten)
  const again = at < 0 ? undefined : arrivals[at + 1]
  if (!again) return []
  const rejection = arrivals[at]!
  const recordedBy = rejection.endedAt! + recordedWithinMs
  if (disturbances(rejection.arrivedAt - CLOCKS_MS, recordedBy, 'kill', 'freeze').length > 0) return []
  return [`was rejected with ${rejection.status}, and arrived again at ${time(again.arrivedAt)}`]
}

const freshTokens: Rule = ({ arrivals, disturbances }) =>
  arrivals.flatMap(({ iat, exp, arrivedAt }) => {
    if (iat === null || exp === null) return ['came without a token']
    if (exp - iat !== TOKEN_LIFETIME_S) return [`had a token for ${exp - iat} s`]
    const ageS = arrivedAt / 1000 - iat
    if (ageS > -CLOCKS_MS / 1000 && ageS < SENT_WITHIN_S + 1) return []
    if (disturbances(iat * 1000, arrivedAt, 'freeze').length > 0) return []
    return [`arrived at ${time(arrivedAt)} with a token made ${Math.round(ageS)} s before`]
  })

export const rules: Readonly<Record<string, Rule>> = {
  'every delivery came to its end, and to the one that the endpoint knows of': settled,
  'nothing was acknowledged twice, except around a kill, a freeze or an outage': acknowledgedOnce,
  'no attempt overlapped another of the same delivery, except around a kill, a freeze or an outage': notTwiceAtOnce,
  'the waits of the schedule were kept': waited,
  'attempts are numbered without gap or double': numbered,
  'each request has its row in the log of attempts, and each row tells the truth': logged,
  'what was rejected did not come again': rejectedOnce,
  'each attempt had a token made for it': freshTokens,
}

/** A timeline in one line: the log of attempts, and what the endpoint saw. */
export const tell = ({ delivery, attempts, arrivals }: Timeline): string => {
  const made = attempts.map(
    it => `${it.number} ${time(it.started_at)} +${it.duration_ms ?? '?'} ms ${it.status_code ?? it.failure}`,
  )
  const seen = arrivals.map(
    it =>
      `${time(it.arrivedAt)} to ${it.endedAt === null ? '?' : time(it.endedAt)} ` +
      `${it.status ?? it.did}${it.isWritten ? '' : ' cut off'}`,
  )
  return `${delivery.status}; attempts: ${made.join(', ')}; arrivals: ${seen.join(', ')}`
}

const pairs = <T>(list: T[]): [T, T][] => list.slice(1).map((next, index) => [list[index]!, next])

export const time = (ms: number): string => new Date(ms).toISOString().slice(11, 23)
