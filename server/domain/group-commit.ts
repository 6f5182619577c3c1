import type { CommitInDoubt } from '../database/patience.ts'

// Group commit: changes that arrive while two transactions are under way wait, and then share one transaction and its
// statements. While groups have been large, a change also waits up to 40 ms for as many others as came lately: clients
// that send their next change after each answer come together again. A client that is alone never waits. Where changes
// are few, nobody does: otherwise one slow moment, in which some of them met, would delay all that follow.
//
// A group never waits for a lock. A change that needs what another transaction has locked is made alone, and so are all
// changes of a group that fails. So a change that waits delays nobody else.

/** A change that was made; with `doubt`, its commit may have failed. */
export type Made<Result> = { result: Result; doubt?: CommitInDoubt }

/** The turn of a change: it was made in a group, or is to be made alone. Call `leave` when it has ended. */
export type Turn<Result> = { made?: Made<Result>; leave(): void }

/** Transactions under way, groups and changes that are made alone, until further ones wait. */
export const GROUPS_AT_ONCE = 2
export const LARGEST_GROUP = 64
/** How long after the last group began a change waits for others. */
const GATHERING_MS = 40
/** The groups whose largest size is the one to wait for, and its limit. */
const GROUPS_KEPT = 8
const ENOUGH = 32
/** With fewer changes than this in the time of gathering, each would wait for others that do not come. */
const WORTH_GATHERING = 3
/**
 * A change that is made alone and takes longer waits for something itself, and gives its place to others. A group keeps
 * its place: if the database is slow, more groups at once would make it slower.
 */
const IN_THE_WAY_MS = 100

type Waiting<Change, Result> = { change: Change; begin: (turn: Turn<Result>) => void }

/** Gives each change its turn. */
export class GroupCommit<Change, Result> {
  readonly #commit: (group: Change[]) => Promise<(Made<Result> | undefined)[]>
  readonly #now: () => number
  #underWay = 0
  #isBeginning = false
  readonly #waiting: Waiting<Change, Result>[] = []
  /** The last groups, and when each began. */
  readonly #groups: { size: number; beganAt: number }[]
  #gathering: NodeJS.Timeout | undefined

  /**
   * @param commit makes the changes of a group in one transaction; undefined for each that has to be made alone. If it
   *   throws, all of them are made alone
   * @param now the clock of the gathering, in milliseconds
   */
  constructor(commit: (group: Change[]) => Promise<(Made<Result> | undefined)[]>, now = () => performance.now()) {
    this.#commit = commit
    this.#now = now
    this.#groups = [{ size: 1, beganAt: now() }]
  }

  /** Waits for the turn of a change. */
  enter(change: Change): Promise<Turn<Result>> {
    return new Promise(begin => {
      this.#waiting.push({ change, begin })
      this.#beginSoon()
    })
  }

  /** Takes a place. Returns the function that gives it back, which may be called twice. */
  #take(): () => void {
    this.#underWay += 1
    let isHeld = true
    return () => {
      if (!isHeld) return
      isHeld = false
      this.#underWay -= 1
      this.#beginSoon()
    }
  }

  #beginSoon(): void {
    if (this.#isBeginning || this.#waiting.length === 0 || this.#underWay >= GROUPS_AT_ONCE) return
    const isEnough = this.#waiting.length >= Math.min(ENOUGH, Math.max(...this.#groups.map(({ size }) => size)))
    const restMs = isEnough || !this.#isWorthGathering() ? 0 : this.#groups.at(-1)!.beganAt + GATHERING_MS - this.#now()
    if (restMs <= 0) this.#beginNow()
    else this.#gathering ??= setTimeout(() => this.#beginNow(), restMs)
  }

  #isWorthGathering(): boolean {
    const count = this.#groups.slice(1).reduce((sum, { size }) => sum + size, this.#waiting.length)
    return count * GATHERING_MS >= WORTH_GATHERING * (this.#now() - this.#groups[0]!.beganAt)
  }

  /** Changes that arrive in one turn of the event loop share a group. */
  #beginNow(): void {
    clearTimeout(this.#gathering)
    this.#gathering = undefined
    this.#isBeginning = true
    setImmediate(() => {
      this.#isBeginning = false
      // While it gathered, changes that are made alone may have taken the places.
      if (this.#underWay >= GROUPS_AT_ONCE) return
      const group = this.#waiting.splice(0, LARGEST_GROUP)
      this.#groups.push({ size: group.length, beganAt: this.#now() })
      if (this.#groups.length > GROUPS_KEPT) this.#groups.shift()
      void this.#begin(group)
      this.#beginSoon()
    })
  }

  async #begin(group: Waiting<Change, Result>[]): Promise<void> {
    const leave = this.#take()
    if (group.length === 1) {
      const timer = setTimeout(leave, IN_THE_WAY_MS)
      return group[0]!.begin({
        leave() {
          clearTimeout(timer)
          leave()
        },
      })
    }
    const made = await this.#commit(group.map(({ change }) => change)).catch(() => [])
    leave()
    for (const [n, { begin }] of group.entries()) begin({ ...(made[n] && { made: made[n] }), leave() {} })
  }
}
