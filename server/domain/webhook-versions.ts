import type { WebhookStatus } from '../../shared/vocabulary.ts'
import { insertMany, marks, rows, run, type Sql } from '../database/connect.ts'
import type { WebhookRow } from './resources.ts'

// What a webhook was before each of its changes, so that it can be said why an event of then did not go to it.
//
// A row ends at `until_at`, the `updated_at` of the change. It has the status that the webhook had, and the URL and the
// lists that the change replaced; null for what stayed. So a field at a time is that of the first later row that has
// it, or else the webhook's. A process of an earlier version writes no rows.

export type VersionRow = {
  webhook_id: string
  until_at: number
  status: WebhookStatus
  url: string | null
  events: string | null
  organisation_ids: string | null
  project_ids: string | null
  /** Who made the change; null if the server did, because of a 429 without a time. */
  access_token_id: string | null
}

/** As of the audit log: longer lists are not kept, only that there was one. */
const LONGEST_LIST = 50
const TOO_LONG = '"too long"'

const LISTS = [
  { input: 'events', column: 'events', table: 'webhook_events', value: 'event_type' },
  { input: 'organisationIds', column: 'organisation_ids', table: 'webhook_organisations', value: 'organisation_id' },
  { input: 'projectIds', column: 'project_ids', table: 'webhook_projects', value: 'project_id' },
] as const

type Change = {
  untilAt: number
  accessTokenId: string | null
  status?: WebhookStatus | undefined
  url?: string | undefined
} & { [list in (typeof LISTS)[number]['input']]?: readonly string[] | undefined }

/** Keeps what a locked webhook was, before a change is written that replaces something of it. */
export const keepVersion = async (
  trx: Sql,
  before: Pick<WebhookRow, 'id' | 'status' | 'url'>,
  change: Change,
): Promise<void> => {
  const replaced: Partial<VersionRow> = {}
  for (const { input, column, table, value } of LISTS) {
    if (change[input] === undefined) continue
    const after = new Set(change[input])
    const was = await rows<{ value: string }>(trx, `SELECT ${value} AS value FROM ${table} WHERE webhook_id = ?`, [
      before.id,
    ])
    const values = was.map(row => row.value)
    if (after.size === values.length && values.every(each => after.has(each))) continue
    replaced[column] = values.length > LONGEST_LIST ? TOO_LONG : JSON.stringify(values.toSorted())
  }
  if (change.url !== undefined && change.url !== before.url) replaced.url = before.url
  const hasOtherStatus = change.status !== undefined && change.status !== before.status
  if (!hasOtherStatus && Object.keys(replaced).length === 0) return
  const nothing = { url: null, events: null, organisation_ids: null, project_ids: null }
  const { untilAt: until_at, accessTokenId: access_token_id } = change
  const row: VersionRow = {
    webhook_id: before.id,
    until_at,
    status: before.status,
    access_token_id,
    ...nothing,
    ...replaced,
  }
  await insertMany(trx, 'webhook_versions', [row])
}

/** A list as it was; `undefined` if it was too long to keep. */
export type KeptList = string[] | undefined

/** A webhook as it was at a time. */
export type WebhookThen = {
  status: WebhookStatus
  url: string
  /** Undefined if as now. */
  events?: { list: KeptList }
  organisationIds?: { list: KeptList }
  projectIds?: { list: KeptList }
  /** The change since which it had that status, and the one that ended it. */
  began: VersionRow | undefined
  ended: VersionRow | undefined
}

/** More changes of one webhook are not looked at. */
const MOST_VERSIONS = 1_000

/** The webhook as it was at a time, as far as its versions tell. */
export const webhookAt = async (sql: Sql, webhook: WebhookRow, at: number): Promise<WebhookThen> => {
  const later = await versionsAfter(sql, webhook.id, at)
  const status = later[0]?.status ?? webhook.status
  const next = later.findIndex((_, index) => (later[index + 1]?.status ?? webhook.status) !== status)
  const listAt = (column: 'events' | 'organisation_ids' | 'project_ids') => {
    const text = later.find(row => row[column] !== null)?.[column]
    return text == null ? undefined : { list: text === TOO_LONG ? undefined : (JSON.parse(text) as string[]) }
  }
  const [events, organisationIds, projectIds] = [listAt('events'), listAt('organisation_ids'), listAt('project_ids')]
  return {
    status,
    url: later.find(({ url }) => url !== null)?.url ?? webhook.url,
    ...(events && { events }),
    ...(organisationIds && { organisationIds }),
    ...(projectIds && { projectIds }),
    began: await statusSince(sql, webhook.id, { status, at }),
    ended: later[next],
  }
}

/** The change since which a webhook had a status that it had at a time. */
export const statusSince = async (
  sql: Sql,
  webhookId: string,
  { status, at }: { status: WebhookStatus; at: number },
): Promise<VersionRow | undefined> => {
  const [began] = await rows<VersionRow>(
    sql,
    `SELECT * FROM webhook_versions WHERE webhook_id = ? AND until_at <= ? AND status <> ?
     ORDER BY until_at DESC LIMIT 1`,
    [webhookId, at, status],
  )
  return began
}

const versionsAfter = (sql: Sql, webhookId: string, at: number): Promise<VersionRow[]> =>
  rows(sql, `SELECT * FROM webhook_versions WHERE webhook_id = ? AND until_at > ? ORDER BY until_at LIMIT ?`, [
    webhookId,
    at,
    MOST_VERSIONS,
  ])

/** A change of a webhook, with what came of it. */
export type EndingChange = VersionRow & { to: WebhookStatus }

/**
 * The last change of a webhook between two times that may have ended a pending delivery: it left `active`, or its URL
 * or a list was replaced.
 */
export const endingChange = async (
  sql: Sql,
  webhook: WebhookRow,
  { from, to }: { from: number; to: number },
): Promise<EndingChange | undefined> => {
  const later = await versionsAfter(sql, webhook.id, from)
  const changes = later.map((row, index) => ({ ...row, to: later[index + 1]?.status ?? webhook.status }))
  return changes.findLast(
    ({ until_at, status, to: after, url, events, organisation_ids, project_ids }) =>
      until_at <= to &&
      ((status === 'active' && after !== 'active') || [url, events, organisation_ids, project_ids].some(Boolean)),
  )
}

/** Deletes up to `limit` versions that ended before a time, and returns how many there were. */
export const deleteVersionsBefore = async (sql: Sql, before: number, limit: number): Promise<number> => {
  const old = await rows<{ webhook_id: string; until_at: number }>(
    sql,
    'SELECT webhook_id, until_at FROM webhook_versions WHERE until_at < ? ORDER BY until_at LIMIT ?',
    [before, limit],
  )
  for (const [webhookId, some] of Map.groupBy(old, row => row.webhook_id)) {
    const times = some.map(row => row.until_at)
    await run(sql, `DELETE FROM webhook_versions WHERE webhook_id = ? AND until_at IN (${marks(times)})`, [
      webhookId,
      ...times,
    ])
  }
  return old.length
}
