import { type DeliveryAtAGlance, glanceFields } from './timeline.ts'

type Ask = <Data>(document: string, variables: object) => Promise<Data>

const DOCUMENT = `query ($query: MangoQuery) {
  deliveries(query: $query) { ${glanceFields} }
}`

const PAGE = 500
/** Ids are made before the transaction that stores them ends: one may show up after others that are later. */
const OVERLAP_MS = 2_000
/** The retries of the schedule take 85 minutes: what is older and still pending was asked to wait. */
const PENDING_SINCE_MS = 90 * 60_000

/**
 * What changes among deliveries, found by asking for it now and then. New ones are found by their ids, which are in the order
 * of time (RFC 9562 section 5.7) and indexed, and those that are pending by asking for them, so that a look costs the same in
 * a table of millions.
 */
export class DeliveryWatch {
  readonly #ask: Ask
  readonly #conditions: Record<string, unknown>
  /** As last seen. Settled ones are forgotten once no look can find them again. */
  readonly #known = new Map<string, { state: string; pending: boolean }>()
  /** The time of the newest id seen, in epoch milliseconds by the server's clock. */
  #newestMs = 0

  constructor(ask: Ask, conditions: { webhookId?: string; eventType?: string } = {}) {
    this.#ask = ask
    this.#conditions = conditions
  }

  /** Takes in what there is already, so that only what changes from here on is told. */
  async begin(): Promise<void> {
    const [newest] = await this.#find({}, { sort: [{ id: 'desc' }], limit: 1 })
    if (!newest) return
    this.#newestMs = timeOfId(newest.id)
    for (const each of await this.#fresh()) this.#note(each)
    const pending = { id: { $gte: leastIdAt(this.#newestMs - PENDING_SINCE_MS) }, status: 'pending' }
    for (const each of await this.#find(pending, { sort: [{ id: 'desc' }], limit: PAGE })) this.#note(each)
  }

  /** What has changed since the last look, in the order of creation; a delivery that was queued and sent meanwhile comes once. */
  async changes(): Promise<DeliveryAtAGlance[]> {
    const pending = [...this.#known].flatMap(([id, { pending }]) => (pending ? [id] : [])).slice(0, PAGE)
    const changed = (await this.#fresh()).filter(each => this.#note(each))
    const asked = pending.length === 0 ? [] : await this.#find({ id: { $in: pending } }, { sort: [{ id: 'asc' }] })
    for (const id of pending) this.#toTheEnd(id)
    changed.push(...asked.filter(each => this.#note(each)))
    this.#forget()
    return changed.sort((a, b) => (a.id < b.id ? -1 : 1))
  }

  async #fresh(): Promise<DeliveryAtAGlance[]> {
    const since = leastIdAt(this.#newestMs - OVERLAP_MS)
    const found: DeliveryAtAGlance[] = []
    for (let after: string | undefined; ; after = found.at(-1)!.id) {
      const page = await this.#find(
        { id: { $gte: since } },
        { sort: [{ id: 'asc' }], limit: PAGE, ...(after !== undefined && { after }) },
      )
      found.push(...page)
      if (page.length < PAGE) return found
    }
  }

  async #find(condition: Record<string, unknown>, page: object): Promise<DeliveryAtAGlance[]> {
    const query = { selector: { ...condition, ...this.#conditions }, ...page }
    const { deliveries } = await this.#ask<{ deliveries: DeliveryAtAGlance[] }>(DOCUMENT, { query })
    return deliveries
  }

  /** Whether it differs from what was last seen of it. */
  #note(delivery: DeliveryAtAGlance): boolean {
    const { id, status, attemptCount, attempts } = delivery
    const state = `${status} ${attemptCount} ${attempts[0]?.statusCode} ${attempts[0]?.failure}`
    const changed = this.#known.get(id)?.state !== state
    this.#known.set(id, { state, pending: status === 'pending' })
    this.#newestMs = Math.max(this.#newestMs, timeOfId(id))
    return changed
  }

  /** Where more are pending than one look asks for, the others have their turn at the next. */
  #toTheEnd(id: string): void {
    const known = this.#known.get(id)
    if (!known) return
    this.#known.delete(id)
    this.#known.set(id, known)
  }

  #forget(): void {
    for (const [id, { pending }] of this.#known) {
      if (!pending && timeOfId(id) < this.#newestMs - OVERLAP_MS) this.#known.delete(id)
    }
  }
}

/** A UUID of version 7 begins with its time in milliseconds, 48 bits. */
const timeOfId = (id: string): number => Number.parseInt(id.slice(0, 8) + id.slice(9, 13), 16)

/** The least UUID of version 7 of a time. */
const leastIdAt = (ms: number): string => {
  const hex = Math.max(0, ms).toString(16).padStart(12, '0')
  return `${hex.slice(0, 8)}-${hex.slice(8)}-7000-8000-000000000000`
}
