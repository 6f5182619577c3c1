import { timeOfId } from '../../../shared/time.ts'
import { atAGlance, type DeliveryAtAGlance } from '../../resources/timeline.ts'
import { type Look, PAGE } from './feed.ts'
import type { State } from './state.ts'

/** Rows that the list keeps; whoever wants more of the past narrows the filters. */
export const MOST_ROWS = 2_000

/**
 * Takes in what a look has found. While the list is held its rows stay where they are, and change only in what has
 * become of them; what is newer is counted.
 */
export const afterLook = (state: State, look: Look, nowMs: number): State => {
  const { newest, refreshed, timeline } = look
  const arrived = arrivalOf(newest[0], state, nowMs)
  const seen = {
    ...state,
    newest: arrived,
    seenAtMs: nowMs,
    nowMs,
    // It may be of what was selected before.
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

/** Adds the page behind the last row of the list. */
export const afterOlder = (state: State, page: DeliveryAtAGlance[]): State => {
  const known = state.deliveries ?? []
  const deliveries = [...known, ...page].slice(0, MOST_ROWS)
  return { ...state, deliveries, more: page.length === PAGE && deliveries.length < MOST_ROWS }
}

/** The last so many milliseconds that a rate is told from. */
const RATE_SPAN_MS = 10_000

/**
 * Deliveries made a second, lately. Their ids tell when (RFC 9562 section 5.7); a page that covers less than the span
 * tells the rate from what it does cover, so that one page is enough at any rate.
 */
const rateOf = (newest: DeliveryAtAGlance[], arrived: State['newest'], nowMs: number): number => {
  if (!arrived) return 0
  const times = newest.map(({ id }) => timeOfId(id))
  const latest = times[0]!
  // Told by this machine's clock alone, which the server's need not agree with.
  const quietMs = nowMs - arrived.atMs
  const coveredMs = newest.length === PAGE ? Math.max(1, latest - times.at(-1)!) : RATE_SPAN_MS
  const spanMs = Math.min(RATE_SPAN_MS, coveredMs + quietMs)
  return (times.filter(time => time > latest - (spanMs - quietMs)).length * 1000) / spanMs
}

/** A page of a fast stream covers a tenth of a second, in which more or fewer may fall than do over a second. */
const steadied = (before: number, rate: number): number => (before === 0 || rate === 0 ? rate : (2 * before + rate) / 3)

/** When the newest was first seen; at the first look it may be old. */
const arrivalOf = (newest: DeliveryAtAGlance | undefined, { newest: known }: State, nowMs: number): State['newest'] => {
  if (!newest || newest.id === known?.id) return known
  return { id: newest.id, atMs: known ? nowMs : Math.min(nowMs, timeOfId(newest.id)) }
}
