import { marks, Overtaken, rows, run, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { newId } from '../ids.ts'
import { beginAgain, GIVE_UP_MS, type HealingRow, NEVER, pingWait, trialOf } from './missed.ts'
import { epochTimeOf } from './pull-time.ts'
import { CLOCKS_APART_MS, queueMissed } from './recovery.ts'
import type { WebhookRow } from './resources.ts'

// What is done for a webhook that heals itself; missed.ts has the rules of its row.

/** Longer than a ping, and than a page of missed events. */
export const HEALING_LEASE_MS = 60_000
/** The first events of a trial, and how long it is left alone before it is looked at, from its first look on. */
const TRIAL = { events: 10, lookAfterMs: 5_000, longestMs: 60_000 }

/** Events of one page. A process rests between two, so that others' deliveries do not wait for what is healed. */
const PAGE_EVENTS = 100

/** A webhook that is due, under the lease of this process. */
export type Healing = { row: HealingRow; webhook: WebhookRow; lease: string }

/** Rows that one look reads, those that it ends or postpones, and those that it takes of one access token. */
const LOOKED_AT = 20_000
const IDLE = 500
const OF_TOKEN = 4

type DueRow = Pick<HealingRow, 'webhook_id' | 'began_at' | 'answered_at'> &
  Pick<WebhookRow, 'access_token_id' | 'status' | 'recovery' | 'deleted_at'>

/**
 * Takes up to `limit` webhooks that are due: of each access token one, then of each a second, so that none waits for
 * the pings of another. Ends what is over, postpones what is not active, and leaves alone whose endpoint has asked to
 * wait.
 */
export const takeDue = async (trx: Sql, now: number, limit: number): Promise<Healing[]> => {
  const due = await rows<DueRow>(
    trx,
    `SELECT r.webhook_id, r.began_at, r.answered_at, w.access_token_id, w.status, w.recovery, w.deleted_at
     FROM webhook_recoveries r ${dialectOf(trx).useIndex('webhook_recoveries_by_due_time')}
     LEFT JOIN webhooks w ON w.id = r.webhook_id
     WHERE r.due_at <= ? ORDER BY r.due_at LIMIT ${LOOKED_AT}`,
    [now],
  )
  const { idle = [], active = [] } = Object.groupBy(due, row =>
    row.status === 'active' && isAutomatic(row) && !isTooLate(row, now) ? 'active' : 'idle',
  )
  const chosen = [...idle.slice(0, IDLE), ...inTurn(active).slice(0, limit)].map(row => row.webhook_id)
  if (chosen.length === 0) return []
  const free = await rows<HealingRow>(
    trx,
    `SELECT * FROM webhook_recoveries WHERE webhook_id IN (${marks(chosen)}) AND due_at <= ?
     ORDER BY webhook_id${dialectOf(trx).forUpdateSkipLocked}`,
    [...chosen, now],
  )
  if (free.length === 0) return []
  const ids = free.map(row => row.webhook_id)
  const found = await rows<WebhookRow>(trx, `SELECT * FROM webhooks WHERE id IN (${marks(ids)})`, ids)
  const webhooks = new Map(found.map(webhook => [webhook.id, webhook]))
  const taken: Healing[] = []
  for (const row of free) {
    const webhook = webhooks.get(row.webhook_id)
    if (!heals(webhook)) await run(trx, 'DELETE FROM webhook_recoveries WHERE webhook_id = ?', [row.webhook_id])
    else if (isTooLate(row, now)) await giveUp(trx, row, now)
    else if (webhook.status !== 'active') await postpone(trx, row, now)
    else if (row.answered_at === null && epochTimeOf(webhook.held_until ?? 0) > now) {
      const until = epochTimeOf(webhook.held_until ?? 0)
      await run(trx, 'UPDATE webhook_recoveries SET due_at = ? WHERE webhook_id = ?', [until, row.webhook_id])
    } else {
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

/** The first due of each access token, the earliest first; then the second of each, up to `OF_TOKEN`. */
const inTurn = (due: DueRow[]): DueRow[] => {
  const ofToken = new Map<string, number>()
  const rounds: DueRow[][] = Array.from({ length: OF_TOKEN }, () => [])
  for (const row of due) {
    const round = ofToken.get(row.access_token_id) ?? 0
    ofToken.set(row.access_token_id, round + 1)
    rounds[round]?.push(row)
  }
  return rounds.flat()
}

const isTooLate = (row: Pick<HealingRow, 'began_at' | 'answered_at'>, now: number): boolean =>
  row.answered_at === null && now >= row.began_at + GIVE_UP_MS

const giveUp = (trx: Sql, row: HealingRow, now: number): Promise<number> =>
  run(trx, 'UPDATE webhook_recoveries SET due_at = ?, lease = NULL, given_up_at = ? WHERE webhook_id = ?', [
    NEVER,
    now,
    row.webhook_id,
  ])

/** Whether what is dropped for a webhook is sent again by itself. */
export const heals = (webhook: WebhookRow | undefined): webhook is WebhookRow =>
  webhook !== undefined && isAutomatic(webhook)

const isAutomatic = (webhook: Pick<WebhookRow, 'deleted_at' | 'recovery'>): boolean =>
  webhook.deleted_at === null && webhook.recovery === 'automatic'

/** Waits for the next ping: this one had no 200, or the webhook was not active. */
const postpone = async (trx: Sql, row: HealingRow, now: number, askedMs = 0): Promise<void> => {
  const pings = row.pings + 1
  await run(
    trx,
    `UPDATE webhook_recoveries SET pings = ?, due_at = ?, lease = NULL, answered_at = NULL, queued = 0,
       missed_since = CASE WHEN again_since < missed_since THEN again_since ELSE missed_since END, again_since = NULL
     WHERE webhook_id = ?`,
    [pings, now + Math.max(pingWait(pings), askedMs), row.webhook_id],
  )
}

/** The webhook that was taken, with its row, both locked, if the lease still holds. The webhook is locked first. */
const locked = async (
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

/**
 * The ping had no 200: the next one is due later, not before the endpoint asked for, or at once if it has to go to
 * another URL.
 */
export const pingFailed = async (trx: Sql, healing: Healing, now: number, askedMs = 0): Promise<void> => {
  const found = await locked(trx, healing)
  if (!found) return
  if (found.webhook?.url === healing.webhook.url) await postpone(trx, found.now, now, askedMs)
  else await release(trx, healing, now)
}

/** Gives the webhook back to whoever looks next. */
export const release = async (trx: Sql, { row, lease }: Healing, dueAt: number): Promise<void> => {
  await run(trx, 'UPDATE webhook_recoveries SET lease = NULL, due_at = ? WHERE webhook_id = ? AND lease = ?', [
    dueAt,
    row.webhook_id,
    lease,
  ])
}

/** The ping was answered with 200: what was missed is queued now. Returns false if another URL has to answer. */
export const pingAnswered = async (trx: Sql, healing: Healing, now: number): Promise<boolean> => {
  const found = await locked(trx, healing)
  if (!found) return false
  if (found.webhook?.url !== healing.webhook.url || found.webhook.status !== 'active') {
    await release(trx, healing, now)
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
 * @returns whether there is more, or why there is not: everything is queued, the webhook is no longer active, another
 *   process has it, or a trial is under way
 */
export const queuePage = async (
  trx: Sql,
  healing: Healing,
  now: () => number,
): Promise<'more' | 'complete' | 'stopped'> => {
  const { lease } = healing
  const id = healing.row.webhook_id
  const [webhook] = await rows<WebhookRow>(trx, `SELECT * FROM webhooks WHERE id = ?${dialectOf(trx).forUpdate}`, [id])
  // Not locked before the lines of the deliveries, which the transaction of a drop locks first too.
  const read = 'SELECT * FROM webhook_recoveries WHERE webhook_id = ? AND lease = ?'
  const [row] = await rows<HealingRow>(trx, read, [id, lease])
  if (!row) return 'stopped'
  if (!heals(webhook) || webhook.status !== 'active') {
    await postpone(trx, row, now())
    return 'stopped'
  }
  if (row.on_trial === 1 && row.queued > 0 && !(await hasPassed(trx, healing, row, now()))) return 'stopped'
  const progress = { after: { time: row.after_time!, id: row.after_id! }, end: row.until_time! }
  const isTrial = row.on_trial === 1 && row.queued === 0
  const { events, after, isComplete } = await queueMissed(
    trx,
    webhook,
    progress,
    now,
    isTrial ? TRIAL.events : PAGE_EVENTS,
  )
  const time = now()
  const changed = await run(
    trx,
    `UPDATE webhook_recoveries SET after_time = ?, after_id = ?, queued = queued + ?, due_at = ?
     WHERE webhook_id = ? AND lease = ?`,
    [after.time, after.id, events.length, time + HEALING_LEASE_MS, id, lease],
  )
  if (changed === 0) throw new Overtaken()
  if (isComplete) {
    const [complete] = await rows<HealingRow>(trx, read, [id, lease])
    await end(trx, complete!, time)
    return 'complete'
  }
  if (!isTrial || events.length === 0) return 'more'
  await release(trx, healing, time + TRIAL.lookAfterMs)
  return 'stopped'
}

/** Ends a trial that has passed or failed, and leaves one that is under way for a while. */
const hasPassed = async (trx: Sql, healing: Healing, row: HealingRow, now: number): Promise<boolean> => {
  const is = await trialOf(trx, row)
  if (is === 'passed')
    await run(trx, 'UPDATE webhook_recoveries SET on_trial = 0 WHERE webhook_id = ?', [row.webhook_id])
  else if (is === 'failed') await postpone(trx, row, now)
  // Twice as long each time.
  else await release(trx, healing, now + Math.min(TRIAL.longestMs, Math.max(TRIAL.lookAfterMs, now - row.answered_at!)))
  return is === 'passed'
}

/** Everything is queued. What was dropped meanwhile begins anew. */
const end = async (trx: Sql, row: HealingRow, now: number): Promise<void> => {
  if (row.again_since !== null) {
    await beginAgain(trx, row, row.again_since, now)
    return
  }
  await run(trx, 'UPDATE webhook_recoveries SET recovered_at = ?, due_at = ?, lease = NULL WHERE webhook_id = ?', [
    now,
    NEVER,
    row.webhook_id,
  ])
}
