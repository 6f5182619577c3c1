// Who shares the event loop of a process. An embedded engine answers synchronously, so its statements would follow one
// another without a turn of the loop; and neither does matching or answering a long list leave it by itself.

/** Lets other work of the process run. */
export const otherWork = (): Promise<void> => new Promise(resolve => setImmediate(resolve))

/** How long statements of an embedded engine may follow one another before other work has its turn. */
const TURN_MS = 8
let beganAt: number | undefined

/** How long the work that asks has held this turn of the event loop. */
export const turnMs = (): number => {
  if (beganAt !== undefined) return performance.now() - beganAt
  beganAt = performance.now()
  setImmediate(() => {
    beganAt = undefined
  })
  return 0
}

/** Resolves in a turn of the event loop that statements have not occupied for too long. */
export const inTurn = async (): Promise<void> => {
  while (turnMs() >= TURN_MS) await otherWork()
}
