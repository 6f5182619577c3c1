import type { CommitInDoubt } from '../database/patience.ts'

// Group commit: a change that arrives while no group is under way begins one, alone if nobody came with it. What
// arrives meanwhile is the next group, and shares one transaction and its statements. Nobody waits for company that may
// not come.
//
// A group never waits for a lock. A change that needs what another transaction has locked is made alone, and so are all
// changes of a group that fails. So a change that waits delays nobody else.

/** A change that was made; with `doubt`, its commit may have failed. */
export type Made<Result> = { result: Result; doubt?: CommitInDoubt }

/** The most groups under way. Two at once are smaller, and cost more: the second begins beside one that is stuck. */
export const GROUPS_AT_ONCE = 2
export const LARGEST_GROUP = 64
/** A group that takes longer is stuck, or its database is slow. */
const STUCK_MS = 100

type Waiting<Change, Result> = { change: Change; end: (made: Made<Result> | undefined) => void }

/** Makes changes in groups. */
export class GroupCommit<Change, Result> {
  readonly #commit: (group: Change[]) => Promise<(Made<Result> | undefined)[]>
  readonly #waiting: Waiting<Change, Result>[] = []
  #underWay = 0
  /** Of those under way. */
  #stuck = 0
  #isBeginning = false

  /**
   * @param commit makes the changes of a group in one transaction; undefined for each that has to be made alone. If it
   *   throws, all of them are made alone
   */
  constructor(commit: (group: Change[]) => Promise<(Made<Result> | undefined)[]>) {
    this.#commit = commit
  }

  /** Makes a change in a group. Resolves to undefined if it has to be made alone. */
  make(change: Change): Promise<Made<Result> | undefined> {
    return new Promise(end => {
      this.#waiting.push({ change, end })
      this.#beginSoon()
    })
  }

  /** Changes that arrive in one turn of the event loop share a group. */
  #beginSoon(): void {
    const isRoom = this.#underWay === this.#stuck && this.#underWay < GROUPS_AT_ONCE
    if (this.#isBeginning || this.#waiting.length === 0 || !isRoom) return
    this.#isBeginning = true
    setImmediate(() => {
      this.#isBeginning = false
      void this.#begin(this.#waiting.splice(0, LARGEST_GROUP))
    })
  }

  async #begin(group: Waiting<Change, Result>[]): Promise<void> {
    this.#underWay += 1
    let isStuck = false
    const timer = setTimeout(() => {
      isStuck = true
      this.#stuck += 1
      this.#beginSoon()
    }, STUCK_MS)
    const made = await this.#commit(group.map(({ change }) => change)).catch(() => [])
    clearTimeout(timer)
    if (isStuck) this.#stuck -= 1
    this.#underWay -= 1
    this.#beginSoon()
    for (const [n, { end }] of group.entries()) end(made[n])
  }
}
