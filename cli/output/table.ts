import { stripVTControlCharacters } from 'node:util'

export interface Column {
  title: string
  align?: 'left' | 'right'
  /**
   * May be cut at this end to make the table fit the terminal's width; a `url` loses its scheme first, then its middle.
   */
  shrinks?: 'start' | 'end' | 'url'
  /** Left out where the table would be too wide even so; of several such columns the last one goes first. */
  optional?: true
}

const GAP = '  '
/** A shrinking column keeps at least this many columns of the terminal, or its content's width if that is less. */
const SHRUNK_WIDTH = 12

/**
 * Rows as aligned columns under their titles. Cells may carry colour codes, and must otherwise be free of control
 * characters. Where `width` (terminal columns) is given, the table is made to fit: optional columns are left out, then
 * those that may shrink are cut with `…`, the widest first. Ids and the like are never cut.
 */
export const renderTable = (
  columns: Column[],
  rows: string[][],
  { width, title = (text: string) => text }: TableOptions = {},
): string => {
  const natural = columns.map((column, index) =>
    Math.max(displayWidth(column.title), ...rows.map(row => displayWidth(row[index] ?? ''))),
  )
  const { shown, widths } = fit(columns, natural, width)
  const line = (cells: string[], style: (text: string) => string): string =>
    shown
      .map(index => {
        const { align, shrinks } = columns[index]!
        const fitted = cut(cells[index] ?? '', widths[index]!, shrinks)
        const padding = ' '.repeat(widths[index]! - displayWidth(fitted))
        return align === 'right' ? padding + style(fitted) : style(fitted) + padding
      })
      .join(GAP)
      .trimEnd()
  const titles = columns.map(column => column.title)
  return [line(titles, title), ...rows.map(row => line(row, text => text))].map(text => `${text}\n`).join('')
}

interface TableOptions {
  width?: number | undefined
  title?: (text: string) => string
}

/** Which columns are shown, by index, and how wide each is. */
const fit = (columns: Column[], natural: number[], available = Number.POSITIVE_INFINITY) => {
  const shown = columns.map((_, index) => index)
  const least = (index: number) => (columns[index]!.shrinks ? Math.min(natural[index]!, SHRUNK_WIDTH) : natural[index]!)
  const total = (width: (index: number) => number) =>
    shown.reduce((sum, index) => sum + width(index), GAP.length * (shown.length - 1))
  while (total(least) > available) {
    const last = shown.findLast(index => columns[index]!.optional)
    if (last === undefined) break
    shown.splice(shown.indexOf(last), 1)
  }
  const widths = [...natural]
  while (total(index => widths[index]!) > available) {
    const [widest] = shown.filter(index => widths[index]! > least(index)).sort((a, b) => widths[b]! - widths[a]!)
    if (widest === undefined) break
    widths[widest]! -= 1
  }
  return { shown, widths }
}

/**
 * Cuts text to so many terminal columns; a coloured cell is cut without its colours, since a cut colour code would run
 * on.
 */
export const cut = (cell: string, width: number, end: 'start' | 'end' | 'url' = 'end'): string => {
  if (displayWidth(cell) <= width) return cell
  if (end === 'url') {
    const bare = cell.replace(/^https?:\/\//, '')
    if (displayWidth(bare) <= width) return bare
    // Hosts differ at their beginning, paths at their end.
    const head = Math.floor((width - 1) / 2)
    return cut(bare, head + 1) + cut(bare, width - head, 'start').slice(1)
  }
  const parts = Array.from(graphemes(stripVTControlCharacters(cell)), ({ segment }) => segment)
  const kept: string[] = []
  for (let used = 0; parts.length > 0; ) {
    const next = end === 'end' ? parts.shift()! : parts.pop()!
    used += graphemeWidth(next)
    if (used > width - 1) break
    if (end === 'end') kept.push(next)
    else kept.unshift(next)
  }
  return end === 'end' ? `${kept.join('')}…` : `…${kept.join('')}`
}

let segmenter: Intl.Segmenter | undefined
/** Made when first needed: it costs a millisecond that most tables have no use for. */
const graphemes = (text: string) => {
  segmenter ??= new Intl.Segmenter('en', { granularity: 'grapheme' })
  return segmenter.segment(text)
}
// Plain ASCII, by far the most common, needs no segmentation.
const PLAIN = /^[\x20-\x7e]*$/
const WIDE =
  /^[\p{Emoji_Presentation}\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{20000}-\u{3fffd}]/u
const ZERO = /^[\p{Mn}\p{Me}\p{Cf}]+$/u

const graphemeWidth = (grapheme: string): number => (ZERO.test(grapheme) ? 0 : WIDE.test(grapheme) ? 2 : 1)

/** Terminal columns that text takes, colour codes not counted. */
export const displayWidth = (text: string): number => {
  const visible = stripVTControlCharacters(text)
  if (PLAIN.test(visible)) return visible.length
  let width = 0
  for (const { segment } of graphemes(visible)) width += graphemeWidth(segment)
  return width
}
