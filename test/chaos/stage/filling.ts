import { randomUUID } from 'node:crypto'
import type { Sql } from './sql.ts'

// Rows by the hundred thousand, straight into the tables.

type Filling = { webhookId: string; organisationId: string; projectId: string; count: number }

const BATCH = 1_000
const HOUR_MS = 3_600_000

/** Ids of version 7, in their order, from a time on. */
const idsFrom = (ms: number, count: number): string[] => {
  const at = ms.toString(16).padStart(12, '0')
  return Array.from({ length: count }, (_, index) => {
    const random = randomUUID()
    const order = index.toString(16).padStart(3, '0')
    return `${at.slice(0, 8)}-${at.slice(8)}-7${order.slice(-3)}-${random.slice(19)}`
  })
}

const insert = async (
  sql: Sql,
  table: string,
  columns: string[],
  rows: (string | number | null)[][],
): Promise<void> => {
  const marks = `(${columns.map(() => '?').join(', ')})`
  // SQLite binds 32,766 values at most.
  const most = Math.floor(30_000 / columns.length)
  for (let from = 0; from < rows.length; from += most) {
    const part = rows.slice(from, from + most)
    await sql.run(
      `INSERT INTO ${table} (${columns.join(', ')}) VALUES ${part.map(() => marks).join(', ')}`,
      part.flat(),
    )
  }
}

const EVENT = ['id', 'type', 'organisation_id', 'project_id', 'all_organisations', 'payload', 'created_at']
const TYPE = 'project_report_quarterly_overdue'

const eventRow = (id: string, { organisationId, projectId }: Omit<Filling, 'webhookId'>, at: number) => [
  id,
  TYPE,
  organisationId,
  projectId,
  0,
  JSON.stringify({ projectReport: { id: randomUUID(), projectId, quarter: '2900-1' } }),
  at,
]

/**
 * Makes deliveries pending for a webhook, due in the order of
 * their times, or all at `dueAt`. A thousand carry one event.
 */
export const fillQueue = async (sql: Sql, filling: Filling & { dueAt?: number }): Promise<void> => {
  const { webhookId, count } = filling
  const now = Date.now()
  for (let from = 0; from < count; from += BATCH) {
    const at = now - HOUR_MS + from
    const size = Math.min(BATCH, count - from)
    const [eventId] = idsFrom(at, 1)
    await insert(sql, 'events', EVENT, [eventRow(eventId!, filling, at)])
    const ids = idsFrom(at, size)
    await insert(
      sql,
      'deliveries',
      ['id', 'event_id', 'event_type', 'webhook_id', 'status', 'next_attempt_at', 'created_at'],
      ids.map(id => [id, eventId!, TYPE, webhookId, 'pending', filling.dueAt ?? at, at]),
    )
    await insert(
      sql,
      'delivery_queue',
      ['delivery_id', 'event_id', 'webhook_id', 'due_at'],
      ids.map(id => [id, eventId!, webhookId, filling.dueAt ?? at]),
    )
  }
}

/** Makes events that nobody has, as if their webhooks had not been there. */
export const fillEvents = async (sql: Sql, filling: Omit<Filling, 'webhookId'>): Promise<void> => {
  const at = Date.now()
  const ids = idsFrom(at, filling.count)
  await insert(
    sql,
    'events',
    EVENT,
    ids.map(id => eventRow(id, filling, at)),
  )
}

/** Makes a history of delivered deliveries of a webhook, each with its attempt. */
export const fillHistory = async (sql: Sql, filling: Filling): Promise<void> => {
  const { webhookId, count } = filling
  const now = Date.now()
  for (let from = 0; from < count; from += BATCH) {
    const at = now - 24 * HOUR_MS + from
    const [eventId] = idsFrom(at, 1)
    await insert(sql, 'events', EVENT, [eventRow(eventId!, filling, at)])
    const ids = idsFrom(at, Math.min(BATCH, count - from))
    await insert(
      sql,
      'deliveries',
      ['id', 'event_id', 'event_type', 'webhook_id', 'status', 'attempt_count', 'created_at', 'finished_at'],
      ids.map(id => [id, eventId!, TYPE, webhookId, 'delivered', 1, at, at + 20]),
    )
    await insert(
      sql,
      'attempts',
      ['delivery_id', 'number', 'started_at', 'duration_ms', 'status_code', 'response'],
      ids.map(id => [id, 1, at, 20, 200, '']),
    )
  }
}
