import { stripVTControlCharacters } from 'node:util'

export interface Column {
  title: string
  align?: 'left' | 'right'
  /** May be cut to make the table fit the terminal's width. */
  shrinks?: boolean
}

const GAP = '  '
/** A shrinking column keeps at least this many columns, or its content's width if that is less. */
const SHRUNK_WIDTH = 12

/**
 * Rows as aligned columns under their titles. Cells may carry colour codes, and must otherwise be free of control
 * characters. Where `width` (terminal columns) is given, the columns that may shrink are cut with `…` until the table
 * fits, the widest first; ids and the like are never cut.
 */
export const renderTable = (
  columns: Column[],
  rows: string[][],
  { width, title = (text: string) => text }: TableOptions = {},
): string => {
  const titles = columns.map(column => column.title)
  const widths = columns.map((column, index) =>
    Math.max(displayWidth(column.title), ...rows.map(row => displayWidth(row[index] ?? ''))),
  )
  if (width !== undefined) shrink(columns, widths, width)
  const line = (cells: string[], style: (text: string) => string): string =>
    cells
      .map((cell, index) => {
        const fitted = cut(cell, widths[index]!)
        const padding = ' '.repeat(widths[index]! - displayWidth(fitted))
        return columns[index]!.align === 'right' ? padding + style(fitted) : style(fitted) + padding
      })
      .join(GAP)
      .trimEnd()
  return [line(titles, title), ...rows.map(row => line(row, text => text))].map(text => `${text}\n`).join('')
}

interface TableOptions {
  width?: number | undefined
  title?: (text: string) => string
}

const shrink = (columns: Column[], widths: number[], available: number): void => {
  const excess = () => widths.reduce((sum, each) => sum + each, GAP.length * (columns.length - 1)) - available
  while (excess() > 0) {
    const widest = columns
      .map((column, index) => ({ index, width: widths[index]!, shrinks: column.shrinks === true }))
      .filter(column => column.shrinks && column.width > SHRUNK_WIDTH)
      .sort((a, b) => b.width - a.width)[0]
    if (!widest) return
    widths[widest.index] = Math.max(SHRUNK_WIDTH, widest.width - 1)
  }
}

/** Cuts plain text; a coloured cell is cut without its colours, since a cut colour code would run on. */
const cut = (cell: string, width: number): string => {
  if (displayWidth(cell) <= width) return cell
  let text = ''
  let used = 0
  for (const { segment } of graphemes(stripVTControlCharacters(cell))) {
    const next = graphemeWidth(segment)
    if (used + next > width - 1) break
    text += segment
    used += next
  }
  return `${text}…`
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
