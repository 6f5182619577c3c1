// An embedded engine answers synchronously, so its statements follow one another without a turn of the event loop.

/** Lets other work of the process run. */
export const otherWork = (): Promise<void> => new Promise(resolve => setImmediate(resolve))

/** How long statements of an embedded engine may follow one another before other work has its turn. */
const TURN_MS = 8
let beganAt: number | undefined

/** Resolves in a turn of the event loop that statements have not occupied for too long. */
export const inTurn = async (): Promise<void> => {
  while (beganAt !== undefined && performance.now() - beganAt >= TURN_MS) await otherWork()
  if (beganAt !== undefined) return
  beganAt = performance.now()
  setImmediate(() => {
    beganAt = undefined
  })
}
