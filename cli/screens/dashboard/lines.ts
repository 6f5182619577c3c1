import pc from 'picocolors'
import type { Colours } from '../../output/output.ts'
import { cut, displayWidth } from '../../output/table.ts'

/** One value of a row, at most `width` columns of the terminal wide. `text` must be free of control characters. */
export interface Cell {
  text: string
  width: number
  align?: 'left' | 'right'
  /** The end at which it is cut. */
  shrinks?: 'start' | 'middle' | 'end'
  colour?: ((text: string) => string) | undefined
}

export const GAP = '  '

/** Joins cells of fixed width, so that a change does not move its neighbours. */
export const rowOf = (cells: Cell[]): string =>
  cells
    .map(({ text, width, align, shrinks, colour = (plain: string) => plain }) => {
      const fitted = shrinks === 'middle' ? cutMiddle(text, width) : cut(text, width, shrinks)
      const padding = ' '.repeat(Math.max(0, width - displayWidth(fitted)))
      return align === 'right' ? padding + colour(fitted) : colour(fitted) + padding
    })
    .join(GAP)

/** Cuts the middle, for texts such as URLs that differ at both ends. */
export const cutMiddle = (text: string, width: number): string => {
  if (displayWidth(text) <= width) return text
  const beginning = cut(text, Math.ceil(width / 2))
  return beginning + cut(text, width - displayWidth(beginning) + 1, 'start').slice(1)
}

/** A URL without its scheme. */
export const withoutScheme = (url: string): string => url.replace(/^https?:\/\//, '')

/** Text at both ends of a line of `width` columns; the left one is cut if necessary. */
export const bothEnds = (left: string, right: string, width: number): string => {
  const fitted = cut(left, Math.max(0, width - displayWidth(right) - 1))
  return fitted + ' '.repeat(Math.max(1, width - displayWidth(fitted) - displayWidth(right))) + right
}

/** A pane's title with a line over the pane's width, bold if the pane has the keyboard. */
export const rule = (title: string, note: string, width: number, focused: boolean): string => {
  const line = focused ? '━' : '─'
  const right = note === '' ? '' : ` ${note} ${line}`
  const left = cut(`${line} ${title} `, Math.max(0, width - displayWidth(right)))
  return left + line.repeat(Math.max(0, width - displayWidth(left) - displayWidth(right))) + right
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: colour codes begin with one
const COLOUR_CODE = /(\x1b\[[0-9;]*m)/
// biome-ignore lint/suspicious/noControlCharactersInRegex: colour codes begin with one
const SPACES_AT_END = / +((?:\x1b\[[0-9;]*m)*)$/
const CLOSING = /\[(0|22|39)?m$/

/**
 * Wraps a line with colours between words, indented by `indent`. An open colour is closed before a break and opened
 * again after it.
 */
export const wrapLine = (line: string, width: number, indent = 0): string[] => {
  const lines: string[] = []
  const room = Math.max(8, width)
  const hanging = ' '.repeat(indent < room / 2 ? indent : 0)
  let text = ''
  let used = 0
  let open = ''
  const breakLine = () => {
    lines.push(text.replace(SPACES_AT_END, '$1') + (open === '' ? '' : '\x1b[22;39m'))
    text = hanging + open
    used = hanging.length
  }
  for (const part of line.split(COLOUR_CODE)) {
    if (COLOUR_CODE.test(part)) {
      open = CLOSING.test(part) ? '' : open + part
      text += part
      continue
    }
    for (const word of part.split(/(?<= )(?! )/)) {
      let left = word
      if (used > hanging.length && used + displayWidth(word.trimEnd()) > room) breakLine()
      while (displayWidth(left.trimEnd()) > room - used) {
        const fits = cut(left, room - used + 1).slice(0, -1) || left.slice(0, 1)
        text += fits
        left = left.slice(fits.length)
        breakLine()
      }
      text += left
      used += displayWidth(left)
    }
  }
  lines.push(text)
  return lines
}

/** A row of a list. The selected one has a mark and, if its pane has the keyboard, is inverse. */
export const selectable = (
  draw: (colours: Colours) => string,
  { selected, focused, colours }: { selected: boolean; focused: boolean; colours: Colours },
): string => {
  if (!selected) return `  ${draw(colours)}`
  // Colours inside an inverse row would become backgrounds.
  const line = `> ${draw(pc.createColors(false))}`
  return focused ? colours.inverse(line) : colours.bold(line)
}

/** Pads or cuts to an exact number of lines. */
export const filledUp = (lines: string[], height: number): string[] =>
  lines.length >= height ? lines.slice(0, height) : [...lines, ...Array<string>(height - lines.length).fill('')]
