import { TidingsError } from '../../shared/errors.ts'
import { type Database, marks, partOfMany, rows, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { find } from '../mango/find.ts'
import type { Meter } from '../mango/meter.ts'
import type { MangoQuery } from '../mango/query.ts'
import type { Visible } from '../mango/resource.ts'
import type { Change } from './change.ts'
import { enqueueRecovered } from './deliveries.ts'
import type { AccessToken } from './permissions.ts'
import { lockEvents } from './recovery.ts'
import { type DeliveryRow, deliveries } from './resources.ts'
import { visibleTo } from './visibility.ts'
import { lockActive } from './webhooks.ts'

/** The deliveries of one transaction. An embedded engine does nothing else meanwhile, so it gets few. */
const BATCH = { server: 500, embedded: 50 }
/** Events whose deliveries are looked up at once; each may have been sent again often. */
const ALIKE = 50
/** A call that takes longer stops and returns where to continue. */
const BUDGET_MS = 15_000

/** The progress: the number of queued deliveries, up to the last one that it looked at. */
export type Redelivery = {
  webhookId: string
  queued: number
  last: { id: string; createdAt: number } | null
  isComplete: boolean
}

type Transact = <T>(work: (change: Change) => Promise<T>) => Promise<T>

type Tools = {
  change: Transact
  look: Transact
  /** Finds the next deliveries that match, where that blocks nobody: `redeliveryPage`. */
  pageOf(asked: Redelivering, soFar: Redelivery): Promise<RedeliveryPage>
}

/** `query.limit` is the most to queue. With `dryRun` nothing is queued, and the result is the number that would be. */
export type Redelivering = { webhookId: string; query: MangoQuery; dryRun?: boolean }

/**
 * Sends the events of matching deliveries to one webhook again, after new deliveries, except pings and pending ones.
 * Each event is sent once, when the oldest of its matching deliveries is reached. So deliveries queued here, which may
 * match too, are not sent again, even by a call that continues. Each page is one transaction under the webhook's lock.
 * Throws NOT_FOUND or CONFLICT.
 *
 * @param earlier earlier progress, from which it continues
 */
export const redeliverMany = async (tools: Tools, asked: Redelivering, earlier?: Redelivery): Promise<Redelivery> => {
  const deadline = performance.now() + BUDGET_MS
  let done = earlier ?? { webhookId: asked.webhookId, queued: 0, last: null, isComplete: false }
  // Checked first, so that it does not search for deliveries that cannot be sent.
  if (!earlier) await tools.look(within => lockActive(within, asked.webhookId))
  for (let hasBegun = earlier !== undefined; !done.isComplete; hasBegun = true) {
    const soFar = done
    try {
      done = await partOfMany(async () => {
        const page = await tools.pageOf(asked, soFar)
        return tools.change(within => queuePage(within, page, asked, soFar))
      })
    } catch (error) {
      // Queued deliveries stay queued: the result says where to continue.
      if (hasBegun && error instanceof TidingsError && error.code === 'UNAVAILABLE') break
      throw error
    }
    if (performance.now() > deadline) break
  }
  return done
}

/** `firsts`: the deliveries that are the oldest of their event. */
export type RedeliveryPage = {
  firsts: { id: string; event_id: string }[]
  last: { id: string; created_at: number } | null
  isLast: boolean
}

/** The next deliveries that match. */
export const redeliveryPage = async (
  {
    database: { knex, dialect },
    now,
    token,
    meter,
  }: { database: Database; now: number; token: AccessToken; meter: Meter },
  { webhookId, query }: Redelivering,
  { last }: Redelivery,
): Promise<RedeliveryPage> => {
  const seen = visibleTo(token)
  const search = async (asked: MangoQuery, among: Visible = () => {}): Promise<DeliveryRow[]> => {
    const visible: Visible = builder =>
      builder
        .modify(seen(deliveries))
        .where('deliveries.webhook_id', webhookId)
        .whereNot('deliveries.event_type', 'ping')
        .modify(among)
    return (await find(knex, deliveries, asked, visible, { related: seen, now, meter })).rows as DeliveryRow[]
  }
  const batch = dialect.isEmbedded ? BATCH.embedded : BATCH.server
  const limit = Math.min(batch, query.limit ?? batch)
  const place = last ? { after: last.id, afterValues: null, skip: null } : {}
  const found = await search({ ...query, ...place, limit })
  const eventIds = [...new Set(found.map(row => row.event_id))]
  const { selector } = query
  const first = new Map<string, string>()
  for (let from = 0; from < eventIds.length; from += ALIKE) {
    const some = eventIds.slice(from, from + ALIKE)
    for (const { event_id, id } of await search({ selector }, all => all.whereIn('deliveries.event_id', some))) {
      const known = first.get(event_id)
      if (known === undefined || id < known) first.set(event_id, id)
    }
  }
  const end = found.at(-1)
  return {
    firsts: found.filter(row => first.get(row.event_id) === row.id).map(({ id, event_id }) => ({ id, event_id })),
    last: end ? { id: end.id, created_at: end.created_at } : null,
    isLast: found.length < limit || limit === 0,
  }
}

/** Queues a page, and returns the progress. Checks again what may have changed since the page was found. */
const queuePage = async (
  within: Change,
  { firsts, last, isLast }: RedeliveryPage,
  { webhookId, query, dryRun = false }: Redelivering,
  soFar: Redelivery,
): Promise<Redelivery> => {
  const { trx, token } = within
  const webhook = await lockActive(within, webhookId, 'forUpdate')
  const events = firsts.map(({ event_id }) => ({ id: event_id }))
  const there = new Map((await lockEvents(trx, events)).map(event => [event.id, event]))
  const seen = new Set(await seenOf(trx, token, firsts))
  const owed = await pendingOf(trx, webhookId, events)
  const room = (query.limit ?? Number.POSITIVE_INFINITY) - soFar.queued
  const chosen = firsts
    .filter(({ id, event_id }) => seen.has(id) && !owed.has(event_id))
    .flatMap(({ event_id }) => there.get(event_id) ?? [])
    .slice(0, room)
  if (!dryRun) await enqueueRecovered(trx, chosen, webhook, within.now)
  return {
    webhookId,
    queued: soFar.queued + chosen.length,
    last: last ? { id: last.id, createdAt: last.created_at } : soFar.last,
    isComplete: isLast || chosen.length >= room,
  }
}

const seenOf = async (trx: Sql, token: AccessToken, found: { id: string }[]): Promise<string[]> => {
  if (found.length === 0) return []
  const ids = found.map(({ id }) => id)
  return trx('deliveries').whereIn('deliveries.id', ids).modify(visibleTo(token)(deliveries)).pluck('deliveries.id')
}

/** Those of these events that are already pending for the webhook. */
const pendingOf = async (trx: Sql, webhookId: string, events: { id: string }[]): Promise<Set<string>> => {
  if (events.length === 0) return new Set()
  const found = await rows<{ event_id: string }>(
    trx,
    `SELECT event_id FROM deliveries ${dialectOf(trx).useIndex('deliveries_by_event')}
     WHERE event_id IN (${marks(events)}) AND webhook_id = ? AND status = 'pending'`,
    [...events.map(({ id }) => id), webhookId],
  )
  return new Set(found.map(({ event_id }) => event_id))
}
