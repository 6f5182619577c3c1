import { getHeapStatistics } from 'node:v8'
import { turnMs } from '../event-loop.ts'

/** How long a request may hold the event loop before others have their turn. */
const TURN_MS = 3
/** What has held it for less in all goes on however full the heap is. */
const SMALL_MS = 10
/** The part of the heap, garbage included, beyond which one large request goes on alone. */
const TIGHT = 2 / 3

/** The requests of this process that have waited for a turn and are not over. */
const underWay = new Set<Pace>()
let isDue = false

/**
 * One request's turns on the event loop of its process. Of those that wait, the one that has held the loop for the
 * shortest time goes on (least attained service: Kleinrock, Queueing Systems II, 1976, 4.6), so that a small one passes
 * by large ones, whoever asks them. While memory is tight, of the large ones the one that has held it longest goes on
 * alone until it is over: all together would fill the heap.
 */
export class Pace {
  #heldMs = 0
  readonly #waiting: (() => void)[] = []
  readonly #after: (() => void)[] = []
  #isOver = false

  /** The request is over: whatever still waits for a turn of it never has one. */
  end(): void {
    this.#isOver = true
    underWay.delete(this)
    schedule()
  }

  /** Undefined if the request may go on at once. */
  turn(): Promise<void> | undefined {
    return this.isWaiting || turnMs() >= TURN_MS ? this.nextTurn() : undefined
  }

  /** Resolves when others have had their turn. */
  nextTurn(): Promise<void> {
    if (this.#isOver) return new Promise(() => {})
    if (!this.isWaiting) this.#heldMs += turnMs()
    underWay.add(this)
    schedule()
    return new Promise(resolve => this.#waiting.push(resolve))
  }

  get isWaiting(): boolean {
    return this.#waiting.length > 0
  }

  get heldMs(): number {
    return this.#heldMs
  }

  async go(): Promise<void> {
    while (this.isWaiting && turnMs() < TURN_MS) {
      this.#waiting.shift()!()
      // What this lets run runs before the next.
      await undefined
    }
    if (!this.isWaiting) for (const work of this.#after.splice(0)) this.afterTurns(work)
  }

  /** Calls back after what can go on now, once nothing of the request waits for a turn. */
  afterTurns(work: () => void): void {
    const look = () => (this.isWaiting ? this.#after.push(work) : work())
    // When all promises that are settled have been followed, as DataLoader does it by itself.
    Promise.resolve().then(() => process.nextTick(look))
  }
}

const schedule = (): void => {
  if (isDue || underWay.size === 0) return
  isDue = true
  setImmediate(async () => {
    const pace = next()
    await pace?.go()
    isDue = false
    // Where the one that has to go on waits for something else, it will be due again when that has come.
    if (pace && [...underWay].some(({ isWaiting }) => isWaiting)) schedule()
  })
}

/** Whose turn it is; undefined where nobody waits, or where memory is tight and the largest does not wait. */
const next = (): Pace | undefined => {
  const inOrder = [...underWay].sort((a, b) => a.heldMs - b.heldMs)
  const first = inOrder.find(({ isWaiting }) => isWaiting)
  if (first === undefined || first.heldMs < SMALL_MS || !isTight()) return first
  const largest = inOrder.at(-1)!
  return largest.isWaiting ? largest : undefined
}

const isTight = (): boolean => {
  const { used_heap_size: used, heap_size_limit: limit } = getHeapStatistics()
  return used > TIGHT * limit
}
