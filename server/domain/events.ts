import type { EventPayload } from '../../shared/events.ts'
import type { EventType } from '../../shared/vocabulary.ts'
import { inOneTrip, insertMany, run, type Sql } from '../database/connect.ts'
import type { Transaction } from '../database/transaction.ts'
import { newId } from '../ids.ts'
import { currentTrace, inTrace, startSpan } from '../tracing/tracing.ts'
import { type AfterCommit, enqueueFresh, type FreshDelivery, type SendableWebhook } from './deliveries.ts'
import { type LockedLines, lockLines } from './lines.ts'
import { type NewEvents, webhooksFor } from './matching.ts'

export type NewEvent<Type extends EventType = EventType> = {
  type: Type
  payload: EventPayload<Type>
  /** The organisations it belongs to: if it has a project, the present one of the project. */
  organisationIds: string[] | 'all'
  projectId?: string
}

/** Writes a ping, which belongs to no organisation and goes to one webhook. */
export const recordPing = (trx: Sql, now: number, id?: string): Promise<string> =>
  recordOnDemand(trx, now, { type: 'ping', payload: {}, isExample: false, ...(id !== undefined && { id }) })

/** Writes an event sent to one webhook on demand, a ping or an example. It belongs to no organisation. */
export const recordOnDemand = async (
  trx: Sql,
  now: number,
  { type, payload, isExample, id = newId(now) }: { type: EventType; payload: object; isExample: boolean; id?: string },
): Promise<string> => {
  await run(trx, 'INSERT INTO events (id, type, payload, example, created_at, traceparent) VALUES (?, ?, ?, ?, ?, ?)', [
    id,
    type,
    JSON.stringify(payload),
    isExample ? 1 : 0,
    now,
    currentTrace() ?? null,
  ])
  return id
}

/**
 * Writes an event, and for each webhook that wants it a delivery with its queue row, all in the caller's transaction,
 * so that change, event and deliveries exist together or not at all.
 *
 * @param now called when the webhooks are locked, so that the event is later than the last change of each. If webhooks
 *   keep the order of the project, the event is later than all earlier ones in their lines
 * @param afterCommit takes deliveries that it can send after the commit
 */
export const recordEvent = <Type extends EventType>(
  trx: Transaction,
  { payload, ...event }: NewEvent<Type>,
  now: () => number,
  afterCommit?: AfterCommit,
): Promise<void> => recordAlike(trx, { ...event, payloads: [payload] }, now, afterCommit)

/** As `recordEvent`, for events that differ only in their payloads. They share a time and each statement. */
export const recordAlike = async <Type extends EventType>(
  trx: Transaction,
  { payloads, ...event }: Omit<NewEvent<Type>, 'payload'> & { payloads: EventPayload<Type>[] },
  now: () => number,
  afterCommit?: AfterCommit,
): Promise<void> => {
  const { type, organisationIds, projectId = null } = event
  const subject: NewEvents = { type, ...(projectId === null ? { organisationIds } : { projectIds: [projectId] }) }
  // An event without an organisation would be visible to nobody.
  const webhooks = organisationIds.length === 0 ? [] : await webhooksFor(trx, subject)
  const { lines, time } = await lockLines(
    trx,
    webhooks.map(webhook => ({ webhook, projectId })),
    now,
  )
  const made = payloads.map(payload => eventOf(trx, { ...event, payload }, time))
  await insertEvents(trx, made)
  if (organisationIds !== 'all' && organisationIds.length !== 1) {
    const several = made.flatMap(({ id }) =>
      organisationIds.map(organisation_id => ({ event_id: id, organisation_id })),
    )
    await insertMany(trx, 'event_organisations', several)
  }
  await enqueueFresh(
    trx,
    made.map(one => ({ event: one, webhooks })),
    { lines, afterCommit },
  )
}

/** An event of one project, with the webhooks that want it. */
export type ProjectEvent = {
  event: NewEvent & { organisationIds: [string]; projectId: string }
  webhooks: SendableWebhook[]
  /** The trace of the request that it comes from. */
  trace: string | undefined
}

/**
 * As `recordEvent`, for events of several projects, which share a time and each statement, asked at the same time.
 *
 * @param lines the locked lines of the webhooks that keep an order
 */
export const recordTogether = async (
  trx: Transaction,
  given: ProjectEvent[],
  time: number,
  { lines, afterCommit }: { lines: LockedLines; afterCommit: AfterCommit | undefined },
): Promise<void> => {
  const fresh = given.map(({ event, webhooks, trace }) => ({
    event: inTrace(trace, () => eventOf(trx, event, time)),
    webhooks,
  }))
  const inserted = insertEvents(
    trx,
    fresh.map(({ event }) => event),
  )
  await inOneTrip([inserted, enqueueFresh(trx, fresh, { lines, afterCommit })])
}

type Made = FreshDelivery['event'] & Pick<NewEvent, 'organisationIds'> & { projectId: string | null }

const eventOf = (trx: Transaction, { type, payload, ...event }: NewEvent, createdAt: number): Made => {
  const { organisationIds, projectId = null } = event
  const id = newId(createdAt)
  const traceparent = traceOf(trx, id, type)
  return { id, type, createdAt, payload: JSON.stringify(payload), organisationIds, projectId, traceparent }
}

const insertEvents = async (trx: Sql, events: Made[]): Promise<void> => {
  await run(
    trx,
    `INSERT INTO events (id, type, organisation_id, project_id, all_organisations, payload, created_at, traceparent)
     VALUES ${events.map(() => '(?, ?, ?, ?, ?, ?, ?, ?)').join(', ')}`,
    events.flatMap(({ id, type, organisationIds, projectId, payload, createdAt, traceparent }) => {
      const single = organisationIds !== 'all' && organisationIds.length === 1 ? organisationIds[0]! : null
      return [id, type, single, projectId, organisationIds === 'all' ? 1 : 0, payload, createdAt, traceparent]
    }),
  )
}

/** The trace of an event: a span of its own, which is real once the transaction commits. */
const traceOf = (trx: Transaction, id: string, type: EventType): string | null => {
  const span = startSpan(`event ${type}`, 'producer', { 'tidings.event.id': id, 'tidings.event.type': type })
  if (!span) return currentTrace() ?? null
  trx.executionPromise.then(
    () => span.end(),
    () => {},
  )
  return span.traceparent
}
