import { parseIso } from '../../shared/time.ts'
import { type Colours, cellText } from '../output/output.ts'
import { asStarted } from '../output/program.ts'
import { dateAndTime, relativeTime, zoneAt, zoneName } from '../output/time.ts'

export interface Reason {
  code: string
  message: string
  at: string | null
}

/** A time with its zone and its distance from now. */
export const moment = (iso: string, nowMs: number): string => {
  const ms = parseIso(iso)
  if (ms === undefined) return cellText(iso)
  const zone = zoneAt(ms)
  return `${dateAndTime(ms, zone)} ${zoneName(zone)} (${relativeTime(ms, nowMs)})`
}

export const reasonLines = (reasons: Reason[], nowMs: number, colours: Colours): string[] =>
  reasons.map(({ message, at }) => {
    const time = at === null ? '' : `  ${colours.dim(moment(at, nowMs))}`
    return `${colours.dim('–')} ${asStarted(cellText(message))}${time}`
  })

/** The verdict, its causes, the evidence, and the next command. */
export const verdictLine = (
  verdict: string,
  causes: string[],
  evidence: string[],
  next: string | null,
  colours: Colours,
): string => {
  const lines = evidence.map(line => colours.dim(asStarted(line)))
  const command = next === null ? 'Next: nothing; no command is needed.' : `Next: ${asStarted(cellText(next))}`
  return `${[colours.bold(verdict), ...causes, ...lines, '', command].join('\n')}\n`
}
