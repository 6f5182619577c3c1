import type { Knex } from 'knex'
import { badInput, TidingsError } from '../../shared/errors.ts'
import { type EventType, eventTypes, type WebhookOrdering, type WebhookStatus } from '../../shared/vocabulary.ts'
import { insertMany, marks, rows, run, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import { takeTurns } from './access-tokens.ts'
import type { Change } from './change.ts'
import { checkLabels, type Labels, labelsText } from './labels.ts'
import { checkName } from './names.ts'
import type { AccessToken } from './permissions.ts'
import { organisations, projects, type WebhookRow, webhooks } from './resources.ts'
import { sweepAfterChange } from './sweep.ts'
import { findVisible, requireVisible, visibleTo, visibleWebhooks } from './visibility.ts'

/** What a client says of a webhook. Undefined leaves as it is; an empty list means all. */
export type WebhookInput = {
  url?: string | undefined
  /** Empty for none. */
  name?: string | undefined
  /** All that it is to have. */
  labels?: Labels | undefined
  events?: EventType[] | undefined
  organisationIds?: string[] | undefined
  projectIds?: string[] | undefined
  ordering?: WebhookOrdering | undefined
  status?: WebhookStatus | undefined
}

const URL_MAX_LENGTH = 2048

/** Throws unless every part of `input` is well formed and every id in it is visible to the token. */
export const checkWebhookInput = async (
  sql: Sql,
  token: AccessToken,
  input: WebhookInput,
  { requireHttps }: { requireHttps: boolean },
): Promise<void> => {
  if (input.url !== undefined) checkUrl(input.url, requireHttps)
  if (input.name) checkName(input.name)
  if (input.labels !== undefined) checkLabels(input.labels)
  if (input.events?.includes('ping')) {
    const others = eventTypes.filter(type => type !== 'ping').join(', ')
    throw badInput(
      'events',
      `"ping" cannot be chosen: it is sent on registration and when asked for. Choose from ${others}`,
    )
  }
  if (input.status === 'inactive') {
    throw badInput(
      'status',
      '"inactive" is set by Tidings when an endpoint asks for it; a client sets active or disabled',
    )
  }
  await requireVisible(sql, token, organisations, input.organisationIds ?? [])
  await requireVisible(sql, token, projects, input.projectIds ?? [])
}

const checkUrl = (url: string, requireHttps: boolean): void => {
  const wanted = requireHttps ? 'an absolute https URL' : 'an absolute http or https URL'
  const parsed = URL.parse(url)
  if (!parsed || !['http:', 'https:'].includes(parsed.protocol)) {
    throw badInput('url', `"${url.slice(0, 200)}" is not ${wanted}, such as https://example.com/hooks/tidings`)
  }
  if (requireHttps && parsed.protocol !== 'https:') throw badInput('url', `this installation takes ${wanted} only`)
  if (parsed.username || parsed.password) throw badInput('url', 'must not carry a user name or password')
  if (url.includes('#')) throw badInput('url', 'must not have a fragment (#…): it would never be sent')
  if (/[\s\p{Cc}]/u.test(url)) throw badInput('url', 'must not contain white space or control characters')
  if (url.length > URL_MAX_LENGTH) throw badInput('url', `is longer than ${URL_MAX_LENGTH} characters`)
}

/** The webhook with this id, if the token sees it. */
export const findWebhook = (sql: Sql, token: AccessToken, id: string): Promise<WebhookRow | undefined> =>
  findVisible(sql, token, webhooks, id)

/** The webhook with this id; NOT_FOUND if the token does not see it. */
export const requireWebhook = async (sql: Sql, token: AccessToken, id: string): Promise<WebhookRow> => {
  const [webhook] = await requireVisible<WebhookRow>(sql, token, webhooks, [id])
  return webhook!
}

/** A webhook as this transaction has it. */
export const webhookNow = async (trx: Sql, id: string): Promise<WebhookRow> => {
  const [webhook] = await rows<WebhookRow>(trx, 'SELECT * FROM webhooks WHERE id = ?', [id])
  return webhook!
}

/** Whether a webhook that the token cannot make anew has this id, seen or not. */
export const isTaken = async (sql: Sql, token: AccessToken, id: string): Promise<boolean> =>
  (await sql('webhooks').where({ id }).first('id')) !== undefined && !(await isRenewable(sql, token, id))

/** Whether a webhook with this id was deleted, and the token saw it: it may be created again. */
const isRenewable = async (sql: Sql, token: AccessToken, id: string): Promise<boolean> => {
  const deleted = sql('webhooks').where('webhooks.id', id).whereNotNull('webhooks.deleted_at')
  return (await deleted.modify(visibleTo(token)(webhooks)).first('webhooks.id')) !== undefined
}

/** CONFLICT when a token has made as many webhooks as it may. */
export const requireRoom = async (sql: Sql, token: AccessToken, most: number): Promise<void> => {
  const [found] = await rows<{ made: number }>(
    sql,
    'SELECT COUNT(*) AS made FROM webhooks WHERE access_token_id = ? AND deleted_at IS NULL',
    [token.id],
  )
  if (Number(found!.made) < most) return
  throw new TidingsError(
    'CONFLICT',
    `This access token has made ${most} webhooks, the most that one may (TIDINGS_WEBHOOKS_PER_TOKEN). ` +
      'Change one of them, or use another token.',
    { limit: most },
  )
}

/**
 * Stores a webhook whose endpoint has answered its ping; in the place of one that was deleted, if that had this id.
 * Throws the database's error for a duplicate if there is one that was not.
 */
export const insertWebhook = async (
  { trx, token, now }: Change,
  id: string,
  input: WebhookInput & { url: string },
  mostOfToken: number,
): Promise<void> => {
  // That there is room for one more, no two are told at once.
  await takeTurns(trx, token)
  await requireRoom(trx, token, mostOfToken)
  await holdProjects(trx, id, input.projectIds ?? [])
  await requireVisible(trx, token, projects, input.projectIds ?? [])
  const time = now()
  const stored = {
    access_token_id: token.id,
    url: input.url,
    name: input.name || null,
    labels: labelsText(input.labels ?? {}),
    status: input.status ?? 'active',
    ordering: input.ordering ?? 'none',
    all_events: 1,
    all_organisations_and_projects: 1,
    created_at: time,
    updated_at: time,
  }
  if (await isRenewable(trx, token, id)) {
    const anew = { ...stored, status_reason: null, held_until: null, ordered_since: time, deleted_at: null }
    const renewed = await trx('webhooks').where({ id }).whereNotNull('deleted_at').update(anew)
    if (renewed > 0) {
      await run(trx, `UPDATE webhooks SET ${END_EPOCH} WHERE id = ?`, [id])
      return writeLists(trx, id, { events: [], organisationIds: [], projectIds: [], ...input })
    }
  }
  await trx('webhooks').insert({ id, ...stored })
  await writeLists(trx, id, input)
}

/**
 * Deletes a webhook that is disabled. Its row stays for as long as there are deliveries to it, and is in no list.
 */
export const deleteWebhook = async (change: Change, id: string): Promise<void> => {
  const { trx, now } = change
  const { status, updated_at } = await lockWebhook(change, id, 'forUpdate')
  if (status !== 'disabled') {
    const message = `The webhook is ${status}. Disable it first, which cancels what is waiting to be sent to it.`
    throw new TidingsError('CONFLICT', message, { webhookId: id, status })
  }
  const time = Math.max(now(), updated_at + 1)
  await run(trx, 'UPDATE webhooks SET deleted_at = ?, updated_at = ? WHERE id = ?', [time, time, id])
}

/** Ends webhooks that were deleted before a time, and to which there are no deliveries any more; returns how many. */
export const purgeWebhooks = async (trx: Sql, before: number, limit: number): Promise<number> => {
  const gone = await rows<{ id: string }>(
    trx,
    `SELECT id FROM webhooks WHERE deleted_at < ?
       AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.webhook_id = webhooks.id)
     LIMIT ?${dialectOf(trx).forUpdateSkipLocked}`,
    [before, limit],
  )
  if (gone.length === 0) return 0
  const ids = gone.map(({ id }) => id)
  for (const table of ['webhook_events', 'webhook_organisations', 'webhook_projects']) {
    await run(trx, `DELETE FROM ${table} WHERE webhook_id IN (${marks(ids)})`, ids)
  }
  await run(trx, `DELETE FROM webhooks WHERE id IN (${marks(ids)})`, ids)
  return ids.length
}

/** What an update of a webhook was prepared on: how it was when it was looked at, and the url that answered a ping. */
export type Prepared = { seen: WebhookRow; pinged: string | undefined }

/** The url that must answer a ping before `input` is stored; undefined if none must. */
export const urlToPing = (webhook: WebhookRow, input: WebhookInput): string | undefined => {
  const url = input.url ?? webhook.url
  return url !== webhook.url || (input.status === 'active' && webhook.status !== 'active') ? url : undefined
}

/**
 * Changes what `input` gives of a webhook that the token may change as it is now, whatever else of it was changed since
 * it was looked at. CONFLICT if that is what `input` gives as well, to another end; nobody else's change is in the way
 * of disabling it. Leaving `active` cancels what is pending.
 *
 * @returns false, with nothing done, if as it is now another url must answer a ping first
 */
export const updateWebhook = async (
  change: Change,
  { seen, pinged }: Prepared,
  input: WebhookInput,
): Promise<boolean> => {
  const { trx, token, now } = change
  const { id } = seen
  const before = await lockWebhook(change, id, 'forUpdate', input.projectIds)
  const { url, ordering, status, organisationIds, projectIds } = input
  const isOf = (given: unknown, was: unknown, is: unknown) => given !== undefined && was !== is && given !== is
  if (isOf(url, seen.url, before.url) || (status === 'active' && wasDisabled(seen, before))) {
    throw new TidingsError('CONFLICT', 'The webhook was changed at the same moment. Look at it, and try again.', {
      webhookId: id,
      status: before.status,
    })
  }
  const mustAnswer = urlToPing(before, input)
  if (mustAnswer !== undefined && mustAnswer !== pinged) return false
  await requireVisible(trx, token, projects, projectIds ?? [])
  const redirected = url !== undefined && url !== before.url
  // Later after each change: whoever has read what it names sees whether that is still so.
  const time = Math.max(now(), before.updated_at + 1)
  await trx('webhooks')
    .where({ id })
    .update({
      updated_at: time,
      ...(ordering !== undefined && ordering !== before.ordering && { ordering, ordered_since: time }),
      ...(redirected && { url, held_until: null, epoch: before.epoch + 1 }),
      ...(input.name !== undefined && { name: input.name || null }),
      ...(input.labels !== undefined && { labels: labelsText(input.labels) }),
    })
  await writeLists(trx, id, input)
  if (status === 'disabled' && before.status !== 'disabled') {
    const to = { status: 'disabled', reason: null } as const
    await leaveActive(trx, id, { from: { status: before.status }, to }, time)
  }
  if (status === 'active' && before.status !== 'active') {
    await run(
      trx,
      `UPDATE webhooks SET status = 'active', status_reason = NULL, held_until = NULL, ${END_EPOCH}
       WHERE id = ? AND status = ?`,
      [id, before.status],
    )
  }
  // Nobody can turn a webhook into one that receives more than they see, nor one that does towards themselves.
  if (redirected || organisationIds || projectIds) await requireRedirectable(trx, token, id)
  // What is pending goes to the new url, but for what is from before the webhook named less.
  if (redirected) await sweepAfterChange(trx, id, time)
  return true
}

const wasDisabled = (seen: WebhookRow, now: WebhookRow): boolean =>
  seen.status !== 'disabled' && now.status === 'disabled'

/**
 * A webhook that the token sees as it is now, held so until the transaction ends; NOT_FOUND if it does not see it.
 *
 * @param projectIds those that it is to name are held too
 */
const lockWebhook = async (
  { trx, token }: Change,
  id: string,
  lock: 'forShare' | 'forUpdate',
  projectIds: readonly string[] = [],
): Promise<WebhookRow> => {
  await rows(trx, `SELECT id FROM webhooks WHERE id = ?${dialectOf(trx)[lock]}`, [id])
  // Who sees all sees it wherever its projects are.
  if (!token.seesAllOrganisations || projectIds.length > 0) await holdProjects(trx, id, projectIds)
  return requireWebhook(trx, token, id)
}

/** Holds the projects that a webhook names or is to name where they are: what it can receive is decided by that. */
const holdProjects = async (trx: Sql, webhookId: string, projectIds: readonly string[]): Promise<void> => {
  const { forShare } = dialectOf(trx)
  if (forShare === '') return
  const named = await rows<{ project_id: string }>(
    trx,
    'SELECT project_id FROM webhook_projects WHERE webhook_id = ?',
    [webhookId],
  )
  const ids = [...new Set([...projectIds, ...named.map(row => row.project_id)])].toSorted()
  if (ids.length > 0) await rows(trx, `SELECT id FROM projects WHERE id IN (${marks(ids)}) ORDER BY id${forShare}`, ids)
}

const requireRedirectable = async (trx: Knex.Transaction, token: AccessToken, id: string): Promise<void> => {
  if (await trx('webhooks').where('webhooks.id', id).modify(visibleWebhooks(token)).first('id')) return
  throw new TidingsError(
    'FORBIDDEN',
    'The webhook would receive events of organisations that this access token does not see. ' +
      'Name organisations or projects that it does.',
  )
}

const writeLists = async (trx: Knex.Transaction, id: string, input: WebhookInput): Promise<void> => {
  const lists = [
    ['webhook_events', 'event_type', input.events],
    ['webhook_organisations', 'organisation_id', input.organisationIds],
    ['webhook_projects', 'project_id', input.projectIds],
  ] as const
  for (const [table, column, values] of lists) {
    if (values === undefined) continue
    await trx(table).where('webhook_id', id).delete()
    await insertMany(
      trx,
      table,
      [...new Set<string>(values)].map(value => ({ webhook_id: id, [column]: value })),
    )
  }
  if (input.projectIds) {
    await run(
      trx,
      `UPDATE webhook_projects SET organisation_id =
         (SELECT p.organisation_id FROM projects p WHERE p.id = webhook_projects.project_id) WHERE webhook_id = ?`,
      [id],
    )
  }
  await run(
    trx,
    `UPDATE webhooks SET
       all_events = CASE WHEN EXISTS (SELECT 1 FROM webhook_events WHERE webhook_id = ?) THEN 0 ELSE 1 END,
       all_organisations_and_projects = CASE
         WHEN EXISTS (SELECT 1 FROM webhook_organisations WHERE webhook_id = ?)
           OR EXISTS (SELECT 1 FROM webhook_projects WHERE webhook_id = ?) THEN 0 ELSE 1 END
     WHERE id = ?`,
    [id, id, id, id],
  )
}

/** What was pending until now is ended. The first of the two reads the epoch as it was, on every engine. */
const END_EPOCH = 'ended_epoch = epoch + 1, epoch = epoch + 1'

type Leaving = {
  from: { status: WebhookStatus; epoch?: number }
  to: { status: 'inactive' | 'disabled'; reason: string | null }
}

/**
 * Takes a webhook out of `active` and cancels what is pending for it: some at once, any number of others soon. What is
 * being sent at this moment is finished, and counts as delivered if the receiver acknowledges it.
 *
 * @param change.from nothing is done if it is in another status by now, or in another epoch than one given
 * @returns whether it has left
 */
export const leaveActive = async (trx: Sql, id: string, { from, to }: Leaving, now: number): Promise<boolean> => {
  const [ofEpoch, epochs] = from.epoch === undefined ? ['', []] : [' AND epoch = ?', [from.epoch]]
  const left = await run(
    trx,
    `UPDATE webhooks SET status = ?, status_reason = ?, held_until = NULL,
       updated_at = CASE WHEN updated_at < ? THEN ? ELSE updated_at + 1 END, ${END_EPOCH}
     WHERE id = ? AND status = ?${ofEpoch}`,
    [to.status, to.reason, now, now, id, from.status, ...epochs],
  )
  if (left > 0) await sweepAfterChange(trx, id, now)
  return left > 0
}

/**
 * A webhook that the token sees, held against changes until the transaction ends; CONFLICT unless it is active.
 */
export const lockActive = async (
  change: Change,
  id: string,
  lock: 'forShare' | 'forUpdate' = 'forShare',
): Promise<WebhookRow> => {
  const webhook = await lockWebhook(change, id, lock)
  if (webhook.status === 'active') return webhook
  const message = `The webhook is ${webhook.status}. Set its status to active, which pings it first.`
  throw new TidingsError('CONFLICT', message, { webhookId: id, status: webhook.status })
}
