import { sign } from 'node:crypto'
import { TidingsError } from '../../shared/errors.ts'
import {
  type DeliveryEvidence,
  EVIDENCE_FORM,
  EVIDENCE_TYPE,
  type EvidenceContent,
  type EvidenceOfAttempt,
  signingInput,
} from '../../shared/evidence.ts'
import { toIso } from '../../shared/time.ts'
import { type Database, rows, type Sql } from '../database/connect.ts'
import type { AccessToken } from '../domain/permissions.ts'
import { type AttemptRow, type DeliveryRow, deliveries, type EventRow, type WebhookRow } from '../domain/resources.ts'
import { visibleRow } from '../domain/visibility.ts'
import { webhookAt } from '../domain/webhook-versions.ts'
import type { Keyring } from '../keys/signing-keys.ts'
import { type AttemptTools, bodyOf } from './attempt.ts'
import type { Evidence } from './evidence.ts'

/** The last attempts that it has: a document of some 100 KB, signed in a few milliseconds. */
const MOST_ATTEMPTS = 100

type Exporting = {
  database: Database
  token: AccessToken
  tools: Pick<AttemptTools, 'clock' | 'keyring' | 'issuerUrl'>
}

/**
 * What is known of a delivery, signed.
 *
 * @throws NOT_FOUND for a delivery that the token does not see, UNAVAILABLE while no key may sign
 */
export const signedEvidence = async (
  { database: { knex }, token, tools: { clock, keyring, issuerUrl } }: Exporting,
  deliveryId: string,
): Promise<DeliveryEvidence> => {
  const delivery = await visibleRow<DeliveryRow>(knex, token, deliveries, deliveryId)
  const [event] = await rows<EventRow>(knex, 'SELECT * FROM events WHERE id = ?', [delivery.event_id])
  const attempts = await attemptsOf(knex, delivery)
  const now = clock.now()
  if (keyring.signsFrom() > now)
    throw new TidingsError('UNAVAILABLE', 'No key may sign now. Try again in some minutes.', { retryAfterSeconds: 60 })
  const { webhook_id: webhookId, event_type: eventType } = delivery
  const body = { deliveryId, webhookId, eventType, eventTime: Number(event!.created_at), payload: event!.payload }
  const kids = attempts.flatMap(({ keyId }) => keyId ?? [])
  return signedBy(keyring, {
    form: EVIDENCE_FORM,
    issuer: issuerUrl,
    exportedAt: toIso(now),
    delivery: {
      ...{ id: deliveryId, webhookId, eventId: delivery.event_id, eventType, status: delivery.status },
      attemptCount: delivery.attempt_count,
      createdAt: toIso(Number(delivery.created_at)),
      finishedAt: delivery.finished_at === null ? null : toIso(Number(delivery.finished_at)),
    },
    request: { method: 'POST', body: bodyOf(body) },
    attempts,
    keys: keyring.jwks().keys.filter(({ kid }) => kids.includes(kid) || kid === keyring.current().kid),
  })
}

const signedBy = (keyring: Keyring, content: EvidenceContent): DeliveryEvidence => {
  const { kid, key } = keyring.current()
  const header = Buffer.from(JSON.stringify({ alg: 'EdDSA', kid, typ: EVIDENCE_TYPE })).toString('base64url')
  const signature = sign(null, Buffer.from(signingInput(header, content)), key).toString('base64url')
  return { ...content, signature: `${header}..${signature}` }
}

/** The attempts, each with the URL that the webhook had then. */
const attemptsOf = async (sql: Sql, { id, webhook_id }: DeliveryRow): Promise<EvidenceOfAttempt[]> => {
  const [webhook] = await rows<WebhookRow>(sql, 'SELECT * FROM webhooks WHERE id = ?', [webhook_id])
  const found = await rows<AttemptRow & { evidence: string | null }>(
    sql,
    'SELECT * FROM attempts WHERE delivery_id = ? ORDER BY number DESC LIMIT ?',
    [id, MOST_ATTEMPTS],
  )
  const attempts: EvidenceOfAttempt[] = []
  for (const row of found.toReversed()) {
    const { pulledBy: _, ...evidence } = JSON.parse(row.evidence ?? '{}') as Evidence
    attempts.push({
      number: row.number,
      url: (await webhookAt(sql, webhook!, row.started_at)).url,
      startedAt: toIso(Number(row.started_at)),
      ...{ durationMs: row.duration_ms, statusCode: row.status_code },
      ...{ failure: row.failure, failureDetail: row.failure_detail, response: row.response },
      retryAfter: row.retry_after === null ? null : toIso(Number(row.retry_after)),
      ...(evidence as Partial<EvidenceOfAttempt>),
    })
  }
  return attempts
}
