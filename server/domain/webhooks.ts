import { isDeepStrictEqual } from 'node:util'
import { badInput, TidingsError } from '../../shared/errors.ts'
import {
  type EventType,
  eventTypes,
  type WebhookOrdering,
  type WebhookRecovery,
  type WebhookSigning,
  type WebhookStatus,
  type WebhookTransport,
} from '../../shared/vocabulary.ts'
import { insertMany, marks, rows, run, type Sql } from '../database/connect.ts'
import { dialectOf } from '../database/dialect.ts'
import type { Transaction } from '../database/transaction.ts'
import type { Sealer } from '../keys/seal.ts'
import { takeTurns } from './access-tokens.ts'
import type { Change } from './change.ts'
import { checkLabels, type Labels, labelsText } from './labels.ts'
import { pingSoon } from './missed.ts'
import { checkName } from './names.ts'
import type { AccessToken } from './permissions.ts'
import { heldUntilOf, holdOf } from './pull-time.ts'
import { organisations, projects, type WebhookRow, webhooks } from './resources.ts'
import { requireEveryProcessKnows } from './side-by-side.ts'
import { sweepAfterChange } from './sweep.ts'
import { findVisible, requireVisible, seesAnyway, visibleRow, visibleTo } from './visibility.ts'
import { isRenewable, keepEnded } from './webhook-ids.ts'
import {
  type Carried,
  carriedAfter,
  checkCarried,
  madeSecret,
  openCarried,
  rotated,
  sealCarried,
} from './webhook-requests.ts'
import { keepVersion } from './webhook-versions.ts'

/** A client's input for a webhook. Undefined leaves a field as it is; an empty list means all. */
export type WebhookInput = {
  url?: string | undefined
  /** Empty for none. */
  name?: string | undefined
  /** The complete set of labels. */
  labels?: Labels | undefined
  events?: EventType[] | undefined
  organisationIds?: string[] | undefined
  projectIds?: string[] | undefined
  ordering?: WebhookOrdering | undefined
  transport?: WebhookTransport | undefined
  recovery?: WebhookRecovery | undefined
  signing?: WebhookSigning | undefined
  /** The caller's own secret for `signing: standard`. */
  secret?: string | undefined
  /** The complete set of static headers. */
  headers?: Record<string, string> | undefined
  status?: WebhookStatus | undefined
}

const URL_MAX_LENGTH = 2048

/**
 * Throws BAD_USER_INPUT or NOT_FOUND unless every part of `input` is well formed and every id in it is visible to the
 * token.
 */
export const checkWebhookInput = async (
  sql: Sql,
  token: AccessToken,
  input: WebhookInput,
  { requireHttps }: { requireHttps: boolean },
): Promise<void> => {
  if (input.url !== undefined) checkUrl(input.url, requireHttps)
  if (input.name) checkName(input.name)
  if (input.labels !== undefined) checkLabels(input.labels)
  checkCarried(input)
  if (input.events?.includes('ping')) {
    const others = eventTypes.filter(type => type !== 'ping').join(', ')
    throw badInput('events', `"ping" cannot be chosen: it is sent on registration and on demand. Choose from ${others}`)
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
  if (requireHttps && parsed.protocol !== 'https:') throw badInput('url', `must be ${wanted} on this server`)
  if (parsed.username || parsed.password) throw badInput('url', 'must not carry a user name or password')
  if (url.includes('#')) throw badInput('url', 'must not have a fragment (#…): it would never be sent')
  if (/[\s\p{Cc}]/u.test(url)) throw badInput('url', 'must not contain white space or control characters')
  if (url.length > URL_MAX_LENGTH) throw badInput('url', `is longer than ${URL_MAX_LENGTH} characters`)
}

/** The URL of a webhook whose deliveries clients take, and so the audience of their tokens. Nothing is sent there. */
const pullUrl = (issuerUrl: string, id: string): string => `${issuerUrl}/pull/${id}`

/**
 * The input with the URL that its transport implies. Throws BAD_USER_INPUT if the two do not fit together.
 *
 * @param seen the webhook that it changes; undefined for a new one
 */
export const withTransport = (
  input: WebhookInput,
  { id, seen, issuerUrl }: { id: string; seen: WebhookRow | undefined; issuerUrl: string },
): WebhookInput => {
  const was = seen?.transport ?? 'push'
  const transport = input.transport ?? was
  if (transport === 'push') {
    if (input.url === undefined && !(seen && was === 'push')) {
      throw badInput('url', `is missing; ${seen ? 'with transport push' : 'a new webhook'} needs one`)
    }
    return { ...input, transport }
  }
  const url = seen && was === 'pull' ? seen.url : pullUrl(issuerUrl, id)
  if (input.url !== undefined && input.url !== url) {
    throw badInput(
      'url',
      'must be left out with transport pull: nothing is sent. To send to a URL, give transport push',
    )
  }
  return { ...input, transport, url: seen && was === 'pull' ? undefined : url }
}

/** The webhook with this id, if the token sees it. */
export const findWebhook = (sql: Sql, token: AccessToken, id: string): Promise<WebhookRow | undefined> =>
  findVisible(sql, token, webhooks, id)

/** The webhook with this id; NOT_FOUND if the token does not see it. */
export const requireWebhook = (sql: Sql, token: AccessToken, id: string): Promise<WebhookRow> =>
  visibleRow(sql, token, webhooks, id)

/** A webhook as this transaction has locked it. */
export const webhookNow = async (trx: Sql, id: string): Promise<WebhookRow> => {
  const [webhook] = await rows<WebhookRow>(trx, 'SELECT * FROM webhooks WHERE id = ?', [id])
  return webhook!
}

/** Throws CONFLICT if the token has created as many webhooks as it may. */
export const requireRoom = async (sql: Sql, token: AccessToken, most: number): Promise<void> => {
  const [found] = await rows<{ made: number }>(
    sql,
    'SELECT COUNT(*) AS made FROM webhooks WHERE access_token_id = ? AND deleted_at IS NULL',
    [token.id],
  )
  if (Number(found!.made) < most) return
  throw new TidingsError(
    'CONFLICT',
    `This access token has created ${most} webhooks, the maximum (TIDINGS_WEBHOOKS_PER_TOKEN). ` +
      'Change one of them, or use another token.',
    { limit: most },
  )
}

/**
 * Stores a webhook whose endpoint has answered its ping, in place of a deleted one with the same id. Throws the
 * database's duplicate error if an existing webhook has the id.
 */
export const insertWebhook = async (
  { trx, token, now }: Change,
  id: string,
  input: WebhookInput & { url: string },
  { mostOfToken, ...making }: Making & { mostOfToken: number },
): Promise<Changed> => {
  // The lock ensures that two concurrent calls do not both get the last free slot.
  await takeTurns(trx, token)
  await requireRoom(trx, token, mostOfToken)
  await lockProjects(trx, id, input.projectIds ?? [])
  await requireVisible(trx, token, projects, input.projectIds ?? [])
  await requireRecoverable(trx, input.recovery)
  const { changed, columns } = await carry(trx, making, { id, sealed: null }, input)
  const time = now()
  const stored = {
    signing: 'token' as const,
    request_sealed: null,
    ...columns,
    access_token_id: token.id,
    url: input.url,
    name: input.name || null,
    labels: labelsText(input.labels ?? {}),
    status: input.status ?? 'active',
    ordering: input.ordering ?? 'none',
    ...recoveryColumns(input.recovery ?? 'on_demand', undefined, time),
    transport: input.transport ?? 'push',
    all_events: 1,
    all_organisations_and_projects: 1,
    created_at: time,
    updated_at: time,
  }
  const row = { ...stored, held_until: holdOf(stored) }
  if (await isRenewable(trx, token, id)) {
    const anew = { ...row, status_reason: null, ordered_since: time, deleted_at: null }
    const renewed = await trx('webhooks').where({ id }).whereNotNull('deleted_at').update(anew)
    if (renewed > 0) {
      await run(trx, `UPDATE webhooks SET ${END_EPOCH} WHERE id = ?`, [id])
      await writeLists(trx, id, { events: [], organisationIds: [], projectIds: [], headers: {}, ...input })
      return changed
    }
  }
  await trx('webhooks').insert({ id, ...row })
  await writeLists(trx, id, input)
  return changed
}

/**
 * Deletes a disabled webhook. Its row stays, in no list, as long as deliveries to it exist. Throws NOT_FOUND or
 * CONFLICT.
 */
export const deleteWebhook = async (change: Change, id: string): Promise<void> => {
  const { trx, now } = change
  const { status, updated_at } = await lockWebhook(change, id, 'forUpdate')
  if (status !== 'disabled') {
    const message = `The webhook is ${status}. Disable it first, which cancels its pending deliveries.`
    throw new TidingsError('CONFLICT', message, { webhookId: id, status })
  }
  const time = Math.max(now(), updated_at + 1)
  const gone = 'UPDATE webhooks SET deleted_at = ?, updated_at = ?, request_sealed = NULL WHERE id = ?'
  await run(trx, gone, [time, time, id])
  await run(trx, 'DELETE FROM webhook_recoveries WHERE webhook_id = ?', [id])
}

/**
 * Removes the rows of webhooks that were deleted before a time and have no deliveries any more, but for their ids;
 * returns their number.
 */
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
  await keepEnded(trx, ids)
  for (const table of [
    'webhook_events',
    'webhook_organisations',
    'webhook_projects',
    'webhook_headers',
    'webhook_recoveries',
    'webhook_versions',
  ]) {
    await run(trx, `DELETE FROM ${table} WHERE webhook_id IN (${marks(ids)})`, ids)
  }
  await run(trx, `DELETE FROM webhooks WHERE id IN (${marks(ids)})`, ids)
  return ids.length
}

/** What a change needs to make and seal secrets. */
export type Making = {
  sealer: Sealer
  /** The secret of the webhook if it gets one. */
  candidate: string
}

/** What a change answers besides the webhook: the secret that it has made, if it has made one. */
export type Changed = { secret: string | null }

/** What the requests of a webhook carry once `input` is stored. Throws BAD_USER_INPUT. */
export const carriedOnceStored = (
  { sealer, candidate }: Making,
  webhook: WebhookRow | undefined,
  input: WebhookInput,
): Carried => carriedAfter(openCarried(sealer, webhook?.id ?? '', webhook?.request_sealed ?? null), input, candidate)

/**
 * Static headers are for the server that they were given for: throws BAD_USER_INPUT if `input` would send them to
 * another, whose owner may be one who may change the webhook and must not learn the values.
 */
export const requireHeadersAnew = (sealer: Sealer, webhook: WebhookRow, input: WebhookInput): void => {
  const { url, transport, headers } = input
  if (url === undefined || transport === 'pull' || headers !== undefined) return
  const [to, from] = [URL.parse(url)?.origin, URL.parse(webhook.url)?.origin]
  if (to === from || Object.keys(openCarried(sealer, webhook.id, webhook.request_sealed).headers).length === 0) return
  throw badInput('headers', `must be given anew: those that the webhook has were given for ${from}; {} sends none`)
}

/** The basis of an update: the webhook as it was read, and the URL that answered a ping. */
export type Prepared = { seen: WebhookRow; pinged: string | undefined }

/** The URL that must answer a ping before `input` is stored; undefined if none must. */
export const urlToPing = (webhook: WebhookRow, input: WebhookInput): string | undefined => {
  const url = input.url ?? webhook.url
  return url !== webhook.url || (input.status === 'active' && webhook.status !== 'active') ? url : undefined
}

/**
 * Applies `input` to a webhook that the token may change, in its present state. Other fields may have changed since it
 * was read. Throws CONFLICT if someone else changed the same field differently, except that disabling never conflicts.
 * Leaving `active` cancels pending deliveries.
 *
 * @returns undefined, with nothing done, if another URL must now answer a ping first
 */
export const updateWebhook = async (
  change: Change,
  { seen, pinged, ...making }: Prepared & Making,
  input: WebhookInput,
): Promise<Changed | undefined> => {
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
  requireHeadersAnew(making.sealer, before, input)
  const mustAnswer = urlToPing(before, input)
  if (mustAnswer !== undefined && mustAnswer !== pinged) return undefined
  await requireVisible(trx, token, projects, projectIds ?? [])
  if (before.recovery !== 'automatic') await requireRecoverable(trx, input.recovery)
  const { changed, columns } = await carry(trx, making, { id, sealed: before.request_sealed }, input)
  const redirected = url !== undefined && url !== before.url
  const transport = redirected ? (input.transport ?? before.transport) : before.transport
  const holding = { transport, request_sealed: before.request_sealed, ...columns }
  // What waits in memory is read again, so that it carries what is stored now.
  const isOther = redirected || 'request_sealed' in columns
  // Increases with each change, so that a reader of the filters sees whether they still apply.
  const time = Math.max(now(), before.updated_at + 1)
  // What leaves `active` is kept below.
  const replaced = status === 'active' ? input : { ...input, status: undefined }
  await keepVersion(trx, before, { ...replaced, untilAt: time, accessTokenId: token.id })
  await trx('webhooks')
    .where({ id })
    .update({
      updated_at: time,
      ...columns,
      ...(ordering !== undefined && ordering !== before.ordering && { ordering, ordered_since: time }),
      ...(redirected && { url, transport }),
      ...(isOther && {
        epoch: before.epoch + 1,
        held_until: redirected ? holdOf(holding) : rescaled(before.held_until, holding),
      }),
      ...(input.recovery !== undefined && recoveryColumns(input.recovery, before, time)),
      ...(input.name !== undefined && { name: input.name || null }),
      ...(input.labels !== undefined && { labels: labelsText(input.labels) }),
    })
  await writeLists(trx, id, input)
  if (pinged !== undefined) await pingSoon(trx, id, time)
  if (status === 'disabled' && before.status !== 'disabled') {
    const to = { status: 'disabled', reason: null } as const
    await leaveActive(trx, id, { from: { status: before.status }, to, accessTokenId: token.id }, time)
  }
  if (status === 'active' && before.status !== 'active') {
    await run(
      trx,
      `UPDATE webhooks SET status = 'active', status_reason = NULL, held_until = ?, ${END_EPOCH}
       WHERE id = ? AND status = ?`,
      [holdOf(holding), id, before.status],
    )
  }
  // A caller can neither widen a webhook beyond its own sight, nor redirect to itself a webhook that receives more.
  if (redirected || organisationIds || projectIds) await requireRedirectable(trx, token, id)
  // Pending deliveries go to the new URL, except those that the webhook's narrowed filters no longer allow.
  if (isOther) await sweepAfterChange(trx, id, time)
  return changed
}

/** The same hold on the scale that the webhook now has. Clients keep to theirs. */
const rescaled = (heldUntil: number | null, now: Parameters<typeof holdOf>[0]): number | null =>
  now.transport === 'pull' ? heldUntil : holdOf(now, heldUntilOf(heldUntil))

/** What the requests carry after a change of a webhook, and the columns that say so. Throws BAD_USER_INPUT. */
const carry = async (
  trx: Sql,
  { sealer, candidate }: Making,
  { id, sealed }: { id: string; sealed: string | null },
  input: WebhookInput,
): Promise<{ changed: Changed; columns: Partial<WebhookRow> }> => {
  const { signing, headers } = input
  if (signing === undefined && headers === undefined && input.secret === undefined)
    return { changed: NO_SECRET, columns: {} }
  const before = openCarried(sealer, id, sealed)
  const after = carriedAfter(before, input, candidate)
  if (isDeepStrictEqual(after, before)) return { changed: NO_SECRET, columns: {} }
  const request_sealed = sealCarried(sealer, id, after)
  if (sealed === null && request_sealed !== null) await requireEveryProcessKnows(trx, '0015_signing', CANNOT)
  return {
    changed: { secret: madeSecret(before, after) },
    columns: { request_sealed, signing: after.secrets.length > 0 ? 'standard' : 'token' },
  }
}

/** How long the secrets that a rotation replaces go on signing, in seconds, and the most. */
export const GRACE_SECONDS = { usual: 24 * 3600, most: 7 * 24 * 3600 }

/**
 * Gives a webhook with `signing: standard` another secret. The present one goes on signing for `graceSeconds`, earlier
 * ones until their own end; with 0, all of them end now. Throws BAD_USER_INPUT, NOT_FOUND or CONFLICT.
 */
export const rotateSecret = async (
  change: Change,
  { sealer, candidate }: Making,
  { id, secret, graceSeconds = GRACE_SECONDS.usual }: { id: string; secret?: string; graceSeconds?: number },
): Promise<Changed> => {
  checkCarried({ secret })
  if (graceSeconds < 0 || graceSeconds > GRACE_SECONDS.most) {
    throw badInput('graceSeconds', `must be between 0 and ${GRACE_SECONDS.most} (7 days)`)
  }
  const { trx, now } = change
  const before = await lockWebhook(change, id, 'forUpdate')
  const carried = openCarried(sealer, id, before.request_sealed)
  const time = Math.max(now(), before.updated_at + 1)
  const after = rotated(carried, candidate, { now: time, graceMs: graceSeconds * 1000 })
  if (after === undefined) {
    const message = `The webhook's signing is ${before.signing}. Set it to standard, which makes a secret.`
    throw new TidingsError('CONFLICT', message, { webhookId: id, status: before.status })
  }
  const columns = { request_sealed: sealCarried(sealer, id, after), updated_at: time, epoch: before.epoch + 1 }
  await trx('webhooks').where({ id }).update(columns)
  await sweepAfterChange(trx, id, time)
  return { secret: candidate }
}

/** A process that does not know recoveries would drop a delivery without a note of it. */
const requireRecoverable = async (trx: Sql, recovery: WebhookRecovery | undefined): Promise<void> => {
  if (recovery === 'automatic') await requireEveryProcessKnows(trx, '0018_recovery', 'note what a webhook has missed')
}

/** What a webhook that heals itself missed before it did is not sent again by itself. */
const recoveryColumns = (recovery: WebhookRecovery, before: WebhookRow | undefined, time: number) => ({
  recovery,
  automatic_since: recovery === before?.recovery ? before.automatic_since : recovery === 'automatic' ? time : null,
})

const NO_SECRET: Changed = { secret: null }
const CANNOT = 'sign by Standard Webhooks or send static headers'

const wasDisabled = (seen: WebhookRow, now: WebhookRow): boolean =>
  seen.status !== 'disabled' && now.status === 'disabled'

/**
 * A webhook that the token sees now, locked until the transaction ends. Throws NOT_FOUND.
 *
 * @param projectIds the projects that it will name, locked too
 */
const lockWebhook = async (
  { trx, token }: Change,
  id: string,
  lock: 'forShare' | 'forUpdate',
  projectIds: readonly string[] = [],
): Promise<WebhookRow> => {
  const [webhook] = await rows<WebhookRow>(trx, `SELECT * FROM webhooks WHERE id = ?${dialectOf(trx)[lock]}`, [id])
  // Then it is seen wherever its projects are.
  const isSeen = webhook !== undefined && webhook.deleted_at === null && seesAnyway(token, webhook)
  if (!isSeen || projectIds.length > 0) await lockProjects(trx, id, projectIds)
  return isSeen ? webhook : requireWebhook(trx, token, id)
}

/** Locks the projects that a webhook names or will name in their organisations, which decide what it can receive. */
const lockProjects = async (trx: Sql, webhookId: string, projectIds: readonly string[]): Promise<void> => {
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

const requireRedirectable = async (trx: Transaction, token: AccessToken, id: string): Promise<void> => {
  if (await trx('webhooks').where('webhooks.id', id).modify(visibleTo(token)(webhooks)).first('id')) return
  throw new TidingsError(
    'FORBIDDEN',
    'The webhook would receive events of organisations that this access token does not see. ' +
      'Name only organisations or projects that it sees.',
  )
}

const writeLists = async (trx: Transaction, id: string, input: WebhookInput): Promise<void> => {
  const lists = [
    ['webhook_events', 'event_type', input.events],
    ['webhook_organisations', 'organisation_id', input.organisationIds],
    ['webhook_projects', 'project_id', input.projectIds],
    ['webhook_headers', 'name', input.headers && Object.keys(input.headers)],
  ] as const
  for (const [table, column, values] of lists) {
    if (values === undefined) continue
    await trx(table).where('webhook_id', id).delete()
    await insertMany(
      trx,
      table,
      // In the order of the indexes, thousands of rows are written several times as fast.
      [...new Set<string>(values)].toSorted().map(value => ({ webhook_id: id, [column]: value })),
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

/** Ends everything pending. On every engine the first of the two assignments reads the old epoch. */
const END_EPOCH = 'ended_epoch = epoch + 1, epoch = epoch + 1'

type Leaving = {
  from: { status: WebhookStatus; epoch?: number }
  to: { status: 'inactive' | 'disabled'; reason: string | null }
  /** Who makes it leave, unless an answer of its endpoint does. */
  accessTokenId?: string
}

/**
 * Takes a webhook out of `active` and cancels its pending deliveries: some at once, the others soon. Requests in flight
 * are finished, and count as delivered if the receiver acknowledges them.
 *
 * @param change.from does nothing if the webhook has another status by now, or another epoch than the given one
 * @returns whether it has left `active`
 */
export const leaveActive = async (
  trx: Sql,
  id: string,
  { from, to, accessTokenId }: Leaving,
  now: number,
): Promise<boolean> => {
  const [ofEpoch, epochs] = from.epoch === undefined ? ['', []] : [' AND epoch = ?', [from.epoch]]
  const left = await run(
    trx,
    `UPDATE webhooks SET status = ?, status_reason = ?, held_until = NULL,
       updated_at = CASE WHEN updated_at < ? THEN ? ELSE updated_at + 1 END, ${END_EPOCH}
     WHERE id = ? AND status = ?${ofEpoch}`,
    [to.status, to.reason, now, now, id, from.status, ...epochs],
  )
  if (left === 0) return false
  const { url, updated_at: untilAt } = await webhookNow(trx, id)
  const change = { status: to.status, untilAt: Number(untilAt), accessTokenId: accessTokenId ?? null }
  await keepVersion(trx, { id, url, status: from.status }, change)
  await sweepAfterChange(trx, id, now)
  return true
}

/**
 * A webhook that the token sees, locked until the transaction ends. Throws NOT_FOUND, or CONFLICT unless it is active.
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
