import { parseIso } from '../../shared/time.ts'
import type { Colours } from '../output/output.ts'
import { columnsOf } from '../output/output.ts'
import { count, dateAndTime, duration } from '../output/time.ts'
import type { Span, Statistics, Unit } from './statistics.ts'

/** How much of `2026-11-21 02:40:01` names a span. */
const LENGTHS: Record<Unit, number> = { minute: 16, hour: 16, day: 10, month: 7 }
const WIDEST_BAR = 50
const BESIDE_BAR = 62

/** A line for each span: a bar of its deliveries, the failed part last, and the numbers. */
export const describeStatistics = (statistics: Statistics, colours: Colours): string => {
  const { spans, unit, zone, deliveries, failed } = statistics
  const most = Math.max(1, ...spans.map(span => span.deliveries))
  const room = Math.max(10, Math.min(WIDEST_BAR, (columnsOf(process.stdout) ?? 112) - BESIDE_BAR))
  const widest = most.toLocaleString('en-GB').length
  const line = (span: Span): string => {
    const time = dateAndTime(parseIso(span.id)!).slice(0, LENGTHS[unit])
    const number = span.deliveries.toLocaleString('en-GB').padStart(widest)
    const failures = span.failed > 0 ? colours.red(`${span.failed.toLocaleString('en-GB')} failed`) : ''
    const times = inWords(span)
    const beside = [failures, times].filter(text => text !== '').join('  ')
    return `${colours.dim(time)}  ${bar(span, most, room, colours)} ${number}  ${beside}`
  }
  const head =
    `${count(deliveries, 'delivery', 'deliveries')}, ${failed.toLocaleString('en-GB')} failed` +
    `${inWords(statistics) && `, ${inWords(statistics)}`}  ${colours.dim(`by ${unit}, ${zone}`)}`
  return `${head}\n\n${spans
    .map(line)
    .map(text => text.trimEnd())
    .join('\n')}\n`
}

const inWords = ({ p50Ms, p95Ms }: Pick<Span, 'p50Ms' | 'p95Ms'>): string =>
  p50Ms === null || p95Ms === null ? '' : `p50 ${duration(p50Ms)}  p95 ${duration(p95Ms)}`

/** `█` for what did not fail, `▒` for what did: distinct without colour too. */
const bar = ({ deliveries, failed }: Span, most: number, room: number, colours: Colours): string => {
  const length = deliveries === 0 ? 0 : Math.max(1, Math.round((deliveries / most) * room))
  const red = failed === 0 ? 0 : Math.max(1, Math.round((failed / deliveries) * length))
  const rest = Math.max(0, length - red)
  const empty = ' '.repeat(Math.max(0, room - rest - red))
  return `${colours.green('█'.repeat(rest))}${colours.red('▒'.repeat(red))}${empty}`
}
