import { availableParallelism } from 'node:os'

// Which query may begin in which reader. Light queries are for all readers. Heavy ones are those that have run for long
// or have patterns that may, those of a token whose queries were long lately, and suspects. Of a token that was never
// seen it is not known.

const FEW_CORES = availableParallelism() < 4

/** Heavy queries at once of one party: its others, and those of others, still find places. */
export const MOST_HEAVY_A_PARTY = FEW_CORES ? 1 : 2

/** The most readers, the places in each, and the most heavy queries in all of them. */
export type Limits = { readers: number; places: number; heavy: number }

/**
 * Statements run in a database server, or in the reader itself on SQLite: there one reader more is for heavy queries
 * alone, so that a token that was never seen finds one too.
 */
export const LIMITS: Record<'embedded' | 'server', Limits> = FEW_CORES
  ? { embedded: { readers: 3, places: 1, heavy: 1 }, server: { readers: 2, places: 4, heavy: 2 } }
  : { embedded: { readers: 4, places: 1, heavy: 2 }, server: { readers: 4, places: 4, heavy: 4 } }

/**
 * `party`: whose it is, a tenant's, or a token's while one tenant asks alone. `isKnown`: queries of its token have been
 * light, and it is not large. `isMatching`: it has patterns that may take long for a row, and much memory.
 * `isSuspect`: a reader ended while it ran.
 */
export type Share = {
  party: string
  isKnown: boolean
  isHeavy: boolean
  isMatching: boolean
  isSuspect: boolean
}
/** The queries that run in a reader that is ready. */
export type Running = readonly Share[]
/**
 * `isReplacing`: another reader starts in the place of one that has ended, and will soon be ready. `isShared`: several
 * tenants ask.
 */
export type Rules = Limits & { isReplacing?: boolean; isShared?: boolean }

/** Of two readers or more, whether one starts in the place of one that has ended, or will if somebody waits. */
export const isReplacing = (readers: { ready: number; all: number; mayStart: boolean }): boolean =>
  readers.ready < readers.all || (readers.ready < 2 && readers.mayStart)

/**
 * The places in each reader that are used: half of them while several tenants ask, since statements that run at once
 * take turns in the database server, and what waits for a place is taken in turns.
 */
export const placesOf = ({ places, isShared }: Rules): number => (isShared ? Math.ceil(places / 2) : places)

/** Whether a party may have one more query of a kind at once: few heavy ones, and half of the places. */
export const mayHaveMore = (job: Share, readers: readonly Running[], limits: Rules): boolean => {
  const own = readers.flat().filter(({ party }) => party === job.party)
  if (job.isHeavy) return heavyIn([own]) < MOST_HEAVY_A_PARTY
  return own.length < Math.max(1, Math.floor((placesOf(limits) * limits.readers) / 2))
}

/** Whether a query may begin in the reader at `index`. */
export const mayBegin = (job: Share, index: number, readers: readonly Running[], limits: Rules): boolean => {
  const own = readers[index]!
  const others = readers.toSpliced(index, 1)
  const isFree = own.length < placesOf(limits) && !own.some(({ isSuspect }) => isSuspect)
  if (!isFree || !mayHaveMore(job, readers, limits) || !leavesOne(job, others, limits)) return false
  // Two would take turns on one thread, with the memory of both.
  if (job.isMatching && own.some(({ isMatching }) => isMatching)) return false
  // If it ends a reader again, it must be known which query did.
  if (job.isSuspect && (own.length > 0 || others.flat().some(({ isSuspect }) => isSuspect))) return false
  const isAlone = !limits.isReplacing
  // A tenant that leaves a reader to others has all that it runs in the same one.
  const ofOthers = limits.isShared ? own.filter(({ party }) => party !== job.party) : own
  // What is not known to be light leaves a reader to what is, except while there is only one.
  if (job.isHeavy || !job.isKnown) {
    if (job.isHeavy && heavyIn(readers) >= limits.heavy) return false
    if (ofOthers.some(isLightOne) && !others.every(running => running.some(isLightOne))) return false
    return others.some(isLight) || (others.length === 0 && isAlone && !job.isHeavy)
  }
  // Light queries share a reader with others only while there is no other.
  return isLight(ofOthers) || (!others.some(isLight) && isAlone)
}

/** Whether some reader is left to other tenants. */
const leavesOne = ({ party }: Share, others: readonly Running[], { isShared }: Rules): boolean =>
  !isShared || others.length === 0 || others.some(running => running.every(other => other.party !== party))

/** Whether a query that has turned out to be heavy may stay where it runs. While there is one reader, half may. */
export const mayStay = (index: number, readers: readonly Running[], limits: Rules): boolean => {
  const heavy = readers[index]!.filter(({ isHeavy }) => isHeavy)
  if (heavy.filter(({ isMatching }) => isMatching).length > 1) return false
  if (heavyIn(readers) <= limits.heavy && readers.some((running, n) => n !== index && isLight(running))) return true
  return readers.length < limits.readers && heavy.length <= Math.max(1, placesOf(limits) / 2)
}

/** Whether a light query is better begun anew in another reader than left beside what is not light. */
export const mayMove = (job: Share, index: number, readers: readonly Running[], limits: Rules): boolean => {
  if (!isLightOne(job) || isLight(readers[index]!)) return false
  const at = readers[index]!.findIndex(({ party }) => party === job.party)
  const rest = readers.map((running, n) => (n === index ? running.toSpliced(at, 1) : running))
  return readers.some(
    (running, n) =>
      n !== index &&
      isLight(running) &&
      running.length < placesOf(limits) &&
      leavesOne(job, rest.toSpliced(n, 1), limits),
  )
}

/** Whether no reader is left to light queries. */
export const hasNoneLight = (readers: readonly Running[]): boolean => !readers.some(isLight)

const heavyIn = (readers: readonly Running[]): number => readers.flat().filter(({ isHeavy }) => isHeavy).length

export const isLightOne = ({ isKnown, isHeavy, isSuspect }: Share): boolean => isKnown && !isHeavy && !isSuspect

const isLight = (running: Running): boolean => running.every(isLightOne)
