import type { Knex } from 'knex'
import { badInput, notFound, TidingsError } from '../../shared/errors.ts'
import { type EventType, eventTypes, type WebhookStatus } from '../../shared/vocabulary.ts'
import { insertMany, rows, run, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import type { Change } from './change.ts'
import { type ActiveWebhook, sweepAfterChange } from './deliveries.ts'
import type { AccessToken } from './permissions.ts'
import { organisations, projects, type WebhookRow, webhooks } from './resources.ts'
import { findVisible, redirectableWebhooks, requireVisible } from './visibility.ts'

/** What a client says of a webhook. Undefined leaves as it is; an empty list means all. */
export type WebhookInput = {
  url?: string | undefined
  events?: EventType[] | undefined
  organisationIds?: string[] | undefined
  projectIds?: string[] | undefined
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

/** Whether a webhook has this id, seen or not. */
export const isTaken = async (sql: Sql, id: string): Promise<boolean> =>
  (await sql('webhooks').where({ id }).first('id')) !== undefined

/** Stores a webhook whose endpoint has answered its ping. */
export const insertWebhook = async (
  { trx, token, now }: Change,
  id: string,
  input: WebhookInput & { url: string },
): Promise<void> => {
  await trx('webhooks').insert({
    id,
    access_token_id: token.id,
    url: input.url,
    status: input.status ?? 'active',
    all_events: 1,
    all_organisations_and_projects: 1,
    created_at: now,
    updated_at: now,
  })
  await writeLists(trx, id, input)
}

/**
 * Changes what `input` gives, of a webhook that is still as it was seen; CONFLICT if it is not. Leaving `active`
 * cancels what is pending.
 */
export const updateWebhook = async (change: Change, seen: WebhookRow, input: WebhookInput): Promise<void> => {
  const { trx, token, now } = change
  const { id } = seen
  const [before] = await rows<WebhookRow>(trx, `SELECT * FROM webhooks WHERE id = ?${dialectOf(trx).forUpdate}`, [id])
  // Whether it had to answer a ping was decided on what was seen.
  if (before!.url !== seen.url || before!.status !== seen.status) {
    throw new TidingsError('CONFLICT', 'The webhook was changed at the same moment. Look at it, and try again.', {
      webhookId: id,
      status: before!.status,
    })
  }
  const { url, organisationIds, projectIds } = input
  const redirected = url !== undefined && url !== before!.url
  await trx('webhooks')
    .where({ id })
    .update({ updated_at: now, ...(redirected && { url, held_until: null, epoch: before!.epoch + 1 }) })
  await writeLists(trx, id, input)
  if (input.status === 'disabled' && before!.status !== 'disabled') {
    await leaveActive(trx, id, 'disabled', null, now)
  }
  if (input.status === 'active' && before!.status !== 'active') {
    await run(
      trx,
      `UPDATE webhooks SET status = 'active', status_reason = NULL, held_until = NULL, ${END_EPOCH} WHERE id = ?`,
      [id],
    )
  }
  // Nobody can turn a webhook into one that receives more than they see, nor one that does towards themselves.
  if (redirected || organisationIds || projectIds) await requireRedirectable(trx, token, id)
  // What is pending goes to the new url, but for what is from before the webhook named less.
  if (redirected) await sweepAfterChange(trx, id, now)
}

const requireRedirectable = async (trx: Knex.Transaction, token: AccessToken, id: string): Promise<void> => {
  if (await trx('webhooks').where('webhooks.id', id).modify(redirectableWebhooks(token)).first('id')) return
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

/**
 * Takes a webhook out of `active` and cancels what is pending for it: some at once, any number of others soon. What is
 * being sent at this moment is finished, and counts as delivered if the receiver acknowledges it.
 *
 * @param ofEpoch if given, only a webhook that is active in this very epoch
 */
export const leaveActive = async (
  trx: Sql,
  id: string,
  status: 'inactive' | 'disabled',
  reason: string | null,
  now: number,
  ofEpoch?: number,
): Promise<void> => {
  const [condition, bindings] = ofEpoch === undefined ? ['', []] : [" AND status = 'active' AND epoch = ?", [ofEpoch]]
  const left = await run(
    trx,
    `UPDATE webhooks SET status = ?, status_reason = ?, held_until = NULL, updated_at = ?, ${END_EPOCH}
     WHERE id = ?${condition}`,
    [status, reason, now, id, ...bindings],
  )
  if (left > 0) await sweepAfterChange(trx, id, now)
}

/** A webhook's lock against a change of its state until the transaction ends; CONFLICT unless it is active. */
export const lockActive = async (trx: Sql, id: string): Promise<ActiveWebhook> => {
  const [webhook] = await rows<WebhookRow>(trx, `SELECT * FROM webhooks WHERE id = ?${dialectOf(trx).forShare}`, [id])
  if (!webhook) throw notFound('webhook', [id])
  if (webhook.status === 'active') return webhook
  throw new TidingsError(
    'CONFLICT',
    `The webhook is ${webhook.status}. Set its status to active, which pings it first.`,
    {
      webhookId: id,
      status: webhook.status,
    },
  )
}
