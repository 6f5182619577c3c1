import { v7 as uuid } from 'uuid'
import { badInput, notFound, TidingsError } from '../../../shared/errors.ts'
import { toIso } from '../../../shared/time.ts'
import { isDuplicate } from '../../database/connect.ts'
import { pingBeforeStoring, pingWebhook, recordAnsweredPing } from '../../delivery/ping.ts'
import { recoverDeliveries } from '../../domain/recovery.ts'
import { deliveries, type WebhookRow } from '../../domain/resources.ts'
import {
  checkWebhookInput,
  findWebhook,
  insertWebhook,
  requireWebhook,
  updateWebhook,
  type WebhookInput,
} from '../../domain/webhooks.ts'
import type { Context } from '../context.ts'
import { type Mutations, mutation, timeArgument } from './mutation.ts'

export const webhookMutations: Mutations = {
  createWebhook: mutation<WebhookInput>('webhooks', (input, context) => create(context, uuid(), input)),
  upsertWebhook: mutation<WebhookInput & { id?: string }>('webhooks', async ({ id, ...input }, context) => {
    const existing = id ? await findWebhook(context.database.knex, context.token, id) : undefined
    return existing ? update(context, existing, input) : create(context, id ?? uuid(), input)
  }),
  pingWebhook: mutation<{ id: string }>('webhooks', async ({ id }, context) => {
    const { database, tools, loop, token } = context
    const webhook = await requireWebhook(database.knex, token, id)
    if (webhook.status !== 'active') {
      throw new TidingsError(
        'CONFLICT',
        `The webhook is ${webhook.status}. Set its status to active, which pings it first.`,
        { webhookId: id, status: webhook.status },
      )
    }
    const deliveryId = await pingWebhook(database, tools.clock, loop, id)
    return context.loaders.row(deliveries).load(deliveryId)
  }),
  recoverDeliveries: mutation<{ webhookId: string; since: string; until?: string }>(
    'webhooks',
    async ({ webhookId, since, until }, { database, tools, loop, token }) => {
      await requireWebhook(database.knex, token, webhookId)
      const span = { since: timeArgument(since)!, until: timeArgument(until) }
      const recovery = await recoverDeliveries(database, tools.clock, token, webhookId, span, loop.wake)
      const { resumeSince } = recovery
      return { ...recovery, resumeSince: resumeSince === null ? null : toIso(resumeSince) }
    },
  ),
}

const create = async (context: Context, id: string, input: WebhookInput): Promise<WebhookRow> => {
  const { database, tools, token, requireHttps } = context
  const { url } = input
  if (url === undefined) throw badInput('url', 'is missing; a new webhook needs one')
  await checkWebhookInput(database.knex, token, input, { requireHttps })
  // Before the ping: an id that is taken by a webhook out of sight answers as one that never was.
  if (await database.knex('webhooks').where({ id }).first()) throw notFound('webhook', [id])
  const ping = await pingBeforeStoring(tools, { webhookId: id, url })
  try {
    await context.change(async change => {
      await insertWebhook(change, id, { ...input, url })
      await recordAnsweredPing(change.trx, id, ping)
    })
  } catch (error) {
    // The same upsert, made twice at once: the first has stored it, and the second changes it.
    if (!isDuplicate(error)) throw error
    const stored = await findWebhook(database.knex, token, id)
    if (!stored) throw notFound('webhook', [id])
    return update(context, stored, input)
  }
  return requireWebhook(database.knex, token, id)
}

const update = async (context: Context, before: WebhookRow, input: WebhookInput): Promise<WebhookRow> => {
  const { database, tools, token, requireHttps } = context
  await checkWebhookInput(database.knex, token, input, { requireHttps })
  const url = input.url ?? before.url
  const mustAnswer = url !== before.url || (input.status === 'active' && before.status !== 'active')
  const ping = mustAnswer ? await pingBeforeStoring(tools, { webhookId: before.id, url }) : undefined
  await context.change(async change => {
    await updateWebhook(change, before, input)
    if (ping) await recordAnsweredPing(change.trx, before.id, ping)
  })
  return requireWebhook(database.knex, token, before.id)
}
