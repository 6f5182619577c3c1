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

/** Terminal columns that are left for text behind an indent of so many; a hundred where there is no terminal. */
export const roomFor = (indent: number): number =>
  Math.max(30, (process.stdout.isTTY ? process.stdout.columns : 100) - indent)
