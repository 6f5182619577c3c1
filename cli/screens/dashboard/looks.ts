import { timeOfId } from '../../../shared/time.ts'
import { atAGlance, type DeliveryAtAGlance } from '../../resources/timeline.ts'
import { type Look, PAGE } from './feed.ts'
import type { State } from './state.ts'

/** The most rows of the list; for older ones, narrow the filters. */
export const MOST_ROWS = 2_000

/**
 * Applies the result of a poll. While the list stands still, its rows stay in place and only their state changes; newer
 * ones are counted.
 */
export const afterLook = (state: State, look: Look, nowMs: number): State => {
  const { newest, refreshed, timeline } = look
  const arrived = arrivalOf(newest[0], state, nowMs)
  const seen = {
    ...state,
    newest: arrived,
    seenAtMs: nowMs,
    nowMs,
    // It may belong to the previous selection.
    timeline: timeline && timeline.id === state.deliveryId ? timeline.delivery : state.timeline,
    perSecond: steadied(state.perSecond, rateOf(newest, arrived, nowMs)),
  }
  if (state.deliveries === undefined || state.deliveryId === undefined || state.deliveries.length === 0) {
    return { ...seen, deliveries: newest, newer: 0, newerAtLeast: false, more: newest.length === PAGE }
  }
  const changed = new Map(
    [...newest, ...refreshed, ...(timeline?.delivery ? [atAGlance(timeline.delivery)] : [])].map(each => [
      each.id,
      each,
    ]),
  )
  const top = state.deliveries[0]!.id
  const newer = newest.filter(({ id }) => id > top).length
  return {
    ...seen,
    deliveries: state.deliveries.map(row => changed.get(row.id) ?? row),
    newer,
    newerAtLeast: newer === PAGE,
  }
}

/** Adds the next page at the end of the list. */
export const afterOlder = (state: State, page: DeliveryAtAGlance[]): State => {
  const known = state.deliveries ?? []
  const deliveries = [...known, ...page].slice(0, MOST_ROWS)
  return { ...state, deliveries, more: page.length === PAGE && deliveries.length < MOST_ROWS }
}

/** The time span of the rate, in milliseconds. */
const RATE_SPAN_MS = 10_000

/**
 * The recent rate of new deliveries a second, from the times in their ids (RFC 9562 section 5.7). If a page covers less
 * than the span, the rate is computed from its own span, so that one page suffices at any rate.
 */
const rateOf = (newest: DeliveryAtAGlance[], arrived: State['newest'], nowMs: number): number => {
  if (!arrived) return 0
  const times = newest.map(({ id }) => timeOfId(id))
  const latest = times[0]!
  // Measured by this machine's clock only, which may differ from the server's.
  const quietMs = nowMs - arrived.atMs
  const coveredMs = newest.length === PAGE ? Math.max(1, latest - times.at(-1)!) : RATE_SPAN_MS
  const spanMs = Math.min(RATE_SPAN_MS, coveredMs + quietMs)
  return (times.filter(time => time > latest - (spanMs - quietMs)).length * 1000) / spanMs
}

/** Smooths the rate: a page of a fast stream covers only a tenth of a second. */
const steadied = (before: number, rate: number): number => (before === 0 || rate === 0 ? rate : (2 * before + rate) / 3)

/** When the newest was first seen; at the first poll it may be old. */
const arrivalOf = (newest: DeliveryAtAGlance | undefined, { newest: known }: State, nowMs: number): State['newest'] => {
  if (!newest || newest.id === known?.id) return known
  return { id: newest.id, atMs: known ? nowMs : Math.min(nowMs, timeOfId(newest.id)) }
}
