import { parseIso } from '../shared/time.ts'

// The forms in which people write times. Without a zone they are this machine's, as everything that it prints for
// people.

const UNITS_MS: Readonly<Record<string, number>> = {
  s: 1000,
  m: 60_000,
  min: 60_000,
  h: 3_600_000,
  d: 86_400_000,
  w: 604_800_000,
}

/** Milliseconds of `90s`, `1h30m`, `2 h 5 min`, `1w`; undefined for any other text. */
export const parseDuration = (text: string): number | undefined => {
  const parts = [...text.matchAll(/(\d+(?:\.\d+)?)\s*(min|[smhdw])\s*/gy)]
  if (parts.length === 0 || parts.map(([part]) => part).join('') !== text) return undefined
  return parts.reduce((sum, [, number, unit]) => sum + Number(number) * UNITS_MS[unit!]!, 0)
}

/** A time with its distance beside it: `2026-11-21 02:40:01 UTC (3 d ago)`, `2026-11-21T02:40:01Z  3 d ago`. */
const TOLD_TWICE = /^(\d.*?)(?: \((?:now|in [^()]+|[^()]+ ago)\)|\s{2,}(?:now|in .+|.+ ago))$/

/**
 * Epoch milliseconds of a time: ISO 8601, `2026-11`, `2026-11-21`, `2026-11-21 10:00`, what tables, timelines and `why`
 * print, `10:00` (the last time it was that late), `today`, `yesterday`, `yesterday 10:00`, `now`, or how long ago,
 * with or without `ago`. A day is its beginning. Of a local time that there was twice, as clocks were put back, it is
 * the first; of one that there was not, it is as if they had not been put forward. Undefined for any other text.
 */
export const parseTime = (given: string, nowMs: number): number | undefined => {
  const whole = given.trim()
  const text = TOLD_TWICE.exec(whole)?.[1] ?? whole
  if (text.includes('T') || text.includes('t')) {
    const iso = parseIso(text)
    if (iso !== undefined) return iso
  }
  if (text === 'now') return nowMs
  const ahead = /^in (.+)$/.exec(text)?.[1]
  if (ahead !== undefined) return added(nowMs, parseDuration(ahead), 1)
  const ago = added(nowMs, parseDuration(text.replace(/ ago$/, '')), -1)
  return ago ?? parseCalendar(text, nowMs)
}

const added = (nowMs: number, ms: number | undefined, sign: 1 | -1): number | undefined =>
  ms === undefined ? undefined : nowMs + sign * ms

const DAY = /(?<day>\d{4}-\d{2}(?:-\d{2})?|today|yesterday)/.source
const LATE = /(?:[ T](?<late>\d{1,2}:\d{2}(?::\d{2}(?:\.\d{1,3})?)?))?/.source
const ALONE = /(?<alone>\d{1,2}:\d{2}(?::\d{2})?)/.source
const ZONE = /(?:\s*(?<zone>Z|UTC(?:[+-]\d{2}:\d{2})?|[+-]\d{2}:\d{2}))?/.source
const CALENDAR = new RegExp(`^(?:${DAY}${LATE}|${ALONE})${ZONE}$`)

const DAY_MS = 86_400_000
const MONTH_LENGTH = '2026-11'.length

const parseCalendar = (text: string, nowMs: number): number | undefined => {
  const { day, late, alone, zone } = CALENDAR.exec(text)?.groups ?? {}
  if (day === undefined && alone === undefined) return undefined
  const at = (date: string): number | undefined => momentOf(date, late ?? alone ?? '0:00', zone)
  if (day !== undefined && !/^t|^y/.test(day)) {
    const date = day.length === MONTH_LENGTH ? `${day}-01` : day
    return parseIso(date) === undefined ? undefined : at(date)
  }
  const today = at(dateIn(nowMs, zone))
  const before = at(dateIn(nowMs, zone, -1))
  if (day === 'today') return today
  if (day === 'yesterday') return before
  return today !== undefined && today > nowMs ? before : today
}

/** The date of a time in a zone, some days later. */
const dateIn = (ms: number, zone: string | undefined, days = 0): string => {
  if (zone !== undefined) return new Date(ms + offsetOf(zone) * 60_000 + days * DAY_MS).toISOString().slice(0, 10)
  const local = new Date(ms)
  // The local day as if it were one of UTC: days of summer time have other lengths.
  return new Date(Date.UTC(local.getFullYear(), local.getMonth(), local.getDate() + days)).toISOString().slice(0, 10)
}

const momentOf = (date: string, clock: string, zone: string | undefined): number | undefined => {
  const [hours, minutes, seconds = 0] = clock.split(':').map(Number) as [number, number, number?]
  if (hours > 23 || minutes > 59 || seconds >= 60) return undefined
  const [year, month, day] = date.split('-').map(Number) as [number, number, number]
  const parts = [year, month - 1, day, hours, minutes, Math.floor(seconds), Math.round((seconds % 1) * 1000)] as const
  return zone === undefined ? new Date(...parts).getTime() : Date.UTC(...parts) - offsetOf(zone) * 60_000
}

/** Minutes east of UTC. */
const offsetOf = (zone: string): number => {
  const [, sign, hours, minutes] = /([+-])(\d{2}):(\d{2})$/.exec(zone) ?? []
  return sign === undefined ? 0 : (sign === '-' ? -1 : 1) * (Number(hours) * 60 + Number(minutes))
}
