// Tables that must have an entry for every word of a vocabulary. The server may be newer, and say a word that none has.

/** What a table has for a word; undefined for one that it does not know. */
export const entryFor = <Word extends string, Entry>(table: Record<Word, Entry>, word: string): Entry | undefined =>
  Object.hasOwn(table, word) ? table[word as Word] : undefined

/** The words of a table, in its order. */
export const wordsOf = <Word extends string>(table: Record<Word, unknown>): Word[] => Object.keys(table) as Word[]
