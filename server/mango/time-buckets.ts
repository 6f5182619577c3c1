import { parseIso, toIso } from '../../shared/time.ts'
import { badQuery, quoted } from './error.ts'

// Spans of time to count by. SQL groups by spans of UTC, which every engine computes alike, and TypeScript folds those
// into hours, days and months of a zone: not every engine knows zones.

export const timeUnits = ['minute', 'hour', 'day', 'month'] as const
export type TimeUnit = (typeof timeUnits)[number]

export type Bucket = {
  /** The span of UTC by which SQL groups. A bucket consists of whole ones. */
  spanMs: number
  /** The bucket of a time: when it begins (epoch milliseconds), and that as text with the zone's offset. */
  of(ms: number): { startMs: number; text: string }
}

/** `createdAt:hour`, `createdAt:day@Europe/Berlin`; undefined if a name has no such ending. */
export const splitBucket = (name: string): { field: string; unit: string; zone: string | undefined } | undefined => {
  const [, field, unit, zone] = /^([^:]+):([a-zA-Z]+)(?:@(.*))?$/.exec(name) ?? []
  return field === undefined || unit === undefined ? undefined : { field, unit, zone }
}

const MINUTE_MS = 60_000
const UNITS_MS = { minute: MINUTE_MS, hour: 60 * MINUTE_MS, day: 24 * 60 * MINUTE_MS } as const

/** Throws `MangoError` for an unknown unit or zone. `at` is the place in the query. */
export const bucketOf = (unit: string, zone: string | undefined, at: string): Bucket => {
  const known = timeUnits.find(each => each === unit)
  if (!known) throw badQuery(at, `has the unknown unit ${quoted(unit)} of time. Units: ${timeUnits.join(', ')}`)
  const offsets = zone === undefined || zone === 'UTC' ? () => 0 : offsetsOf(zone, at)
  const spanMs = known === 'month' ? UNITS_MS.day : UNITS_MS[known]
  const isUtc = zone === undefined || zone === 'UTC'
  return {
    spanMs: isUtc || known === 'minute' ? spanMs : Math.min(spanMs, stepOf(offsets)),
    of: remembered(ms => startOf(ms, known, offsets)),
  }
}

const startOf = (ms: number, unit: TimeUnit, offsetAt: (ms: number) => number): { startMs: number; text: string } => {
  const offset = offsetAt(ms)
  const local = ms + offset
  if (unit === 'minute' || unit === 'hour') {
    let startMs = ms - modulo(local, UNITS_MS[unit])
    // An hour in which the clocks change by half an hour begins at the change.
    while (offsetAt(startMs) !== offset) startMs += QUARTER_MS
    return { startMs, text: isoAt(startMs + offset, offset) }
  }
  const day = new Date(local)
  const localStart =
    unit === 'day' ? local - modulo(local, UNITS_MS.day) : Date.UTC(day.getUTCFullYear(), day.getUTCMonth(), 1)
  // Its beginning may be on the other side of a change of the clocks.
  const before = offsetAt(localStart - offset)
  return { startMs: localStart - before, text: isoAt(localStart, before) }
}

const modulo = (value: number, by: number): number => ((value % by) + by) % by

/** ISO 8601 of a local time with its offset, both in milliseconds. */
const isoAt = (localMs: number, offsetMs: number): string => {
  const minutes = Math.abs(offsetMs) / MINUTE_MS
  const two = (number: number) => String(Math.floor(number)).padStart(2, '0')
  return toIso(localMs).replace('+00:00', `${offsetMs < 0 ? '-' : '+'}${two(minutes / 60)}:${two(minutes % 60)}`)
}

/** Offsets change at whole quarters of an hour. */
const QUARTER_MS = 15 * MINUTE_MS

/** The offset of a zone in milliseconds, east of UTC positive. */
const offsetsOf = (zone: string, at: string): ((ms: number) => number) => {
  let format: Intl.DateTimeFormat
  try {
    format = new Intl.DateTimeFormat('en-US', {
      timeZone: zone,
      hourCycle: 'h23',
      ...{ year: 'numeric', month: 'numeric', day: 'numeric', hour: 'numeric', minute: 'numeric' },
    })
  } catch {
    throw badQuery(at, `has the unknown zone ${quoted(zone)}. Zones are such as Europe/Berlin, or UTC`)
  }
  return remembered(ms => {
    const quarter = ms - modulo(ms, QUARTER_MS)
    const parts = Object.fromEntries(format.formatToParts(quarter).map(({ type, value }) => [type, Number(value)]))
    return Date.UTC(parts.year!, parts.month! - 1, parts.day!, parts.hour!, parts.minute!) - quarter
  })
}

/** The first time to look at the offsets of a zone: no row is older. */
const FIRST_MS = parseIso('2015-01-01')!
const MONTH_MS = 30 * UNITS_MS.day

/** The longest span of which the offsets of a zone are multiples: an hour, or less. */
const stepOf = (offsetAt: (ms: number) => number): number => {
  for (let ms = FIRST_MS; ms < FIRST_MS + 300 * MONTH_MS; ms += MONTH_MS) {
    if (modulo(offsetAt(ms), UNITS_MS.hour) !== 0) return QUARTER_MS
  }
  return UNITS_MS.hour
}

const MOST_REMEMBERED = 100_000

const remembered = <Value>(compute: (ms: number) => Value): ((ms: number) => Value) => {
  const known = new Map<number, Value>()
  return ms => {
    const found = known.get(ms)
    if (found !== undefined) return found
    const value = compute(ms)
    if (known.size >= MOST_REMEMBERED) known.clear()
    known.set(ms, value)
    return value
  }
}
