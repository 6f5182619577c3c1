import { v7 as uuid } from 'uuid'
import { badInput, notFound, TidingsError } from '../../../shared/errors.ts'
import { toIso } from '../../../shared/time.ts'
import { isDuplicate } from '../../database/connect.ts'
import { pingBeforeStoring, pingWebhook, recordAnsweredPing } from '../../delivery/ping.ts'
import { recoverDeliveries } from '../../domain/recovery.ts'
import { deliveries, type WebhookRow, webhooks } from '../../domain/resources.ts'
import {
  checkWebhookInput,
  findWebhook,
  insertWebhook,
  requireWebhook,
  updateWebhook,
  type WebhookInput,
} from '../../domain/webhooks.ts'
import type { Context } from '../context.ts'
import { given, needs, type Resolvers, time, timeArgument } from './resolvers.ts'

export const webhookResolvers: Resolvers = {
  Query: {
    webhooks: needs('read', (_root, { query }, context) => context.list(webhooks, query)),
  },
  Mutation: {
    createWebhook: needs('webhooks', (_root, args, context) => create(context, uuid(), given(args))),
    upsertWebhook: needs('webhooks', async (_root, { id, ...args }, context) => {
      const input: WebhookInput = given(args)
      const existing = id ? await findWebhook(context.database.knex, context.token, id) : undefined
      return existing ? update(context, existing, input) : create(context, id ?? uuid(), input)
    }),
    pingWebhook: needs('webhooks', async (_root, { id }, context) => {
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
      return database.knex('deliveries').where({ id: deliveryId }).first()
    }),
    recoverDeliveries: needs(
      'webhooks',
      async (_root, { webhookId, since, until }, { database, tools, loop, token }) => {
        await requireWebhook(database.knex, token, webhookId)
        const span = { since: timeArgument(since)!, until: timeArgument(until) }
        return recoverDeliveries(database, tools.clock, token, webhookId, span, loop.wake)
      },
    ),
  },
  Webhook: {
    events: (webhook, _args, { loaders }) => loaders.webhookEvents.load(webhook.id),
    organisationIds: (webhook, _args, { loaders }) => loaders.webhookOrganisationIds.load(webhook.id),
    projectIds: (webhook, _args, { loaders }) => loaders.webhookProjectIds.load(webhook.id),
    statusReason: webhook => webhook.status_reason,
    createdAt: time('created_at'),
    updatedAt: time('updated_at'),
    lastDeliveryAt: (webhook, _args, { loaders }) => loaders.lastDeliveryAt.load(webhook.id),
    health: (webhook, _args, { loaders }) => loaders.health.load(webhook.id),
    deliveries: needs('read', (webhook, { query }, context, info) =>
      context.children(info, deliveries, query, { column: 'webhook_id' }, webhook.id),
    ),
  },
  Recovery: {
    resumeSince: recovery => (recovery.resumeSince === null ? null : toIso(recovery.resumeSince)),
  },
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
