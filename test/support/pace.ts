import { readFileSync } from 'node:fs'

/** Nanoseconds that a process has run, and waited for a processor that others had. */
export type Pace = { ran: number; waited: number }

/** Of the thread that has the event loop, so far; nothing if the process has ended, or the system does not tell. */
export const paceOf = (pid: number): Pace => {
  try {
    const [ran, waited] = readFileSync(`/proc/${pid}/schedstat`, 'utf8').split(' ').map(Number)
    return { ran: ran!, waited: waited! }
  } catch {
    return { ran: 0, waited: 0 }
  }
}

/** Returns what tells a process's pace since now. */
export const paceSince = (pid: number): (() => Pace) => {
  const before = paceOf(pid)
  return () => {
    const { ran, waited } = paceOf(pid)
    return { ran: ran - before.ran, waited: waited - before.waited }
  }
}

/** Counts milliseconds by the clock, without those in which this process waited for a processor that others had. */
export const startAlone = (): (() => number) => {
  const [startedAt, pace] = [performance.now(), paceSince(process.pid)]
  return () => performance.now() - startedAt - pace().waited / 1e6
}

/** How many times as long as alone processes took for what they did, by all that is known of them; 1 if nothing is. */
export const slowerBy = (paces: Iterable<Pace>): number => {
  const all = { ran: 0, waited: 0 }
  for (const { ran, waited } of paces) {
    all.ran += ran
    all.waited += waited
  }
  return all.ran > 0 ? (all.ran + all.waited) / all.ran : 1
}
