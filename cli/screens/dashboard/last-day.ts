import { parseIso, toIso } from '../../../shared/time.ts'
import type { Ask } from '../../connection/client.ts'

/** The deliveries of each of the last 24 hours by webhook, oldest first; the last hour has just begun. */
export type LastDay = ReadonlyMap<string, readonly number[]>

export const HOURS = 24
const HOUR_MS = 3_600_000
const HOUR = 'createdAt:hour'
/** More would be more keys than the server counts at once: 10,000. */
const MOST_COUNTED = 400

const COUNTS = `query ($selector: MangoSelector, $by: [String!]) {
  counts(resource: deliveries, selector: $selector, by: $by) { key count }
}`

/** Counts the deliveries of these webhooks, or of the first of them, that the access token sees. */
export const lookAtLastDay = async (ask: Ask, webhookIds: string[], nowMs: number): Promise<LastDay> => {
  if (webhookIds.length === 0) return new Map()
  const beginMs = Math.floor(nowMs / HOUR_MS) * HOUR_MS - (HOURS - 1) * HOUR_MS
  const selector = { webhookId: { $in: webhookIds.slice(0, MOST_COUNTED) }, createdAt: { $gte: toIso(beginMs) } }
  const { counts } = await ask<{ counts: { key: { webhookId: string; [HOUR]: string }; count: number }[] }>(COUNTS, {
    selector,
    by: ['webhookId', HOUR],
  })
  const days = new Map<string, number[]>()
  for (const { key, count } of counts) {
    const hour = ((parseIso(key[HOUR]) ?? 0) - beginMs) / HOUR_MS
    const day = days.get(key.webhookId) ?? Array<number>(HOURS).fill(0)
    if (hour in day) day[hour] = count
    days.set(key.webhookId, day)
  }
  return days
}

const BARS = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']

/** The day as a line of `width` columns, which divides 24: its busiest part is the highest, and rest is empty. */
export const lineOf = (day: readonly number[] | undefined, width: number): string => {
  if (day === undefined) return ''
  const hours = HOURS / width
  const parts = Array.from({ length: width }, (_, part) =>
    day.slice(part * hours, (part + 1) * hours).reduce((sum, number) => sum + number, 0),
  )
  const most = Math.max(1, ...parts)
  return parts.map(number => (number === 0 ? ' ' : BARS[Math.ceil((number / most) * BARS.length) - 1])).join('')
}
