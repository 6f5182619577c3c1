import { timeOfId } from '../../shared/time.ts'
import type { Clock } from '../clock.ts'
import { marks, rows, type Sql } from '../database/connect.ts'
import { leastIdAt } from '../ids.ts'

/** The part of a delivery that shows a change: its attempts and its end. */
type Mark = { id: string; status: string; attempt_count: number; next_attempt_at: number | null }
type Known = { mark: string; dueAt: number | undefined }

const MARK = 'd.id, d.status, d.attempt_count, d.next_attempt_at'
const PAGE = 5_000
const KEYS_A_STATEMENT = 1_000
/** An id is created before its transaction commits, so it may appear after later ids. */
const OVERLAP_MS = 2_000
/**
 * Some transactions are long and some clocks behind, so one look in this many goes back further: this long before the
 * newest id of the last such look. So nothing is missed that is committed within this time of its id, however long the
 * process could not look.
 */
const FAR_OVERLAP_MS = 30_000
const FAR_EVERY = 10
/** The most deliveries pending at the start to follow, in the order of their due time. */
const MOST_AT_FIRST = 20_000
const MOST_KNOWN = 100_000
/** How many due deliveries of a backlog each look checks, in turns. */
const DUE_A_LOOK = 5_000
/** Deliveries that are not due can only be cancelled. This many are checked, in turns, every few looks. */
const TURN = 1_000
const TURN_EVERY = 5

/**
 * Finds changed deliveries, whichever process changed them, by keys alone. New ones are found by their ids, which are
 * in the order of time (RFC 9562 section 5.7), pending ones when they are due or were settled here. A look that finds
 * nothing reads one range of the primary key.
 */
export class Changes {
  readonly #sql: Sql
  readonly #clock: Clock
  /** The last reported state of each delivery. Ended ones are forgotten when no look can find them again. */
  readonly #known = new Map<string, Known>()
  readonly #settledHere = new Set<string>()
  /** The time of the newest id seen, in epoch milliseconds. */
  #newestMs = 0
  /** The same as of the last look that went further back. */
  #farFromMs = 0
  #looks = 0

  constructor(sql: Sql, clock: Clock) {
    this.#sql = sql
    this.#clock = clock
  }

  /** Reads the present state, so that only later changes are found. */
  async begin(): Promise<void> {
    const [newest] = await rows<{ id: string }>(this.#sql, 'SELECT id FROM deliveries ORDER BY id DESC LIMIT 1')
    this.#newestMs = newest ? timeOfId(newest.id) : 0
    const pending = await rows<Mark>(
      this.#sql,
      `SELECT ${MARK} FROM (SELECT delivery_id FROM delivery_queue ORDER BY due_at LIMIT ${MOST_AT_FIRST}) q
       JOIN deliveries d ON d.id = q.delivery_id`,
    )
    this.#farFromMs = this.#newestMs
    this.#changed([...pending, ...(await this.#since(this.#newestMs - FAR_OVERLAP_MS))])
  }

  /** The next look checks this delivery, due or not. */
  settled(id: string): void {
    this.#settledHere.add(id)
  }

  /** The ids of deliveries that have changed since the last look. If it throws, it has recorded nothing. */
  async look(): Promise<string[]> {
    const isFar = (this.#looks + 1) % FAR_EVERY === 0
    const found = await this.#since(isFar ? this.#farFromMs - FAR_OVERLAP_MS : this.#newestMs - OVERLAP_MS)
    const settledHere = [...this.#settledHere]
    const ids = [...new Set([...settledHere, ...this.#worthALook()])]
    for (let from = 0; from < ids.length; from += KEYS_A_STATEMENT) {
      const some = ids.slice(from, from + KEYS_A_STATEMENT)
      found.push(
        ...(await rows<Mark>(this.#sql, `SELECT ${MARK} FROM deliveries d WHERE d.id IN (${marks(some)})`, some)),
      )
    }
    this.#looks += 1
    if (isFar) this.#farFromMs = this.#newestMs
    for (const id of settledHere) this.#settledHere.delete(id)
    const changed = this.#changed(found)
    this.#forget()
    return changed
  }

  async #since(ms: number): Promise<Mark[]> {
    const found: Mark[] = []
    for (let after = leastIdAt(ms); ; after = found.at(-1)!.id) {
      const page = await rows<Mark>(
        this.#sql,
        `SELECT ${MARK} FROM deliveries d WHERE d.id > ? ORDER BY d.id LIMIT ${PAGE}`,
        [after],
      )
      found.push(...page)
      if (page.length < PAGE) return found
    }
  }

  *#worthALook(): Generator<string> {
    const now = this.#clock.now()
    const turns = { due: DUE_A_LOOK, later: this.#looks % TURN_EVERY === 0 ? TURN : 0 }
    for (const [id, { dueAt }] of [...this.#known]) {
      if (dueAt === undefined) continue
      const kind = dueAt <= now ? 'due' : 'later'
      if (turns[kind] === 0) continue
      turns[kind] -= 1
      this.#toTheEnd(id)
      yield id
    }
  }

  /** Records what was found, and returns the changed ones. */
  #changed(found: Mark[]): string[] {
    const changed = new Set<string>()
    for (const { id, status, attempt_count, next_attempt_at } of found) {
      const mark = `${status} ${attempt_count}`
      this.#newestMs = Math.max(this.#newestMs, timeOfId(id))
      if (this.#known.get(id)?.mark !== mark) changed.add(id)
      this.#known.set(id, { mark, dueAt: status === 'pending' ? (next_attempt_at ?? 0) : undefined })
    }
    return [...changed].sort()
  }

  #toTheEnd(id: string): void {
    const known = this.#known.get(id)!
    this.#known.delete(id)
    this.#known.set(id, known)
  }

  #forget(): void {
    for (const [id, { dueAt }] of this.#known) {
      const isPast = dueAt === undefined && timeOfId(id) < this.#farFromMs - FAR_OVERLAP_MS
      if (isPast || this.#known.size > MOST_KNOWN) this.#known.delete(id)
    }
  }
}
