import { displayWidth } from './table.ts'

/** Lines of at most so many terminal columns, broken between words; a word that is longer stays whole, to be copied. */
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
 * A text's lines broken between words where they are wider than the terminal, and indented as far as what they go on
 * with: behind a name and the gap after it, or as the line itself. A line that fits, or has a word that never does,
 * stays as it is.
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

/** A name and the gap after it, colour codes among them. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: it is what colour codes begin with
const LEAD = /^(?: *\S+(?: \S+)*? {2,}(?:\u001b\[\d+m *)*| +)/

/** Terminal columns that are left for text behind an indent of so many; a hundred where there is no terminal. */
export const roomFor = (indent: number): number =>
  Math.max(30, (process.stdout.isTTY ? process.stdout.columns : 100) - indent)
