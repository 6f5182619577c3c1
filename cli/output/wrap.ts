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
  const rest = line.slice(lead.length)
  const indented = (indent: number): string | undefined => {
    const lines = wrap(rest, columns - indent)
    const isWide = lines.some(part => displayWidth(part) > columns - indent)
    return isWide ? undefined : lines.join(`\n${' '.repeat(indent)}`)
  }
  const beside = displayWidth(lead) <= columns / 2 ? indented(displayWidth(lead)) : undefined
  if (beside !== undefined) return lead + beside
  // A name without room beside it is printed above.
  const below = lead === '' ? undefined : indented(BELOW)
  if (below === undefined) return line
  return `${lead.trim() === '' ? '' : `${lead.trimEnd()}\n`}${' '.repeat(BELOW)}${below}`
}

/** The indent below a name. An id still fits on the narrowest supported terminal, of 40 columns. */
const BELOW = 4

/** A name and the gap after it, with colour codes. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: it is what colour codes begin with
const LEAD = /^(?: *\S+(?: \S+)*? {2,}(?:\u001b\[\d+m *)*| +)/

/** The width for which help is written. */
export const HELP_WIDTH = 80

/** Fits help to a narrower terminal: rewraps paragraphs, and continues commands after a backslash. */
export const fitHelp = (text: string, columns: number | undefined): string => {
  if (columns === undefined || columns >= HELP_WIDTH) return text
  return text
    .replace(CONTINUED, command => command.replaceAll(/ \\\n */g, ' '))
    .replace(BROKEN, (line, next: string) => (line.length + next.length > HELP_WIDTH ? line.replace('\n', ' ') : line))
    .split('\n')
    .map(line => {
      const [, prompt, rest] = EXAMPLE.exec(line) ?? []
      if (prompt === '$') return `  $ ${foldCommand(rest!, columns)}`
      if (prompt === '#')
        return wrap(rest!, columns - 4)
          .map(part => `  # ${part}`)
          .join('\n')
      return foldLine(line, columns)
    })
    .join('\n')
}

/** A command that continues on further lines. */
const CONTINUED = /^ {2}\$ (?:.* \\\n)+.*$/gm
/** An example's purpose or its command, unless the command is explained beside it. */
const EXAMPLE = /^ {2}([$#]) ((?:(?! {2}).)*)$/

/** A line of prose, and the first word of the next line. */
const BROKEN = /^[^\s](?:(?! {2}).)*\n(?=([^\s]+)(?:(?! {2}).)*$)/gm

/**
 * Breaks a shell command into lines, each but the last continued with a backslash. Quoted text stays whole. Leaves four
 * columns for a prompt or an indent.
 */
export const foldCommand = (line: string, columns = HELP_WIDTH): string => {
  const words = line.match(/(?:'[^']*'|"[^"]*"|\S)+/g) ?? []
  const folded = ['']
  for (const word of words) {
    const last = folded.at(-1)!
    if (last !== '' && last.length + 1 + word.length > columns - 6) folded.push(`  ${word}`)
    else folded[folded.length - 1] = last === '' ? word : `${last} ${word}`
  }
  return folded.join(' \\\n  ')
}

/** The terminal columns left for text after an indent; without a terminal, of 100 columns. */
export const roomFor = (indent: number): number =>
  Math.max(30, (process.stdout.isTTY ? process.stdout.columns : 100) - indent)
