/** Those of the words that differ from a mistyped one by two letters at most, in any case, nearest first. */
export const nearTo = (words: readonly string[], mistyped: string): string[] =>
  words
    .map(word => ({ word, apart: distance(word.toLowerCase(), mistyped.toLowerCase()) }))
    .filter(({ apart }) => apart <= 2)
    .toSorted((a, b) => a.apart - b.apart)
    .map(({ word }) => word)

/** The number of letters to change, add or remove between two words (Levenshtein). */
const distance = (a: string, b: string): number => {
  if (Math.abs(a.length - b.length) > 2) return Number.POSITIVE_INFINITY
  let row = Array.from({ length: b.length + 1 }, (_, index) => index)
  for (let i = 1; i <= a.length; i++) {
    const above = row
    row = [i]
    for (let j = 1; j <= b.length; j++) {
      row[j] = Math.min(above[j]! + 1, row[j - 1]! + 1, above[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1))
    }
  }
  return row[b.length]!
}
