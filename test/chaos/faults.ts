import { seeded } from './random.ts'

/** What happens to a server process (by its number) or to the database: ended or frozen, and back after `forMs`. */
export type Fault = {
  atMs: number
  forMs: number
  target: number | 'database'
  kind: 'kill' | 'terminate' | 'freeze'
}

/** A fault that happened, in epoch milliseconds: from the signal until the target served again. */
export type Disturbance = Fault & { from: number; to: number }

const SECOND_MS = 1000

/** Faults for `durationMs`, the same for the same seed: each target has its own, one after the other. */
export const planFaults = (given: {
  seed: number
  durationMs: number
  servers: number
  withDatabase: boolean
  /** Server processes are killed and started again every few seconds, and nothing else happens. */
  onlyKills?: boolean
}): Fault[] => {
  const { seed, durationMs, servers, withDatabase, onlyKills = false } = given
  const random = seeded(seed)
  const between = (least: number, most: number) => Math.round(least + random() * (most - least))
  const inTurn = (next: () => { pauseMs: number } & Omit<Fault, 'atMs'>): Fault[] => {
    const faults: Fault[] = []
    for (let atMs = 0; ; ) {
      const { pauseMs, ...fault } = next()
      atMs += pauseMs
      if (atMs + fault.forMs > durationMs) return faults
      faults.push({ ...fault, atMs })
      atMs += fault.forMs
    }
  }
  const ofServer = (target: number) =>
    inTurn(() => {
      if (onlyKills) {
        const pauseMs = between(6 * SECOND_MS, 14 * SECOND_MS)
        return { pauseMs, target, kind: 'kill', forMs: between(0, 2 * SECOND_MS) }
      }
      const pauseMs = between(4 * SECOND_MS, 25 * SECOND_MS)
      const dice = random()
      if (dice < 0.5) return { pauseMs, target, kind: 'kill', forMs: between(0, 5 * SECOND_MS) }
      if (dice < 0.65) return { pauseMs, target, kind: 'terminate', forMs: between(0, 5 * SECOND_MS) }
      if (dice < 0.8) return { pauseMs, target, kind: 'freeze', forMs: between(SECOND_MS, 10 * SECOND_MS) }
      // Past the lease of what it holds.
      return { pauseMs, target, kind: 'freeze', forMs: between(31 * SECOND_MS, 45 * SECOND_MS) }
    })
  const ofDatabase = () =>
    inTurn(() => {
      const pauseMs = between(40 * SECOND_MS, 100 * SECOND_MS)
      const kind = (['kill', 'terminate', 'freeze'] as const)[between(0, 2)]!
      const forMs = random() < 0.2 ? between(20 * SECOND_MS, 40 * SECOND_MS) : between(0, 8 * SECOND_MS)
      return { pauseMs, target: 'database', kind, forMs }
    })
  const faults = Array.from({ length: servers }, (_, index) => ofServer(index)).flat()
  return [...faults, ...(withDatabase && !onlyKills ? ofDatabase() : [])].toSorted((a, b) => a.atMs - b.atMs)
}
