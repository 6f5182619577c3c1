/**
 * The end of a sentence: `; did you mean X?` if one of `known` is close enough to what was written, else a full stop.
 */
export const didYouMean = (written: string, known: readonly string[]): string => {
  const wanted = written.toLowerCase()
  const allowed = Math.max(1, Math.floor(wanted.length * 0.4))
  let best: { name: string; distance: number } | undefined
  for (const name of known) {
    if (Math.abs(name.length - wanted.length) > allowed) continue
    const distance = editDistance(wanted, name.toLowerCase())
    if (distance <= allowed && distance < (best?.distance ?? Number.POSITIVE_INFINITY)) best = { name, distance }
  }
  return best ? `; did you mean ${best.name}?` : '.'
}

const LONGEST_COMPARED = 64

/** The number of insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`. */
const editDistance = (a: string, b: string): number => {
  if (a.length > LONGEST_COMPARED || b.length > LONGEST_COMPARED) return a === b ? 0 : Number.POSITIVE_INFINITY
  let beforeLast: number[] = []
  let last = Array.from({ length: b.length + 1 }, (_, index) => index)
  for (let i = 1; i <= a.length; i++) {
    const current = [i]
    for (let j = 1; j <= b.length; j++) {
      const cost = a[i - 1] === b[j - 1] ? 0 : 1
      let distance = Math.min(last[j]! + 1, current[j - 1]! + 1, last[j - 1]! + cost)
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) {
        distance = Math.min(distance, beforeLast[j - 2]! + 1)
      }
      current.push(distance)
    }
    beforeLast = last
    last = current
  }
  return last[b.length]!
}
