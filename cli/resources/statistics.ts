import { parseIso, toIso } from '../../shared/time.ts'
import { type DeliveryStatus, deliveryStatuses } from '../../shared/vocabulary.ts'
import { zoneAt } from '../output/time.ts'
import { hasFailed } from './timeline.ts'

export type Unit = 'minute' | 'hour' | 'day' | 'month'

/** Half of the answers, and 95 % of them, took at most so long; null without an answer. */
export interface Percentiles {
  p50Ms: number | null
  p95Ms: number | null
}

/** One span of time, `id` being when it begins. */
export interface Span extends Record<DeliveryStatus, number>, Percentiles {
  id: string
  deliveries: number
  failed: number
}

export interface Statistics extends Percentiles {
  webhookId: string | null
  since: string
  until: string
  unit: Unit
  zone: string
  deliveries: number
  failed: number
  /** The number of deliveries whose answers the percentiles are of. */
  sampled: number
  spans: Span[]
}

export interface Answered {
  createdAt: string
  attempts: { durationMs: number | null; statusCode: number | null }[]
}

export interface Counted {
  startMs: number
  status: DeliveryStatus
  count: number
}

const MINUTE_MS = 60_000
/** Clocks change at whole quarters of an hour. */
const QUARTER_MS = 15 * MINUTE_MS
const HOUR_MS = 60 * MINUTE_MS
const DAY_MS = 24 * HOUR_MS

/** The unit that divides a time into what fits on a screen. */
export const unitFor = (ms: number): Unit =>
  ms <= 90 * MINUTE_MS ? 'minute' : ms <= 60 * HOUR_MS ? 'hour' : ms <= 92 * DAY_MS ? 'day' : 'month'

export const percentiles = (answers: Answered[]): Percentiles => {
  const took = answers
    .flatMap(({ attempts: [last] }) => (last?.statusCode != null && last.durationMs !== null ? [last.durationMs] : []))
    .sort((a, b) => a - b)
  const at = (share: number): number | null => took[Math.max(0, Math.ceil(took.length * share) - 1)] ?? null
  return { p50Ms: at(0.5), p95Ms: at(0.95) }
}

/** Every span of a time in order, those without deliveries too. */
export const spansOf = (given: {
  counted: Counted[]
  answers: Answered[]
  unit: Unit
  fromMs: number
  toMs: number
}): Span[] => {
  const { counted, answers, unit, fromMs, toMs } = given
  const starts = new Set(counted.map(({ startMs }) => startMs))
  for (let ms = startOf(fromMs, unit); ms <= toMs; ms = nextOf(ms, unit)) starts.add(ms)
  const sorted = [...starts].sort((a, b) => a - b)
  return sorted.map((startMs, index) => {
    const endMs = sorted[index + 1] ?? Number.POSITIVE_INFINITY
    const own = counted.filter(each => each.startMs === startMs)
    const number = (of: (status: DeliveryStatus) => boolean): number =>
      own.reduce((sum, { status, count }) => (of(status) ? sum + count : sum), 0)
    const statuses = deliveryStatuses.map(status => [status, number(each => each === status)])
    const sample = answers.filter(({ createdAt }) => {
      const ms = parseIso(createdAt) ?? 0
      return ms >= startMs && ms < endMs
    })
    return {
      id: toIso(startMs),
      deliveries: number(() => true),
      failed: number(hasFailed),
      ...(Object.fromEntries(statuses) as Record<DeliveryStatus, number>),
      ...percentiles(sample),
    }
  })
}

/** The beginning of a span in this machine's zone. */
const startOf = (ms: number, unit: Unit): number => {
  const at = new Date(ms)
  if (unit === 'month') return new Date(at.getFullYear(), at.getMonth(), 1).getTime()
  if (unit === 'day') return new Date(at.getFullYear(), at.getMonth(), at.getDate()).getTime()
  const offset = zoneAt(ms)
  let startMs = ms - ((ms + offset * MINUTE_MS) % (unit === 'hour' ? HOUR_MS : MINUTE_MS))
  // As for the server, an hour in which the clocks change by half an hour begins at the change.
  while (zoneAt(startMs) !== offset) startMs += QUARTER_MS
  return startMs
}

const nextOf = (startMs: number, unit: Unit): number => {
  const at = new Date(startMs)
  if (unit === 'month') return new Date(at.getFullYear(), at.getMonth() + 1, 1).getTime()
  if (unit === 'day') return new Date(at.getFullYear(), at.getMonth(), at.getDate() + 1).getTime()
  return startOf(startMs + (unit === 'hour' ? HOUR_MS : MINUTE_MS), unit)
}
