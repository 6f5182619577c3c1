import { rest } from '../beat.ts'
import type { Clock } from '../clock.ts'
import { type Database, partOfMany } from '../database/connect.ts'
import type { Transaction } from '../database/transaction.ts'
import { type Healing, pingAnswered, pingFailed, queuePage, release, takeDue } from '../domain/healing.ts'
import type { WebhookRow } from '../domain/resources.ts'
import { sweepUntil } from '../domain/sweep.ts'
import type { Log } from '../log.ts'

/** How long a process waits before it looks for webhooks that are due again, after it has found none, or some. */
const EVERY_MS = 5_000
const NEXT_MS = 1_000
/** The most pings of a process in flight. */
const AT_ONCE = 16
/** How long one turn queues what a webhook has missed, and how long it rests after each page. */
const TURN_MS = 15_000
const REST_MS = 400

export type HealerTools = {
  database: Database
  clock: Clock
  log: Log
  /** Pings an endpoint. Resolves to what records a ping that was answered with 200, or to the wait that it asks for. */
  ping(webhook: WebhookRow): Promise<((trx: Transaction) => Promise<void>) | number>
  /** Called when deliveries were queued. */
  onQueued: () => void
  /** Called for each ping, and for each webhook whose missed events are all queued. */
  onHealing?: (what: 'answered' | 'unanswered' | 'recovered') => void
  everyMs?: number
  restMs?: number
}

/**
 * Heals the webhooks that are due until it is stopped. Any number of processes do so at once: each webhook is in the
 * hands of one. Pings have places of their own, so an endpoint that hangs delays nothing else.
 */
export const startHealer = (tools: HealerTools): { stop(): Promise<void> } => {
  const { log, everyMs = EVERY_MS } = tools
  const stopping = new AbortController()
  const running = (async () => {
    for (let isLogged = false; !stopping.signal.aborted; ) {
      let found = 0
      try {
        found = await healSome(tools, stopping.signal)
        isLogged = false
      } catch (error) {
        if (!isLogged) log.warn({ err: error }, 'webhooks cannot be healed; trying until they can')
        isLogged = true
      }
      const restMs = found > 0 ? Math.min(NEXT_MS, everyMs) : everyMs
      await rest(restMs, stopping.signal)
    }
  })()
  return {
    async stop() {
      stopping.abort()
      await running
    },
  }
}

/** Takes some webhooks that are due, and does what each needs. Returns how many there were. */
export const healSome = async (
  tools: HealerTools,
  stop: AbortSignal = new AbortController().signal,
): Promise<number> => {
  const { database, clock } = tools
  const taken = await database.transaction(trx => takeDue(trx, clock.now(), AT_ONCE))
  await Promise.all(taken.map(healing => heal(tools, healing, stop)))
  return taken.length
}

const heal = async (tools: HealerTools, healing: Healing, stop: AbortSignal): Promise<void> => {
  const { database, clock, log, onHealing = () => {} } = tools
  try {
    if (healing.row.answered_at === null) {
      const record = await tools.ping(healing.webhook)
      const isUnanswered = typeof record === 'number'
      onHealing(isUnanswered ? 'unanswered' : 'answered')
      const isAnswered = await database.transaction(async trx => {
        if (isUnanswered) await pingFailed(trx, healing, clock.now(), record)
        else if (await pingAnswered(trx, healing, clock.now())) {
          await record(trx)
          return true
        }
        return false
      })
      if (!isAnswered) return
    }
    await queueAll(tools, healing, stop)
  } catch (error) {
    // The lease runs out, and the webhook is due again.
    log.warn({ err: error, webhookId: healing.webhook.id }, 'a webhook could not be healed; trying again')
  }
}

/** Queues what a webhook has missed, page by page. After a turn others have theirs, and it is due again. */
const queueAll = async (
  { database, clock, onQueued, onHealing = () => {}, restMs = REST_MS }: HealerTools,
  healing: Healing,
  stop: AbortSignal,
): Promise<void> => {
  const deadline = performance.now() + TURN_MS
  // Deliveries of a past epoch that are still pending count as missed once they are cancelled.
  await sweepUntil(database, clock, healing.webhook.id, deadline)
  while (performance.now() < deadline && !stop.aborted) {
    const is = await partOfMany(() => database.transaction(trx => queuePage(trx, healing, clock.now)))
    onQueued()
    if (is === 'complete') onHealing('recovered')
    if (is !== 'more') return
    await rest(restMs, stop)
  }
  await database.transaction(trx => release(trx, healing, clock.now()))
}
