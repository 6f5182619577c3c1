import { availableParallelism } from 'node:os'

// Which query may begin in which reader. Light queries are for all. Heavy ones are those that have run for long or have
// patterns that may, those of a token that had one lately, and suspects.

/** More than one, so that one is left for light queries. */
export const MOST_READERS = availableParallelism() < 4 ? 2 : 4
/** Long queries at once of one token: its others, and those of others, still find places. */
export const MOST_LONG_A_TOKEN = MOST_READERS / 2

/**
 * `isMatching`: it has patterns that may take long for a row, and much memory. `isSuspect`: a reader ended while it
 * ran. `isCrowded`: its token had more long queries at once than it may.
 */
export type Share = {
  tokenId: string
  isHeavy: boolean
  isMatching: boolean
  isSuspect: boolean
  isCrowded: boolean
}
/** The queries that run in a reader that is ready. */
export type Running = readonly Share[]

/** Whether a token may have one more query of a kind at once: half of the places, and of heavy ones of few readers. */
export const mayHaveMore = (job: Share, readers: readonly Running[], places: number): boolean => {
  const own = readers.flat().filter(({ tokenId }) => tokenId === job.tokenId)
  const most = job.isCrowded ? MOST_LONG_A_TOKEN : (places * MOST_READERS) / 2
  return own.length < most
}

/** Whether a query may begin in the reader at `index`. */
export const mayBegin = (job: Share, index: number, readers: readonly Running[], places: number): boolean => {
  const own = readers[index]!
  const others = readers.toSpliced(index, 1)
  const isFree = own.length < places && !own.some(({ isSuspect }) => isSuspect)
  if (!isFree || !mayHaveMore(job, readers, places)) return false
  // Two would take turns on one thread, with the memory of both.
  if (job.isMatching && own.some(({ isMatching }) => isMatching)) return false
  // If it ends a reader again, it must be known which query did.
  if (job.isSuspect && (own.length > 0 || others.flat().some(({ isSuspect }) => isSuspect))) return false
  // Light queries share a reader with heavy ones only while there is no other.
  return job.isHeavy ? others.some(isLight) : isLight(own) || !others.some(isLight)
}

/** Whether a query that has turned out to be heavy may stay where it runs. While there is one reader, half may. */
export const mayStay = (index: number, readers: readonly Running[], places: number): boolean => {
  const heavy = readers[index]!.filter(({ isHeavy }) => isHeavy)
  if (heavy.filter(({ isMatching }) => isMatching).length > 1) return false
  return (
    readers.some((running, n) => n !== index && isLight(running)) ||
    (readers.length < MOST_READERS && heavy.length <= Math.max(1, places / 2))
  )
}

/** Whether no reader is left to light queries. */
export const hasNoneLight = (readers: readonly Running[]): boolean => !readers.some(isLight)

const isLight = (running: Running): boolean => !running.some(({ isHeavy, isSuspect }) => isHeavy || isSuspect)
