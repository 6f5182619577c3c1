import { Overtaken, rows, run, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { newId } from '../ids.ts'
import { BEGIN, type HealingRow, NEVER, pingWait } from './missed.ts'
import { CLOCKS_APART_MS, queueMissed } from './recovery.ts'
import type { WebhookRow } from './resources.ts'

// What is done for a webhook that heals itself; missed.ts has the rules of its row.

/** Longer than a ping, and than a page of missed events. */
export const HEALING_LEASE_MS = 60_000
/** How long an endpoint is pinged that acknowledges nothing. */
export const GIVE_UP_MS = 7 * 24 * 3600 * 1000

/** A webhook that is due, under the lease of this process. */
export type Healing = { row: HealingRow; webhook: WebhookRow; lease: string }

/** Rows that one look reads, and those that it takes of one access token, so that others do not wait for its pings. */
const LOOKED_AT = 500
const OF_TOKEN = 4

/** Takes up to `limit` webhooks that are due, tenants side by side. Ends what is over, postpones what is not active. */
export const takeDue = async (trx: Sql, now: number, limit: number): Promise<Healing[]> => {
  const due = await rows<HealingRow>(
    trx,
    `SELECT * FROM webhook_recoveries ${dialectOf(trx).useIndex('webhook_recoveries_by_due_time')}
     WHERE due_at <= ? ORDER BY due_at LIMIT ${LOOKED_AT}${dialectOf(trx).forUpdateSkipLocked}`,
    [now],
  )
  if (due.length === 0) return []
  const found = await rows<WebhookRow>(
    trx,
    `SELECT * FROM webhooks WHERE id IN (${due.map(() => '?').join(', ')})`,
    due.map(row => row.webhook_id),
  )
  const webhooks = new Map(found.map(webhook => [webhook.id, webhook]))
  const taken: Healing[] = []
  const ofToken = new Map<string, number>()
  for (const row of due) {
    const webhook = webhooks.get(row.webhook_id)
    if (!heals(webhook)) {
      await run(trx, 'DELETE FROM webhook_recoveries WHERE webhook_id = ?', [row.webhook_id])
    } else if (row.answered_at === null && now >= row.began_at + GIVE_UP_MS) {
      await run(trx, 'UPDATE webhook_recoveries SET due_at = ?, lease = NULL, given_up_at = ? WHERE webhook_id = ?', [
        NEVER,
        now,
        row.webhook_id,
      ])
    } else if (webhook.status !== 'active') {
      await postpone(trx, row, now)
    } else {
      const count = ofToken.get(webhook.access_token_id) ?? 0
      if (count === OF_TOKEN || taken.length === limit) continue
      ofToken.set(webhook.access_token_id, count + 1)
      const lease = newId(now)
      const mine = await run(
        trx,
        'UPDATE webhook_recoveries SET lease = ?, due_at = ? WHERE webhook_id = ? AND due_at = ?',
        [lease, now + HEALING_LEASE_MS, row.webhook_id, row.due_at],
      )
      if (mine > 0) taken.push({ row, webhook, lease })
    }
  }
  return taken
}

/** Whether what is dropped for a webhook is sent again by itself. */
export const heals = (webhook: WebhookRow | undefined): webhook is WebhookRow =>
  webhook !== undefined &&
  webhook.deleted_at === null &&
  webhook.recovery === 'automatic' &&
  webhook.transport === 'push'

/** Waits for the next ping: this one had no 200, or the webhook was not active. */
const postpone = async (trx: Sql, row: HealingRow, now: number): Promise<void> => {
  const pings = row.pings + 1
  await run(
    trx,
    `UPDATE webhook_recoveries SET pings = ?, due_at = ?, lease = NULL, answered_at = NULL,
       missed_since = CASE WHEN again_since < missed_since THEN again_since ELSE missed_since END, again_since = NULL
     WHERE webhook_id = ?`,
    [pings, now + pingWait(pings), row.webhook_id],
  )
}

/** The webhook that was taken, with its row, both locked, if the lease still holds. The webhook is locked first. */
const held = async (
  trx: Sql,
  { row, lease }: Healing,
): Promise<{ now: HealingRow; webhook: WebhookRow | undefined } | undefined> => {
  const { forUpdate } = dialectOf(trx)
  const [webhook] = await rows<WebhookRow>(trx, `SELECT * FROM webhooks WHERE id = ?${forUpdate}`, [row.webhook_id])
  const [now] = await rows<HealingRow>(
    trx,
    `SELECT * FROM webhook_recoveries WHERE webhook_id = ? AND lease = ?${forUpdate}`,
    [row.webhook_id, lease],
  )
  return now && { now, webhook }
}

/** The ping had no 200: the next one is due later. */
export const pingFailed = async (trx: Sql, healing: Healing, now: number): Promise<void> => {
  const found = await held(trx, healing)
  if (found) await postpone(trx, found.now, now)
}

/** The ping was answered with 200: what was missed is queued now. Returns false if another URL has to answer. */
export const pingAnswered = async (trx: Sql, healing: Healing, now: number): Promise<boolean> => {
  const found = await held(trx, healing)
  if (!found) return false
  if (found.webhook?.url !== healing.webhook.url || found.webhook.status !== 'active') {
    await run(trx, 'UPDATE webhook_recoveries SET lease = NULL, due_at = ? WHERE webhook_id = ?', [
      now,
      healing.row.webhook_id,
    ])
    return false
  }
  await run(
    trx,
    `UPDATE webhook_recoveries SET answered_at = ?, after_time = missed_since, after_id = '', until_time = ?, due_at = ?
     WHERE webhook_id = ?`,
    [now, now + CLOCKS_APART_MS, now + HEALING_LEASE_MS, healing.row.webhook_id],
  )
  return true
}

/**
 * Queues the next page of what was missed, by the rule of `recoverDeliveries`.
 *
 * @returns whether there is more, or why there is not: everything is queued, the webhook is no longer active, or
 *   another process has it
 */
export const queuePage = async (
  trx: Sql,
  { row: { webhook_id: id }, lease }: Healing,
  now: () => number,
): Promise<'more' | 'complete' | 'stopped'> => {
  const [webhook] = await rows<WebhookRow>(trx, `SELECT * FROM webhooks WHERE id = ?${dialectOf(trx).forUpdate}`, [id])
  // Not locked before the lines of the deliveries, which the transaction of a drop locks first too.
  const read = 'SELECT * FROM webhook_recoveries WHERE webhook_id = ? AND lease = ?'
  const [row] = await rows<HealingRow>(trx, read, [id, lease])
  if (!row) return 'stopped'
  if (!heals(webhook) || webhook.status !== 'active') {
    await postpone(trx, row, now())
    return 'stopped'
  }
  const progress = { after: { time: row.after_time!, id: row.after_id! }, end: row.until_time! }
  const { events, after, isComplete } = await queueMissed(trx, webhook, progress, now)
  const time = now()
  const changed = await run(
    trx,
    `UPDATE webhook_recoveries SET after_time = ?, after_id = ?, queued = queued + ?, due_at = ?
     WHERE webhook_id = ? AND lease = ?`,
    [after.time, after.id, events.length, time + HEALING_LEASE_MS, id, lease],
  )
  if (changed === 0) throw new Overtaken()
  if (!isComplete) return 'more'
  const [complete] = await rows<HealingRow>(trx, read, [id, lease])
  await end(trx, complete!, time)
  return 'complete'
}

/** Everything is queued. What was dropped meanwhile begins anew. */
const end = async (trx: Sql, row: HealingRow, now: number): Promise<void> => {
  if (row.again_since !== null) {
    await run(trx, `UPDATE webhook_recoveries SET ${BEGIN} WHERE webhook_id = ?`, [
      row.again_since,
      now + pingWait(row.pings),
      row.webhook_id,
    ])
    return
  }
  await run(trx, 'UPDATE webhook_recoveries SET recovered_at = ?, due_at = ?, lease = NULL WHERE webhook_id = ?', [
    now,
    NEVER,
    row.webhook_id,
  ])
}
