import { createHash } from 'node:crypto'
import type { DeliveryStatus } from '../shared/vocabulary.ts'
import { type Database, marks, rows, run, type Sql } from './database/connect.ts'
import { STATEMENT_LIMITS } from './database/dialect.ts'
import { forgetHours } from './domain/delivery-hours.ts'
import { newId } from './ids.ts'

export type HistoryCounts = { webhooks: number; events: number; deliveries: number }

type History = {
  /** The owner of the webhooks, a token that sees all organisations. */
  accessTokenId: string
  /** The number of days before `now` over which the events are spread. */
  days: number
  now: number
}

const DAY_MS = 24 * 3600 * 1000
const HOUR_MS = 3600 * 1000
const EVENTS_A_TRANSACTION = 400
/** One in this many webhooks names an organisation. */
const NAMES_ONE = 5

/**
 * Adds made-up webhooks, events and deliveries with their attempts, for tests of size. Events are distributed over the
 * existing projects, and an event's deliveries over the webhooks that may receive it. Most are delivered; one in a
 * hundred each is rejected, dropped and cancelled, and one in twenty of the last day is pending, due within a day.
 *
 * @param onProgress called with the number of rows written to a table
 */
export const seedHistory = async (
  database: Database,
  counts: HistoryCounts,
  history: History,
  onProgress: (table: string, written: number) => void,
): Promise<void> => {
  const projects = await rows<ProjectRow>(database.knex, 'SELECT id, organisation_id FROM projects LIMIT 100000')
  if (projects.length === 0) throw new Error('webhooks and events need projects: add --organisations and --projects')
  await database.transaction(trx => insertWebhooks(trx, counts.webhooks, history, projects))
  const webhooks = await webhooksByOrganisation(database.knex)
  if (counts.deliveries > 0 && webhooks.unnamed.length === 0)
    throw new Error('deliveries need webhooks: add --webhooks')
  const world = { projects, webhooks, history, counts }
  let delivered = 0
  for (let from = 0; from < counts.events; from += EVENTS_A_TRANSACTION) {
    const indexes = Array.from({ length: Math.min(EVENTS_A_TRANSACTION, counts.events - from) }, (_, n) => from + n)
    const part = indexes.map(index => madeUp(index, world))
    await database.transaction(async trx => {
      await insertPart(trx, part)
      await forgetHours(trx)
    })
    delivered += part.reduce((sum, { deliveries }) => sum + deliveries.length, 0)
    onProgress('events', from + part.length)
    onProgress('deliveries', delivered)
  }
}

type ProjectRow = { id: string; organisation_id: string }
type WebhookRow = { id: string; epoch: number }
type Webhooks = { unnamed: WebhookRow[]; naming: Map<string, WebhookRow[]> }
type World = { projects: ProjectRow[]; webhooks: Webhooks; history: History; counts: HistoryCounts }

const insertWebhooks = async (
  trx: Sql,
  count: number,
  { accessTokenId, now }: History,
  projects: ProjectRow[],
): Promise<void> => {
  const organisationIds = [...new Set(projects.map(project => project.organisation_id))]
  const made = Array.from({ length: count }, (_, index) => ({
    id: newId(now),
    organisationId:
      index % NAMES_ONE === NAMES_ONE - 1
        ? organisationIds[Math.floor(index / NAMES_ONE) % organisationIds.length]
        : undefined,
  }))
  await insertRows(
    trx,
    'webhooks',
    [
      ...['id', 'access_token_id', 'url', 'status', 'all_events', 'all_organisations_and_projects'],
      ...['created_at', 'updated_at'],
    ],
    made.map(({ id, organisationId }, index) => [
      ...[id, accessTokenId, `https://webhook-${index + 1}.invalid/tidings`, 'active', 1, organisationId ? 0 : 1],
      ...[now, now],
    ]),
  )
  const naming = made.flatMap(({ id, organisationId }) => (organisationId ? [[id, organisationId]] : []))
  await insertRows(trx, 'webhook_organisations', ['webhook_id', 'organisation_id'], naming)
}

/** The webhooks that name no organisation, and the others by organisation. */
const webhooksByOrganisation = async (sql: Sql): Promise<Webhooks> => {
  const found = await rows<WebhookRow & { organisation_id: string | null }>(
    sql,
    `SELECT w.id, w.epoch, o.organisation_id FROM webhooks w
     LEFT JOIN webhook_organisations o ON o.webhook_id = w.id ORDER BY w.id`,
  )
  const naming = found.filter(({ organisation_id }) => organisation_id !== null)
  return {
    unnamed: found.filter(({ organisation_id }) => organisation_id === null),
    naming: Map.groupBy(naming, ({ organisation_id }) => organisation_id!),
  }
}

type Value = string | number | null
type Rows = Value[][]
type MadeUp = { event: Value[]; deliveries: Rows; attempts: Rows; queue: Rows }

const TYPES = [
  'project_report_quarterly_submitted',
  'project_report_quarterly_approved',
  'project_report_quarterly_overdue',
] as const

const madeUp = (index: number, { projects, webhooks, history, counts }: World): MadeUp => {
  const time = Math.floor(history.now - history.days * DAY_MS * (1 - (index + 0.5) / counts.events))
  const project = projects[index % projects.length]!
  const type = TYPES[index % TYPES.length]!
  const id = newId(time)
  const payload = JSON.stringify({ projectReport: { id: newId(time), projectId: project.id, ...details(type, index) } })
  const first = Math.floor((index * counts.deliveries) / counts.events)
  const last = Math.floor(((index + 1) * counts.deliveries) / counts.events)
  const made: MadeUp = {
    event: [id, type, project.organisation_id, project.id, payload, time],
    deliveries: [],
    attempts: [],
    queue: [],
  }
  const named = webhooks.naming.get(project.organisation_id) ?? []
  for (let number = first; number < last; number += 1) {
    const turn = number - first
    const webhook = named[turn] ?? webhooks.unnamed[(index + turn) % webhooks.unnamed.length]!
    const isYoung = history.now - time < DAY_MS
    addDelivery(made, { number, webhook, event: { id, type, time }, isYoung })
  }
  return made
}

const details = (type: (typeof TYPES)[number], index: number): object => {
  const quarter = '2026-3'
  const user = { id: uuidOf(`user ${index % 50}`), name: `User ${(index % 50) + 1}` }
  if (type === 'project_report_quarterly_submitted') return { quarter, submitterId: user.id, submitterName: user.name }
  if (type === 'project_report_quarterly_approved')
    return { quarter, approverId: user.id, approverName: user.name, approvedDate: '2026-10-31' }
  return { quarter }
}

const uuidOf = (text: string): string => {
  const hex = createHash('sha256').update(text).digest('hex')
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-4${hex.slice(13, 16)}-8${hex.slice(17, 20)}-${hex.slice(20, 32)}`
}

const statusOf = (number: number, isYoung: boolean): DeliveryStatus => {
  if (isYoung && number % 20 === 0) return 'pending'
  return ({ 1: 'rejected', 2: 'dropped', 3: 'cancelled' } as const)[number % 100] ?? 'delivered'
}

type Made = {
  number: number
  webhook: WebhookRow
  event: { id: string; type: string; time: number }
  isYoung: boolean
}

const addDelivery = (made: MadeUp, { number, webhook, event, isYoung }: Made): void => {
  const id = newId(event.time)
  const status = statusOf(number, isYoung)
  const attempts = attemptsOf(status, number)
  let at = event.time
  for (const [n, code] of attempts.entries()) {
    const tookMs = 20 + (number % 180)
    made.attempts.push([id, n + 1, at, tookMs, code, code === 200 ? '' : 'unavailable'])
    at += tookMs + (n === attempts.length - 1 ? 0 : 5_000 * 2 ** n)
  }
  const isPending = status === 'pending'
  const dueAt = event.time + DAY_MS + (number % 24) * HOUR_MS
  made.deliveries.push([
    ...[id, event.id, webhook.id, event.type, status, attempts.length],
    ...[isPending ? dueAt : null, event.time, isPending ? null : at],
  ])
  if (isPending) made.queue.push([id, event.id, webhook.id, webhook.epoch, dueAt, attempts.length, attempts.length])
}

/** The status codes of a delivery's attempts. */
const attemptsOf = (status: DeliveryStatus, number: number): number[] => {
  if (status === 'cancelled') return []
  if (status === 'rejected') return [422]
  if (status === 'dropped') return Array<number>(11).fill(503)
  if (status === 'pending') return [503]
  return number % 10 === 4 ? [503, 200] : [200]
}

const insertPart = async (trx: Sql, part: MadeUp[]): Promise<void> => {
  await insertRows(
    trx,
    'events',
    ['id', 'type', 'organisation_id', 'project_id', 'payload', 'created_at'],
    part.map(({ event }) => event),
  )
  await insertRows(
    trx,
    'deliveries',
    [
      ...['id', 'event_id', 'webhook_id', 'event_type', 'status', 'attempt_count'],
      ...['next_attempt_at', 'created_at', 'finished_at'],
    ],
    part.flatMap(({ deliveries }) => deliveries),
  )
  await insertRows(
    trx,
    'attempts',
    ['delivery_id', 'number', 'started_at', 'duration_ms', 'status_code', 'response'],
    part.flatMap(({ attempts }) => attempts),
  )
  await insertRows(
    trx,
    'delivery_queue',
    ['delivery_id', 'event_id', 'webhook_id', 'epoch', 'due_at', 'attempt', 'failure_count'],
    part.flatMap(({ queue }) => queue),
  )
}

const insertRows = async (trx: Sql, table: string, columns: string[], values: Rows): Promise<void> => {
  const most = Math.min(1_000, Math.floor(STATEMENT_LIMITS.values / columns.length))
  const each = `(${marks(columns)})`
  for (let from = 0; from < values.length; from += most) {
    const part = values.slice(from, from + most)
    const statement = `INSERT INTO ${table} (${columns.join(', ')}) VALUES ${part.map(() => each).join(', ')}`
    await run(trx, statement, part.flat())
  }
}
