import { displayWidth } from './table.ts'

/**
 * Lines of at most a number of terminal columns, broken between words; a longer word stays whole, so that it can be
 * copied.
 */
export const wrap = (text: string, width: number): string[] => {
  const lines: string[] = []
  for (const word of text.split(/ +/)) {
    const last = lines.at(-1)
    if (last !== undefined && displayWidth(last) + 1 + displayWidth(word) <= width)
      lines[lines.length - 1] = `${last} ${word}`
    else lines.push(word)
  }
  return lines
}

/**
 * Breaks lines that are wider than the terminal between words. Continuation lines are indented like the line, or to the
 * text after a name and its gap. A line that fits, or has a word that never fits, stays as it is.
 */
export const fold = (text: string, columns: number | undefined): string =>
  columns === undefined
    ? text
    : text
        .split('\n')
        .map(line => foldLine(line, columns))
        .join('\n')

const foldLine = (line: string, columns: number): string => {
  if (displayWidth(line) <= columns) return line
  const [lead = ''] = LEAD.exec(line) ?? []
  const indent = displayWidth(lead) <= columns / 2 ? displayWidth(lead) : 0
  const lines = wrap(line.slice(lead.length), columns - indent)
  if (lines.some(part => displayWidth(part) > columns - indent)) return line
  return lead + lines.join(`\n${' '.repeat(indent)}`)
}

/** A name and the gap after it, with colour codes. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: it is what colour codes begin with
const LEAD = /^(?: *\S+(?: \S+)*? {2,}(?:\u001b\[\d+m *)*| +)/

/** The terminal columns left for text after an indent; a hundred without a terminal. */
export const roomFor = (indent: number): number =>
  Math.max(30, (process.stdout.isTTY ? process.stdout.columns : 100) - indent)
