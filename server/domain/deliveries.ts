import { timeOfId } from '../../shared/time.ts'
import type { EventType, WebhookTransport } from '../../shared/vocabulary.ts'
import { inOneTrip, marks, run, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { newId } from '../ids.ts'
import { markHours } from './delivery-hours.ts'
import {
  enterLines,
  type InLine,
  inLockedLines,
  type LockedLines,
  leaveLines,
  lockLines,
  NEVER,
  type OrderedWebhook,
} from './lines.ts'
import { scaleOf } from './pull-time.ts'

// A delivery is `pending` exactly while it has a row in `delivery_queue`. Both change in one transaction, only here and
// in the settle (`delivery/settle.ts`), which records the results of attempts.

const ROWS_A_STATEMENT = 500

/** A webhook that may receive deliveries, locked so until the transaction ends. */
export type ActiveWebhook = OrderedWebhook & Pulled & { epoch: number }

/** Whether clients take its deliveries. */
type Pulled = { transport: WebhookTransport }

/** An active webhook with everything needed to send to it. */
export type SendableWebhook = ActiveWebhook & {
  url: string
  request_sealed: string | null
  access_token_id: string
  held_until: number | null
}

/** A delivery that is being queued, with everything needed to send it. */
export type FreshDelivery = {
  id: string
  event: { id: string; type: EventType; createdAt: number; payload: string; traceparent: string | null }
  webhook: SendableWebhook
  /** The line in which it has the turn, if it keeps an order. */
  line: string | null
}

export type Lease = {
  id: string
  /** On the scale of taken deliveries if a client has it. */
  end: number
  /** Who has taken it, if a client has: see `delivery/pull/taken.ts`. */
  taken?: string
}

/** Sends the deliveries of one transaction right after its commit, as far as this process has places or clients. */
export type AfterCommit = {
  /** Takes the deliveries that get a place or a client, and returns their leases by delivery. */
  take(fresh: FreshDelivery[]): ReadonlyMap<string, Lease>
  /** Whether it takes care of everything queued, even without a place, so that nobody else has to look. */
  readonly seesToAll: boolean
}

/**
 * Inserts pending deliveries, due now and in no line, and returns their ids in the order of `owed`.
 *
 * @param lease if given, the caller has claimed the first attempt from the start, until `end`
 */
export const enqueue = async (
  trx: Sql,
  owed: { event: { id: string; type: EventType }; webhook: Pulled & { id: string; epoch: number } }[],
  now: number,
  lease?: Lease,
): Promise<string[]> => {
  const added = owed.map(one => ({ id: newId(now), ...one, lease, line: null, waits: false }))
  await insertPending(trx, added, now, false)
  return added.map(delivery => delivery.id)
}

/** An event to queue again. */
export type PastEvent = { id: string; type: EventType; createdAt: number; projectId: string | null }

/** Inserts pending deliveries of past events. They come after new ones, and keep their order if the webhook has one. */
export const enqueueRecovered = async (
  trx: Sql,
  events: PastEvent[],
  webhook: ActiveWebhook,
  now: () => number,
): Promise<void> => {
  const { lines } = await lockLines(
    trx,
    events.map(({ projectId }) => ({ webhook, projectId })),
    now,
  )
  const time = now()
  const added = events.map(event => ({ id: newId(time), event, webhook, lease: undefined }))
  await insertPending(trx, await enterLines(trx, lines, added), time, true)
}

/**
 * Inserts the pending deliveries of new events of one time; `afterCommit` leases those that it takes from the start.
 *
 * @param lines the lines of the events' projects that keep an order
 */
export const enqueueFresh = async (
  trx: Sql,
  wanted: { event: FreshDelivery['event'] & { projectId: string | null }; webhooks: SendableWebhook[] }[],
  { lines, afterCommit }: { lines: LockedLines; afterCommit: AfterCommit | undefined },
): Promise<void> => {
  const deliveries = wanted.flatMap(({ event, webhooks }) =>
    webhooks.map(webhook => ({ id: newId(event.createdAt), event, webhook })),
  )
  if (deliveries.length === 0) return
  const fresh = await enterLines(trx, lines, deliveries)
  const leases = afterCommit?.take(fresh.filter(({ waits }) => !waits))
  const added = fresh.map(delivery => ({ ...delivery, lease: leases?.get(delivery.id) }))
  await insertPending(trx, added, fresh[0]!.event.createdAt, false)
}

type Pending = {
  id: string
  event: { id: string; type: EventType }
  webhook: Pulled & { id: string; epoch: number }
  lease: Lease | undefined
  line: string | null
  /** Whether it waits for its turn in the line. */
  waits: boolean
}

const insertPending = async (trx: Sql, added: Pending[], now: number, recovered: boolean): Promise<void> => {
  for (let from = 0; from < added.length; from += ROWS_A_STATEMENT) {
    const part = added.slice(from, from + ROWS_A_STATEMENT)
    const inserted = run(
      trx,
      `INSERT INTO deliveries (id, event_id, event_type, webhook_id, status, next_attempt_at, created_at)
       VALUES ${part.map(() => "(?, ?, ?, ?, 'pending', ?, ?)").join(', ')}`,
      part.flatMap(({ id, event, webhook, waits }) => [id, event.id, event.type, webhook.id, waits ? null : now, now]),
    )
    const queued = run(
      trx,
      `INSERT INTO delivery_queue
         (delivery_id, event_id, webhook_id, epoch, recovered, due_at, lease, attempt, line, taken)
       VALUES ${part.map(() => '(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)').join(', ')}`,
      part.flatMap(({ id, event, webhook, lease, line, waits }) => [
        id,
        event.id,
        webhook.id,
        webhook.epoch,
        recovered ? 1 : 0,
        waits ? NEVER : (lease?.end ?? scaleOf(webhook.transport) + now),
        lease?.id ?? null,
        lease ? 1 : 0,
        line,
        lease?.taken ?? null,
      ]),
    )
    await inOneTrip([inserted, queued])
  }
}

/** The given time, or the time of its creation if another process with a clock ahead created it later. */
export const FINISHED_AT = 'CASE WHEN created_at > ? THEN created_at ELSE ? END'

/** The part of a queue row that its end needs. */
export type OwedRow = InLine & { lease: string | null; attempt: number; taken: string | null }

/**
 * Cancels deliveries whose queue rows this transaction has locked, except those in a line that another transaction has
 * locked.
 */
export const cancel = async (trx: Sql, given: OwedRow[], now: number): Promise<void> => {
  const owed = await inLockedLines(trx, given)
  if (owed.length === 0) return
  const ids = owed.map(row => row.delivery_id)
  await logLost(trx, owed)
  await markHours(trx, ids, now)
  await run(
    trx,
    `UPDATE deliveries SET status = 'cancelled', next_attempt_at = NULL, finished_at = ${FINISHED_AT},
       attempt_count = COALESCE(
         (SELECT q.attempt FROM delivery_queue q WHERE q.delivery_id = deliveries.id), attempt_count)
     WHERE id IN (${marks(ids)}) AND status = 'pending'`,
    [now, now, ...ids],
  )
  await run(trx, `DELETE FROM delivery_queue WHERE delivery_id IN (${marks(ids)})`, ids)
  await leaveLines(trx, owed, now)
}

/** Logs attempts as lost whose process had leased these rows and never recorded a result. */
export const logLost = async (trx: Sql, owed: OwedRow[]): Promise<void> => {
  const lost = owed.filter(row => row.lease !== null)
  if (lost.length === 0) return
  // If a process has just recorded its attempt, that record counts.
  const recorded = dialectOf(trx).onDuplicateUpdate(['delivery_id', 'number'], ['number'])
  await run(
    trx,
    `INSERT INTO attempts (delivery_id, number, started_at, failure, failure_detail, evidence)
     VALUES ${lost.map(() => "(?, ?, ?, 'lost', ?, ?)").join(', ')}${recorded}`,
    lost.flatMap(row => {
      const [detail, evidence] = row.taken === null ? [LOST, null] : [TAKEN, takenEvidence(row.taken)]
      return [row.delivery_id, row.attempt, timeOfId(row.lease!), detail, evidence]
    }),
  )
}

/** What an attempt keeps of the client that took its delivery, as JSON: an `Evidence`. */
export const takenEvidence = (taken: string): string => {
  const { id, name, address } = JSON.parse(taken) as { id: string; name: string; address?: string }
  return JSON.stringify({ ...(address !== undefined && { remoteAddress: address }), pulledBy: { id, name } })
}

const TAKEN = 'A client had taken it, and its answer was not there yet. It may have handled the event.'

const LOST = 'The process that made this attempt ended before it recorded an answer. The receiver may have had it.'
