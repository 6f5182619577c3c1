import { setTimeout as sleep } from 'node:timers/promises'
import type { Clock } from '../clock.ts'
import { type Database, isContention, marks, rows, run } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { lockFree } from '../database/lock-free.ts'
import type { Transaction } from '../database/transaction.ts'
import { tellOfInactive } from '../domain/notices.ts'
import { holdOf } from '../domain/pull-time.ts'
import { leaveActive } from '../domain/webhooks.ts'
import type { Log } from '../log.ts'
import type { Settlement } from './queue.ts'
import { endOf } from './settle.ts'

/** When to retry a webhook whose row another transaction has locked. */
const AGAIN_MS = 100
/**
 * One in this many tries waits briefly for the row, because under a constant stream of events it is never free. It
 * waits no longer, because others then wait behind it.
 */
const PATIENT_EACH = 5
const PATIENCE_MS = 150

const ONE_TRY = { againForMs: 0 }

/** What an endpoint asked for by a 429. */
type Asked = {
  /** The webhook's epoch at that time. */
  epoch: number
  heldUntil: number
  /** There was no Retry-After. */
  isEnd: boolean
  tries: number
  written: (() => void)[]
}

type Tools = { database: Database; clock: Clock; log: Log }

/**
 * Writes the effect of answers on webhooks: held for a time, or inactive. Several answers of one webhook are one write.
 * This is separate from their effect on deliveries, so that a locked webhook row delays only that webhook.
 */
export class WebhookEffects {
  readonly #tools: Tools
  readonly #waiting = new Map<string, Asked>()
  #isWriting = false

  constructor(tools: Tools) {
    this.#tools = tools
  }

  /** Resolves when the effect of an answer on its webhook is written: at once for most answers. */
  write(settlement: Settlement): Promise<void> {
    const { job, outcome } = settlement
    const isEnd = outcome.status === 'cancelled'
    const holdMs = outcome.status === 'pending' ? outcome.holdWebhookMs : undefined
    if (!isEnd && holdMs === undefined) return Promise.resolve()
    return new Promise(resolve => {
      const holding = { transport: job.webhook.transport, request_sealed: job.requestSealed }
      const heldUntil = holdOf(holding, endOf(settlement) + (holdMs ?? 0))!
      this.#put(job.webhookId, { epoch: job.epoch, heldUntil, isEnd, tries: 0, written: [resolve] })
      if (!this.#isWriting) void this.#writeAll()
    })
  }

  async #writeAll(): Promise<void> {
    const { log } = this.#tools
    this.#isWriting = true
    for (let isLogged = false; this.#waiting.size > 0; ) {
      const batch = [...this.#waiting]
      this.#waiting.clear()
      const left = await this.#writeSome(batch).catch(error => {
        if (!isLogged && !isContention(error)) log.error({ err: error }, 'what endpoints asked for waits to be written')
        isLogged ||= !isContention(error)
        return batch
      })
      const ids = new Set(left.map(([id]) => id))
      for (const [id, { written }] of batch) if (!ids.has(id)) for (const resolve of written) resolve()
      for (const [id, asked] of left) this.#put(id, { ...asked, tries: asked.tries + 1 })
      if (left.length > 0) await sleep(AGAIN_MS)
    }
    this.#isWriting = false
  }

  /** @returns those whose row another transaction had locked */
  async #writeSome(batch: [string, Asked][]): Promise<[string, Asked][]> {
    const holds = batch.filter(([, { isEnd }]) => !isEnd)
    const free = holds.length === 0 ? new Set() : await this.#hold(holds)
    const left = holds.filter(([id]) => !free.has(id))
    for (const end of batch.filter(([, { isEnd }]) => isEnd)) if (!(await this.#deactivate(...end))) left.push(end)
    const patient = left.findIndex(([, { tries }]) => tries % PATIENT_EACH === PATIENT_EACH - 1)
    if (patient >= 0 && (await this.#waitFor(...left[patient]!))) left.splice(patient, 1)
    return left
  }

  /** @returns whether it was written after a wait for its row */
  async #waitFor(id: string, asked: Asked): Promise<boolean> {
    try {
      if (asked.isEnd) await this.#deactivate(id, asked, true)
      else await this.#hold([[id, asked]], true)
      return true
    } catch (error) {
      if (isContention(error)) return false
      throw error
    }
  }

  /** @returns the ids of those that are written */
  #hold(holds: [string, Asked][], isPatient = false): Promise<Set<string>> {
    return this.#tools.database.transaction(async trx => {
      const ids = holds.map(([id]) => id)
      const free = await lock(trx, ids, isPatient)
      for (const [id, { epoch, heldUntil }] of holds.filter(([id]) => free.has(id))) {
        await run(
          trx,
          `UPDATE webhooks SET held_until = ?
           WHERE id = ? AND status = 'active' AND epoch = ? AND (held_until IS NULL OR held_until < ?)`,
          [heldUntil, id, epoch, heldUntil],
        )
      }
      return free
    }, ONE_TRY)
  }

  /** @returns whether it is written */
  async #deactivate(id: string, { epoch }: Asked, isPatient = false): Promise<boolean> {
    const { database, clock, log } = this.#tools
    let hasLeft = false
    const isWritten = await database.transaction(async trx => {
      if ((await lock(trx, [id], isPatient)).size === 0) return isPatient
      const to = { status: 'inactive', reason: THROTTLED_WITHOUT_RETRY_AFTER } as const
      const now = clock.now()
      hasLeft = await leaveActive(trx, id, { from: { status: 'active', epoch }, to }, now)
      if (hasLeft) await tellOfInactive(trx, id, now)
      return true
    }, ONE_TRY)
    if (hasLeft) log.warn({ webhookId: id, reason: THROTTLED_WITHOUT_RETRY_AFTER }, 'a webhook has become inactive')
    return isWritten
  }

  #put(id: string, asked: Asked): void {
    const other = this.#waiting.get(id)
    const written = [...(other?.written ?? []), ...asked.written]
    // A request from a past epoch no longer counts.
    const latest = !other || other.epoch < asked.epoch ? asked : other
    const both = other?.epoch === asked.epoch
    this.#waiting.set(id, {
      ...latest,
      heldUntil: both ? Math.max(other.heldUntil, asked.heldUntil) : latest.heldUntil,
      isEnd: both ? other.isEnd || asked.isEnd : latest.isEnd,
      tries: Math.max(other?.tries ?? 0, asked.tries),
      written,
    })
  }
}

/** @returns the ids of the webhooks whose rows it has locked: those that are free or, with a wait, all that exist */
const lock = async (trx: Transaction, ids: string[], isPatient: boolean): Promise<Set<string>> => {
  const { forUpdate, within } = dialectOf(trx)
  const select = (keys: string) => `SELECT id FROM webhooks WHERE id IN (${keys}) ORDER BY id`
  const found = isPatient
    ? await rows<{ id: string }>(trx, within(PATIENCE_MS, select(marks(ids)) + forUpdate), ids)
    : await lockFree<{ id: string }>(trx, ids, select)
  return new Set(found.map(({ id }) => id))
}

const THROTTLED_WITHOUT_RETRY_AFTER =
  'The endpoint answered 429 without a readable Retry-After. Set the status to active when it can receive again, ' +
  'then recover what it missed.'
