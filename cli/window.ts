import { Option } from '@commander-js/extra-typings'
import { parseIso } from '../shared/time.ts'
import { usageError } from './errors.ts'
import { pastTime } from './options.ts'
import type { Output } from './output/output.ts'
import { dateAndTime, zoneAt, zoneName } from './output/time.ts'

// The options --since and --until, with one meaning in every command.

/** Examples of the forms of a time, for the help of an option. */
export const TIME_FORMS = '2h, 1h30m, 10:00, yesterday, 2026-11-21'

/** `--since`. @param only what it restricts: `only those created` */
export const sinceOption = (only: string): Option<'--since <time>'> =>
  new Option('--since <time>', `${only} since a time or so long ago: ${TIME_FORMS}, ISO 8601`)

/** `--until`. */
export const untilOption = (only: string): Option<'--until <time>'> =>
  new Option('--until <time>', `${only} until then, in the same forms`)

/** The span of the two options as ISO times. */
export interface Window {
  since?: string | undefined
  until?: string | undefined
}

/** Reads both options. Tells a person the times that were meant. Throws a CliError, exit code 2. */
export const windowOf = (output: Output, { since, until }: Window): Window => {
  const read = {
    ...(since !== undefined && { since: pastTime(since, '--since', output.nowMs) }),
    ...(until !== undefined && { until: pastTime(until, '--until', output.nowMs) }),
  }
  if (read.since !== undefined && read.until !== undefined && read.since > read.until) {
    throw usageError(`--since ${since} is later than --until ${until}.`, 'Give the earlier time as --since.')
  }
  if (output.forPeople && (since ?? until) !== undefined) output.message(`${inWords(read)}.`)
  return read
}

/** Conditions on a field of time. */
export const conditionsOf = ({ since, until }: Window, field: string): Record<string, unknown>[] => [
  ...(since === undefined ? [] : [{ [field]: { $gte: since } }]),
  ...(until === undefined ? [] : [{ [field]: { $lte: until } }]),
]

/** `Since 2026-11-21 10:00:00 UTC+01:00, until 2026-11-21 11:00:00 UTC+01:00`. */
const inWords = ({ since, until }: Window): string => {
  const shown = (iso: string): string => {
    const ms = parseIso(iso)!
    const zone = zoneAt(ms)
    return `${dateAndTime(ms, zone)} ${zoneName(zone)}`
  }
  const parts = [
    ...(since === undefined ? [] : [`since ${shown(since)}`]),
    ...(until === undefined ? [] : [`until ${shown(until)}`]),
  ]
  const text = parts.join(', ')
  return `${text[0]!.toUpperCase()}${text.slice(1)}`
}
