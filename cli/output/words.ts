// Tables with an entry for every word of a vocabulary. A newer server may send a word without an entry.

/** The entry for a word; undefined for an unknown word. */
export const entryFor = <Word extends string, Entry>(table: Record<Word, Entry>, word: string): Entry | undefined =>
  Object.hasOwn(table, word) ? table[word as Word] : undefined

/** The words of a table in order. */
export const wordsOf = <Word extends string>(table: Record<Word, unknown>): Word[] => Object.keys(table) as Word[]
