import { otherWork } from '../event-loop.ts'
import { evaluate } from './matcher.ts'
import type { Meter } from './meter.ts'
import type { Json, Node } from './selector.ts'

/** How long matching may block the process. */
const LONGEST_HOLD_MS = 5

/** Thrown where others have their turn, in the middle of a row. The row is then matched again. */
const PAUSE = Symbol('pause')

/**
 * The matching of one query, which lets others have their turn between rows, and between the patterns of a row: what a
 * slow pattern has found in a row is remembered until the next row, so that a row that was interrupted goes on.
 */
export class Matching implements Meter {
  readonly #meter: Meter
  readonly #remembered: Map<string, boolean>[] = []
  #yieldedAt = performance.now()
  #workedSince = 0
  /** Whether something was matched since others had their turn. */
  #hasMoved = false

  constructor(meter: Meter) {
    this.#meter = meter
  }

  load(rows: readonly Record<string, unknown>[]): void {
    this.#meter.load(rows)
  }

  compile(instructions: number): void {
    this.#meter.compile(instructions)
  }

  match(ms: number): void {
    this.#meter.match(ms)
  }

  look(): void {
    this.#meter.look()
    if (this.#hasMoved && this.#isLong) throw PAUSE
    this.#hasMoved = true
  }

  remember(): Map<string, boolean> {
    const results = new Map<string, boolean>()
    this.#remembered.push(results)
    return results
  }

  begin(): void {
    this.#meter.match(0)
    this.#workedSince = performance.now()
  }

  /** Whether a row matches a condition. */
  row(condition: Node, document: Json): boolean | Promise<boolean> {
    for (const results of this.#remembered) results.clear()
    const found = this.#isLong ? undefined : this.#try(condition, document)
    return found ?? this.#inTurns(condition, document)
  }

  async #inTurns(condition: Node, document: Json): Promise<boolean> {
    for (;;) {
      await this.#pause()
      const found = this.#try(condition, document)
      if (found !== undefined) return found
    }
  }

  /** Undefined where others have their turn first. */
  #try(condition: Node, document: Json): boolean | undefined {
    try {
      return evaluate(condition, document)
    } catch (error) {
      if (error === PAUSE) return undefined
      throw error
    }
  }

  end(): void {
    this.#meter.match(performance.now() - this.#workedSince)
  }

  get #isLong(): boolean {
    return performance.now() - this.#yieldedAt > LONGEST_HOLD_MS
  }

  async #pause(): Promise<void> {
    this.end()
    await (this.#meter.pause?.() ?? otherWork())
    this.begin()
    this.#yieldedAt = this.#workedSince
    this.#hasMoved = false
  }
}
