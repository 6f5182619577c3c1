import { timeOfId } from '../../shared/time.ts'
import type { Ask } from '../connection/client.ts'
import { type DeliveryAtAGlance, glanceFields } from './timeline.ts'

/** The part of a delivery that shows a change: its attempts and its end. */
type Mark = Pick<DeliveryAtAGlance, 'id' | 'status' | 'attemptCount'>

/** The subscription by which the server reports changes. */
export const LIVE_DELIVERIES = `subscription ($selector: MangoSelector) {
  deliveries(selector: $selector) { ${glanceFields} } }`

const documentOf = (fields: string) => `query ($query: MangoQuery) { deliveries(query: $query) { ${fields} } }`
const MARKS = documentOf('id status attemptCount')
const DELIVERIES = documentOf(glanceFields)

/** Marks are small, so a page has many. */
const MARKS_PAGE = 5_000
const PAGE = 500
/** An id is created before its transaction commits, so it may appear after later ids. */
const OVERLAP_MS = 2_000
/** Some transactions are long and some clocks behind, so one look in this many goes back further. */
const FAR_OVERLAP_MS = 30_000
const FAR_EVERY = 10
/** The retries take 85 minutes: an older pending delivery was asked to wait. */
const PENDING_SINCE_MS = 90 * 60_000
/** The most deliveries pending at the start to follow, newest first. */
const MOST_PENDING_BEFORE = 100_000
/** The most pending deliveries of one look; more take turns. */
const PENDING_A_LOOK = 4 * MARKS_PAGE

/**
 * Finds changed deliveries by polling. New ones are found by their ids, which are indexed and in the order of time (RFC
 * 9562 section 5.7), pending ones by their ids too, so that a look costs the same in a table of millions. Each end is
 * reported once, and of several attempts between two looks only the last one.
 */
export class DeliveryWatch {
  readonly #ask: Ask
  readonly #conditions: Record<string, unknown>
  /** The last reported state of each delivery. Settled ones are forgotten when no look can find them again. */
  readonly #known = new Map<string, { mark: string; pending: boolean }>()
  /** The time of the newest id seen, in epoch milliseconds by the server's clock. */
  #newestMs = 0
  #looks = 0

  constructor(ask: Ask, conditions: { webhookId?: string; eventType?: string } = {}) {
    this.#ask = ask
    this.#conditions = conditions
  }

  /** Reads the present state, so that only later changes are reported. */
  async begin(): Promise<void> {
    const [newest] = await this.#find<Mark>(MARKS, {}, { sort: [{ id: 'desc' }], limit: 1 })
    if (!newest) return
    this.#newestMs = timeOfId(newest.id)
    const recent = { id: { $gte: leastIdAt(this.#newestMs - FAR_OVERLAP_MS) } }
    for await (const page of this.#pages(recent, 'asc')) this.#noteAll(page)
    const pending = { id: { $gte: leastIdAt(this.#newestMs - PENDING_SINCE_MS) }, status: 'pending' }
    for await (const page of this.#pages(pending, 'desc')) {
      this.#noteAll(page)
      if (this.#known.size > MOST_PENDING_BEFORE) break
    }
  }

  /**
   * The changes since the last look in batches: new deliveries in the order of creation, then changed ones. A delivery
   * that was queued and sent meanwhile comes once. Changes not consumed when a request fails come again.
   */
  async *changes(): AsyncGenerator<DeliveryAtAGlance[]> {
    this.#looks += 1
    const pending = [...this.#known].flatMap(([id, { pending }]) => (pending ? [id] : [])).slice(0, PENDING_A_LOOK)
    const overlapMs = this.#looks % FAR_EVERY === 0 ? FAR_OVERLAP_MS : OVERLAP_MS
    const recent = { id: { $gte: leastIdAt(this.#newestMs - overlapMs) } }
    for await (const page of this.#pages(recent, 'asc')) yield* this.#changed(page)
    for (const ids of inPages(pending, MARKS_PAGE)) {
      const page = await this.#find<Mark>(MARKS, { id: { $in: ids } }, { sort: [{ id: 'asc' }], limit: ids.length })
      for (const id of ids) this.#toTheEnd(id)
      yield* this.#changed(page)
    }
    this.#forget()
  }

  /** Whether a delivery reported by the server differs from its last reported state. */
  note(delivery: DeliveryAtAGlance): boolean {
    const isChanged = this.#known.get(delivery.id)?.mark !== markOf(delivery)
    this.#noteAll([delivery])
    this.#forget()
    return isChanged
  }

  /** The deliveries of a page that differ from their last reported state. */
  async *#changed(page: Mark[]): AsyncGenerator<DeliveryAtAGlance[]> {
    const ids = page.filter(each => this.#known.get(each.id)?.mark !== markOf(each)).map(({ id }) => id)
    for (const some of inPages(ids, PAGE)) {
      const selector = { id: { $in: some } }
      const found = await this.#find<DeliveryAtAGlance>(DELIVERIES, selector, { sort: [{ id: 'asc' }], limit: PAGE })
      this.#noteAll(found)
      yield found
    }
  }

  async *#pages(condition: Record<string, unknown>, order: 'asc' | 'desc'): AsyncGenerator<Mark[]> {
    for (let after: string | undefined; ; ) {
      const from = after === undefined ? {} : { after }
      const page = await this.#find<Mark>(MARKS, condition, { sort: [{ id: order }], limit: MARKS_PAGE, ...from })
      yield page
      if (page.length < MARKS_PAGE) return
      after = page.at(-1)!.id
    }
  }

  async #find<Row>(document: string, condition: Record<string, unknown>, page: object): Promise<Row[]> {
    const query = { selector: { ...condition, ...this.#conditions }, ...page }
    return (await this.#ask<{ deliveries: Row[] }>(document, { query })).deliveries
  }

  #noteAll(page: Mark[]): void {
    for (const each of page) {
      this.#known.set(each.id, { mark: markOf(each), pending: each.status === 'pending' })
      this.#newestMs = Math.max(this.#newestMs, timeOfId(each.id))
    }
  }

  #toTheEnd(id: string): void {
    const known = this.#known.get(id)
    if (!known) return
    this.#known.delete(id)
    this.#known.set(id, known)
  }

  #forget(): void {
    for (const [id, { pending }] of this.#known) {
      if (!pending && timeOfId(id) < this.#newestMs - FAR_OVERLAP_MS) this.#known.delete(id)
    }
  }
}

const markOf = ({ status, attemptCount }: Mark): string => `${status} ${attemptCount}`

const inPages = function* <Item>(items: Item[], size: number): Generator<Item[]> {
  for (let from = 0; from < items.length; from += size) yield items.slice(from, from + size)
}

/** The least UUID of version 7 of a time. */
const leastIdAt = (ms: number): string => {
  const hex = Math.max(0, ms).toString(16).padStart(12, '0')
  return `${hex.slice(0, 8)}-${hex.slice(8)}-7000-8000-000000000000`
}
