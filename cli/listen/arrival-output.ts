import { toIso } from '../../shared/time.ts'
import { safeJson } from '../output/neutralise.ts'
import { type Colours, cellText, columnsOf, type Output } from '../output/output.ts'
import { cut, displayWidth } from '../output/table.ts'
import { duration, timeOfDay } from '../output/time.ts'
import { fold } from '../output/wrap.ts'
import type { Arrival } from './receiver.ts'

/** One line for people, one JSON object for programs in both JSON forms, because a stream has no end. */
export const printArrival = (output: Output, arrival: Arrival, full: boolean): void => {
  if (output.form === 'table')
    output.data(`${describe(arrival, output.colours)}${full ? describeFully(arrival, output.colours) : ''}\n`)
  else if (output.form === 'id') output.data(`${cellText(arrival.eventId)}\n`)
  else output.data(`${safeJson(asData(arrival, full))}\n`)
}

/** One line, cut to the terminal: the id is never cut, and event types keep their ends. */
const describe = (
  { verification, receivedAtMs, eventType, eventId, answered, reason, durationMs, method, path }: Arrival,
  colours: Colours,
): string => {
  const mark = verification?.ok === true ? colours.green('✓') : colours.red('✗')
  const fine = typeof answered === 'number' && answered < 300
  const result = answered === 'reset' ? 'broken off  ' : answered === 'hang' ? 'left waiting' : `answered ${answered}`
  const begin = `${colours.dim(timeOfDay(receivedAtMs))}  ${mark} ${(fine ? colours.green : colours.yellow)(result)}`
  const named = eventId === undefined ? begin : `${begin}  ${cellText(eventId)}`
  const took = `  after ${duration(durationMs)}`
  const room = (columnsOf(process.stdout) ?? Number.POSITIVE_INFINITY) - displayWidth(named) - 2
  const type = cut(cellText(eventType ?? `${method} ${path}`), Math.max(room, 10), 'start')
  const line = `${named}  ${type}${displayWidth(type + took) <= room ? colours.dim(took) : ''}`
  return reason === undefined
    ? line
    : `${line}\n${fold(`            ${cellText(reason)}`, columnsOf(process.stdout))
        .split('\n')
        .map(colours.red)
        .join('\n')}`
}

/** A delivery in full: its body and its checks. */
export const describeFully = ({ body, verification }: Arrival, colours: Colours): string => {
  const checks = verification?.checks.map(check => `${check.name} ${check.status}`).join(', ') ?? 'none made'
  return `\n${prettyBody(body)}\n${colours.dim(fold(`checks: ${checks}`, columnsOf(process.stdout)))}\n`
}

const prettyBody = (body: string): string => {
  try {
    return safeJson(JSON.parse(body), 2)
  } catch {
    return cellText(body)
  }
}

const asData = (arrival: Arrival, full: boolean): object => {
  const { receivedAtMs, eventId, eventType, verification, answered, reason, durationMs, method, path } = arrival
  const summary = {
    receivedAt: toIso(receivedAtMs),
    method,
    path,
    eventId,
    eventType,
    verified: verification?.ok ?? false,
    answered,
    reason: reason ?? null,
    durationMs,
  }
  return full ? { ...summary, body: arrival.body, checks: verification?.checks ?? [] } : summary
}
