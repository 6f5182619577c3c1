import { setTimeout as sleep } from 'node:timers/promises'
import { codeOf } from '../../shared/errors.ts'
import { AT_ONCE, type Group, type Groups } from './groups.ts'
import { framesOf } from './stream.ts'

/** Groups of one token that are answered at once. */
const MOST_ASKING_A_TOKEN = 4
/** How long streams are written in a row before other work of the process has its turn. */
const TURN_MS = 8
/** The most buffered bytes of all streams; beyond it, the streams that read least end. */
const MOST_KEPT_BYTES = 64 * 1024 * 1024

/** Tells groups what they are owed: asks what it says now, and writes the answer to the group's streams. */
export class Teller {
  readonly #groups: Groups
  /** All changes until then are owed to the groups, or told. */
  readonly #cursor: () => number
  /** Resolves when all frames so far are written. */
  #written = Promise.resolve()

  constructor(groups: Groups, cursor: () => number) {
    this.#groups = groups
    this.#cursor = cursor
  }

  tellAll(): void {
    for (const group of this.#groups.all) this.#groups.join(group)
    for (const of of Map.groupBy(this.#groups.all, ({ token }) => token.id).values()) this.#tellSome(of)
  }

  /** Begins to tell groups of one token, those first that were told least recently. */
  #tellSome(ofToken: Group[]): void {
    const asking = ofToken.filter(({ telling }) => telling).length
    const owing = ofToken.filter(({ owed, telling }) => owed.size > 0 && !telling)
    const next = owing.sort((a, b) => a.toldAt - b.toldAt).slice(0, Math.max(0, MOST_ASKING_A_TOKEN - asking))
    for (const group of next) void this.#tell(group)
  }

  /** Tells a group of some changed deliveries, in their present state and as visible now. */
  async #tell(group: Group): Promise<void> {
    const telling = new AbortController()
    group.telling = telling
    const some = [...group.owed.values().take(group.atOnce)]
    for (const id of some) group.owed.delete(id)
    const until = group.owed.size === 0 ? this.#cursor() : undefined
    const oweAgain = () => some.forEach(id => void group.owed.add(id))
    try {
      const { lines, refusal } = await group.answer(group.token, some, telling.signal)
      if (telling.signal.aborted) return
      if (lines) {
        await this.#write(group, lines, until)
        if (until !== undefined) group.atOnce = AT_ONCE
      } else if (some.length === 1) this.#groups.end(group, refusal)
      else {
        // One of them may be too much beside the others.
        oweAgain()
        group.atOnce = 1
      }
    } catch (error) {
      if (telling.signal.aborted) return
      if (codeOf(error) !== 'UNAVAILABLE') return this.#groups.end(group, group.asError(error))
      // Asked again after the next look.
      return oweAgain()
    } finally {
      group.telling = undefined
      group.toldAt = performance.now()
    }
    this.#groups.join(group)
    this.#tellSome(this.#groups.of(group.token.id))
  }

  #write(group: Group, results: readonly string[], until: number | undefined): Promise<void> {
    for (const frame of framesOf(results, until)) {
      this.#written = this.#written.then(() => this.#writeFrame(group, frame))
    }
    return this.#written
  }

  async #writeFrame({ streams }: Group, frame: Buffer): Promise<void> {
    let startedAt = performance.now()
    for (const stream of streams) {
      stream.next(frame)
      const tookMs = performance.now() - startedAt
      if (tookMs < TURN_MS) continue
      await sleep(tookMs)
      startedAt = performance.now()
    }
    this.#boundMemory()
  }

  #boundMemory(): void {
    const all = this.#groups.streams
    let kept = all.reduce((sum, { keptBytes }) => sum + keptBytes, 0)
    if (kept <= MOST_KEPT_BYTES) return
    for (const stream of all.toSorted((a, b) => b.keptBytes - a.keptBytes)) {
      if (kept <= MOST_KEPT_BYTES) return
      kept -= stream.keptBytes
      stream.drop()
    }
  }
}
