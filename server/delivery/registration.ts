import { badInput, notFound } from '../../shared/errors.ts'
import { type Database, isDuplicate } from '../database/connect.ts'
import type { Change } from '../domain/change.ts'
import type { AccessToken } from '../domain/permissions.ts'
import type { WebhookRow } from '../domain/resources.ts'
import {
  checkWebhookInput,
  findWebhook,
  insertWebhook,
  isTaken,
  requireWebhook,
  updateWebhook,
  type WebhookInput,
} from '../domain/webhooks.ts'
import { newId } from '../ids.ts'
import type { AttemptTools } from './attempt.ts'
import type { DeliveryLoop } from './loop.ts'
import { pingBeforeStoring, pingStored, recordAnsweredPing } from './ping.ts'

/** Whoever registers, and what it takes. */
export type Registrant = {
  database: Database
  token: AccessToken
  tools: AttemptTools
  requireHttps: boolean
  /** Runs a change in a transaction. */
  change(work: (change: Change) => Promise<void>): Promise<void>
}

/**
 * Stores a webhook, active, once its endpoint has answered a ping with 200; else throws PING_FAILED, and nothing is
 * stored.
 */
export const createWebhook = (registrant: Registrant, input: WebhookInput): Promise<WebhookRow> =>
  create(registrant, newId(registrant.tools.clock.now()), input)

/**
 * Changes what `input` gives of the webhook with this id, or stores a webhook with it, so that the same call may be
 * made again, or twice at once. A new url, or a return to `active`, must answer a ping with 200 first.
 */
export const upsertWebhook = async (
  registrant: Registrant,
  id: string | undefined,
  input: WebhookInput,
): Promise<WebhookRow> => {
  if (id === undefined) return createWebhook(registrant, input)
  const stored = await findWebhook(registrant.database.knex, registrant.token, id)
  return stored ? update(registrant, stored, input) : create(registrant, id, input)
}

const create = async (registrant: Registrant, id: string, input: WebhookInput): Promise<WebhookRow> => {
  const { database, token, tools, requireHttps } = registrant
  const { url } = input
  if (url === undefined) throw badInput('url', 'is missing; a new webhook needs one')
  await checkWebhookInput(database.knex, token, input, { requireHttps })
  // Before the ping: an id that is taken by a webhook out of sight answers as one that never was.
  if (await isTaken(database.knex, id)) throw notFound('webhook', [id])
  const ping = await pingBeforeStoring(tools, { webhookId: id, url })
  try {
    await registrant.change(async change => {
      await insertWebhook(change, id, { ...input, url })
      await recordAnsweredPing(change.trx, id, ping)
    })
  } catch (error) {
    // The same upsert, made twice at once: the first has stored it, and the second changes it.
    if (!isDuplicate(error)) throw error
    const stored = await findWebhook(database.knex, token, id)
    if (!stored) throw notFound('webhook', [id])
    return update(registrant, stored, input)
  }
  return requireWebhook(database.knex, token, id)
}

const update = async (registrant: Registrant, seen: WebhookRow, input: WebhookInput): Promise<WebhookRow> => {
  const { database, token, tools, requireHttps } = registrant
  await checkWebhookInput(database.knex, token, input, { requireHttps })
  const url = input.url ?? seen.url
  const mustAnswer = url !== seen.url || (input.status === 'active' && seen.status !== 'active')
  const ping = mustAnswer ? await pingBeforeStoring(tools, { webhookId: seen.id, url }) : undefined
  await registrant.change(async change => {
    await updateWebhook(change, seen, input)
    if (ping) await recordAnsweredPing(change.trx, seen.id, ping)
  })
  return requireWebhook(database.knex, token, seen.id)
}

/** Pings a stored, active webhook. Resolves with the delivery's id when the attempt has been recorded. */
export const pingWebhook = async (
  { database, token, tools, loop }: { database: Database; token: AccessToken; tools: AttemptTools; loop: DeliveryLoop },
  id: string,
): Promise<string> => {
  await requireWebhook(database.knex, token, id)
  return pingStored({ database, clock: tools.clock, loop }, id)
}
