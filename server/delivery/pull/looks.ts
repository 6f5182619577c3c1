import { TidingsError } from '../../../shared/errors.ts'
import type { WebhookStatus, WebhookTransport } from '../../../shared/vocabulary.ts'
import { type Database, marks, rows } from '../../database/connect.ts'
import { PULL_TIME } from '../../domain/pull-time.ts'
import { PING_MS } from './pings.ts'

/** What a look finds of webhooks that clients wait for, of the clients' tokens, and of pings. */
export type Found = {
  kind: 'webhook' | 'token' | 'ping'
  id: string
  state: string
  about: string
  owner: string
  number: number | null
  ends_at: number | null
}

/** Looks, in one statement, at webhooks and tokens; `number` of a webhook is 1 if something is due. */
export const lookAt = (
  { knex, dialect }: Database,
  { webhookIds, tokenIds, now }: { webhookIds: string[]; tokenIds: string[]; now: number },
): Promise<Found[]> => {
  const index = dialect.useIndex('delivery_queue_by_webhook')
  const due = (recovered: 0 | 1) =>
    `EXISTS (SELECT 1 FROM delivery_queue q ${index} WHERE q.webhook_id = w.id AND q.epoch = w.epoch
       AND q.recovered = ${recovered} AND q.due_at >= ${PULL_TIME} AND q.due_at <= ?)`
  const dueBy = PULL_TIME + now
  return rows<Found>(
    knex,
    `SELECT 'webhook' AS kind, w.id, w.status AS state, w.transport AS about, w.access_token_id AS owner,
       CASE WHEN w.held_until <= ? AND (${due(0)} OR ${due(1)}) THEN 1 ELSE 0 END AS number, NULL AS ends_at
     FROM webhooks w WHERE w.id IN (${marks(webhookIds)}) AND w.deleted_at IS NULL
     UNION ALL SELECT 'token', t.id, t.id, t.id, t.id, t.revoked_at, t.expires_at FROM access_tokens t
     WHERE t.id IN (${marks(tokenIds)})
     UNION ALL SELECT 'ping', p.webhook_id, p.delivery_id, p.webhook_id, p.access_token_id, 0, NULL FROM pull_pings p
     WHERE p.webhook_id IN (${marks(webhookIds)}) AND p.taken_at IS NULL AND p.created_at > ?`,
    [dueBy, dueBy, dueBy, ...webhookIds, ...tokenIds, ...webhookIds, now - PING_MS],
  )
}

export const isPulled = (webhook: Found | undefined): boolean => webhook?.state === 'active' && webhook.about === 'pull'

/** Why nothing can be taken from a webhook. */
export const notPulled = (webhookId: string, status: WebhookStatus, transport: WebhookTransport): TidingsError => {
  const details = { webhookId, status }
  if (status !== 'active') {
    const instead = 'Set its status to active while a client waits here: it has to answer a ping.'
    const message = `The webhook is ${status}. ${instead}`
    return new TidingsError('CONFLICT', message, details)
  }
  const message =
    transport === 'push'
      ? 'The deliveries of this webhook are sent to its URL: its transport is push.'
      : 'The webhook was changed. Ask again.'
  return new TidingsError('CONFLICT', message, details)
}
