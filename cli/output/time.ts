import { parseIso } from '../../shared/time.ts'
import { neutralise } from './neutralise.ts'

const UNITS = [
  { unit: 'd', ms: 86_400_000 },
  { unit: 'h', ms: 3_600_000 },
  { unit: 'min', ms: 60_000 },
  { unit: 's', ms: 1000 },
] as const

/** How far a time is from `now` in its largest unit, such as `3 min ago` or `in 20 s`. Both in epoch milliseconds. */
export const relativeTime = (atMs: number, nowMs: number): string => {
  const distance = Math.abs(atMs - nowMs)
  const found = UNITS.find(({ ms }) => distance >= ms)
  if (!found) return 'now'
  const text = `${Math.floor(distance / found.ms)} ${found.unit}`
  return atMs > nowMs ? `in ${text}` : `${text} ago`
}

/** A duration in milliseconds for people: `12 ms`, `3.4 s`, `5 min 20 s`, `2 h 5 min`. */
export const duration = (ms: number): string => {
  if (ms < 1000) return `${Math.round(ms)} ms`
  if (ms < 60_000) return `${Number((ms / 1000).toFixed(1))} s`
  const [large, small, units] =
    ms < 3_600_000
      ? ([Math.floor(ms / 60_000), Math.floor((ms % 60_000) / 1000), ['min', 's']] as const)
      : ([Math.floor(ms / 3_600_000), Math.floor((ms % 3_600_000) / 60_000), ['h', 'min']] as const)
  return small === 0 ? `${large} ${units[0]}` : `${large} ${units[0]} ${small} ${units[1]}`
}

/** `1 delivery`, `2 deliveries`. */
export const count = (number: number, singular: string, plural = `${singular}s`): string =>
  `${number.toLocaleString('en-GB')} ${number === 1 ? singular : plural}`

/** An ISO time relative to now; `–` for null, and the neutralised text if it is not a time. */
export const relativeIso = (iso: string | null | undefined, nowMs: number): string => {
  if (!iso) return '–'
  const at = parseIso(iso)
  return at === undefined ? neutralise(iso) : relativeTime(at, nowMs)
}

/** The UTC offset of this machine at a time (epoch milliseconds), in minutes; positive to the east. */
export const zoneAt = (ms: number): number => -new Date(ms).getTimezoneOffset()

/** `UTC`, `UTC+02:00`. People see their local time with this name; data has UTC with its offset. */
export const zoneName = (offsetMinutes: number): string => {
  if (offsetMinutes === 0) return 'UTC'
  const minutes = Math.abs(offsetMinutes)
  const two = (number: number) => String(number).padStart(2, '0')
  return `UTC${offsetMinutes < 0 ? '-' : '+'}${two(Math.floor(minutes / 60))}:${two(minutes % 60)}`
}

/** `2026-11-21 02:40:01` in a zone, by default this machine's. Takes epoch milliseconds. */
export const dateAndTime = (ms: number, offsetMinutes = zoneAt(ms)): string =>
  new Date(ms + offsetMinutes * 60_000).toISOString().slice(0, 19).replace('T', ' ')

/** `02:40:01` in a zone, by default this machine's. Takes epoch milliseconds. */
export const timeOfDay = (ms: number, offsetMinutes = zoneAt(ms)): string => dateAndTime(ms, offsetMinutes).slice(11)
