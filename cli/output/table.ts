import { stripVTControlCharacters } from 'node:util'

export interface Column {
  title: string
  align?: 'left' | 'right'
  /** The end at which the column may be cut to fit the terminal; a `url` loses its scheme first, then its middle. */
  shrinks?: 'start' | 'end' | 'url'
  /** An id, which may be shortened to its end. */
  isId?: true
  /** May be left out if the table is still too wide; of several such columns the last goes first. */
  optional?: true
}

const GAP = '  '
/** The least width of a shrinking column, or its content's width if that is less. */
const SHRUNK_WIDTH = 12
/** The least width of URLs, whose hosts and paths need more. */
const SHRUNK_URL_WIDTH = 14
/** On a narrower terminal each row is a block of lines. */
const LEAST_WIDTH = 64
/** The length of a shortened id; commands accept it if no other id has the same end. */
const ID_END = 8

/**
 * Renders rows as aligned columns under titles, or as a block of lines for each row on a narrow terminal. Cells may
 * contain colour codes, but no other control characters. If `width` (terminal columns) is given, the table is made to
 * fit: ids are cut to their ends, optional columns are left out, empty ones first, then shrinking columns are cut with
 * `…`, URLs last.
 */
export const renderTable = (
  columns: Column[],
  whole: string[][],
  { width, title = (text: string) => text }: TableOptions = {},
): string => {
  if (width !== undefined && width < LEAST_WIDTH) return renderBlocks(columns, whole, width, title)
  const rows = fits(columns, whole, width) ? whole : whole.map(row => withIdEnds(columns, row))
  const natural = columns.map((column, index) =>
    Math.max(displayWidth(column.title), ...rows.map(row => displayWidth(row[index] ?? ''))),
  )
  const isEmpty = (index: number) => rows.every(row => (row[index] ?? '–') === '–')
  const { shown, widths } = fit(columns, natural, isEmpty, width)
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

/** Each row as titles and values below one another, readable at any width. */
const renderBlocks = (columns: Column[], rows: string[][], width: number, title: (text: string) => string): string => {
  const names = Math.max(...columns.map(column => displayWidth(column.title)))
  const room = Math.max(SHRUNK_WIDTH, width - names - GAP.length)
  const block = (row: string[]): string =>
    columns
      .map((column, index) => {
        const cell = row[index] ?? ''
        const fitted = column.isId && displayWidth(cell) > room ? cell.slice(-ID_END) : cut(cell, room, column.shrinks)
        return `${title(column.title)}${' '.repeat(names - displayWidth(column.title))}${GAP}${fitted}`.trimEnd()
      })
      .map(line => `${line}\n`)
      .join('')
  return rows.map(block).join('\n')
}

const fits = (columns: Column[], rows: string[][], width = Number.POSITIVE_INFINITY): boolean =>
  columns.reduce(
    (sum, column, index) =>
      sum + Math.max(displayWidth(column.title), ...rows.map(row => displayWidth(row[index] ?? ''))) + GAP.length,
    -GAP.length,
  ) <= width

const withIdEnds = (columns: Column[], row: string[]): string[] =>
  row.map((cell, index) => (columns[index]!.isId ? cell.slice(-ID_END) : cell))

interface TableOptions {
  width?: number | undefined
  title?: (text: string) => string
}

/** The shown columns, by index, and their widths. */
const fit = (
  columns: Column[],
  natural: number[],
  isEmpty: (index: number) => boolean,
  available = Number.POSITIVE_INFINITY,
) => {
  const shown = columns.map((_, index) => index)
  const least = (index: number): number => {
    const { shrinks } = columns[index]!
    return shrinks ? Math.min(natural[index]!, shrinks === 'url' ? SHRUNK_URL_WIDTH : SHRUNK_WIDTH) : natural[index]!
  }
  const total = (width: (index: number) => number) =>
    shown.reduce((sum, index) => sum + width(index), GAP.length * (shown.length - 1))
  while (total(least) > available) {
    const optional = shown.filter(index => columns[index]!.optional)
    const last = optional.findLast(isEmpty) ?? optional.at(-1)
    if (last === undefined) break
    shown.splice(shown.indexOf(last), 1)
  }
  const widths = [...natural]
  while (total(index => widths[index]!) > available) {
    const isUrl = (index: number) => Number(columns[index]!.shrinks === 'url')
    const [widest] = shown
      .filter(index => widths[index]! > least(index))
      .sort((a, b) => isUrl(a) - isUrl(b) || widths[b]! - widths[a]!)
    if (widest === undefined) break
    widths[widest]! -= 1
  }
  return { shown, widths }
}

/**
 * Cuts text to a number of terminal columns. A coloured cell loses its colours, because a cut colour code would
 * continue.
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
/** Created at first use: it costs a millisecond that most tables do not need. */
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

/** The width of text in terminal columns, without colour codes. */
export const displayWidth = (text: string): number => {
  const visible = stripVTControlCharacters(text)
  if (PLAIN.test(visible)) return visible.length
  let width = 0
  for (const { segment } of graphemes(visible)) width += graphemeWidth(segment)
  return width
}
