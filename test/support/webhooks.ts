import { randomUUID } from 'node:crypto'
import { insertMany, type Sql } from '../../server/database/connect.ts'
import { holdOf } from '../../server/domain/pull-time.ts'
import type { WebhookRow } from '../../server/domain/resources.ts'
import type {
  EventType,
  WebhookOrdering,
  WebhookRecovery,
  WebhookStatus,
  WebhookTransport,
} from '../../shared/vocabulary.ts'

/** A webhook to store. Missing values are createWebhook's defaults; an empty or missing list means all. */
export type GivenWebhook = {
  accessTokenId: string
  id?: string
  url?: string
  events?: readonly EventType[]
  organisationIds?: readonly string[]
  projectIds?: readonly string[]
  status?: WebhookStatus
  statusReason?: string | null
  ordering?: WebhookOrdering
  recovery?: WebhookRecovery
  transport?: WebhookTransport
  /** Epoch milliseconds; now, if not given. */
  createdAt?: number
}

/** What the database holds of a webhook, by table. */
export const webhookRows = ({
  accessTokenId,
  id = randomUUID(),
  url = 'http://127.0.0.1:9/',
  events = [],
  organisationIds = [],
  projectIds = [],
  status = 'active',
  statusReason = null,
  ordering = 'none',
  recovery = 'on_demand',
  transport = 'push',
  createdAt = Date.now(),
}: GivenWebhook) => {
  const webhook: WebhookRow = {
    id,
    access_token_id: accessTokenId,
    url,
    name: null,
    labels: '{}',
    deleted_at: null,
    status,
    status_reason: statusReason,
    ordering,
    transport,
    ordered_since: 0,
    all_events: events.length === 0 ? 1 : 0,
    all_organisations_and_projects: organisationIds.length + projectIds.length === 0 ? 1 : 0,
    held_until: holdOf({ transport, request_sealed: null }),
    recovery,
    automatic_since: recovery === 'automatic' ? createdAt : null,
    signing: 'token',
    request_sealed: null,
    epoch: 0,
    ended_epoch: 0,
    created_at: createdAt,
    updated_at: createdAt,
  }
  return {
    webhooks: [webhook],
    webhook_events: events.map(event_type => ({ webhook_id: id, event_type })),
    webhook_organisations: organisationIds.map(organisation_id => ({ webhook_id: id, organisation_id })),
    webhook_projects: projectIds.map(project_id => ({ webhook_id: id, project_id })),
  }
}

/** Stores webhooks directly in the database, without a ping, and returns their ids. */
export const addWebhooks = async (sql: Sql, given: readonly GivenWebhook[]): Promise<string[]> => {
  const all = given.map(webhookRows)
  for (const table of ['webhooks', 'webhook_events', 'webhook_organisations', 'webhook_projects'] as const) {
    await insertMany(
      sql,
      table,
      all.flatMap(rows => rows[table] as object[]),
    )
  }
  await sql.raw(
    `UPDATE webhook_projects SET organisation_id =
       (SELECT p.organisation_id FROM projects p WHERE p.id = webhook_projects.project_id)
     WHERE organisation_id IS NULL`,
  )
  return all.map(({ webhooks }) => webhooks[0]!.id)
}

/** Stores one webhook, and returns its id. */
export const addWebhook = async (sql: Sql, given: GivenWebhook): Promise<string> =>
  (await addWebhooks(sql, [given]))[0]!

/** The argument of `leaveActive` that disables an active webhook. */
export const DISABLING = {
  from: { status: 'active' },
  to: { status: 'disabled', reason: null },
} as const
