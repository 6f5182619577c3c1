import { toIso } from '../../../shared/time.ts'
import { createWebhook, pingWebhook, upsertWebhook } from '../../delivery/registration.ts'
import type { Change } from '../../domain/change.ts'
import { recoverDeliveries } from '../../domain/recovery.ts'
import { deliveries, type WebhookRow, webhooks } from '../../domain/resources.ts'
import type { WebhookInput } from '../../domain/webhooks.ts'
import type { Json } from '../../mango/selector.ts'
import type { Context } from '../context.ts'
import { createLoaders } from '../loaders.ts'
import { type Mutations, mutation, timeArgument } from './mutation.ts'

const LISTS = Object.values(webhooks.fields).filter(field => field.kind === 'list')

type Told = { webhook: WebhookRow; lists: Json[] }

/** Reads a webhook with its lists in the transaction that has changed it. */
const told =
  ({ database, tools }: Context) =>
  async ({ trx, token }: Change, webhook: WebhookRow): Promise<Told> => {
    const { value } = createLoaders({ ...database, knex: trx }, tools.clock, token)
    return { webhook, lists: await Promise.all(LISTS.map(list => value(list).load(webhook.id))) }
  }

/** Answers with a webhook as its change has left it, whatever others have changed since. */
const answer = ({ webhook, lists }: Told, { loaders }: Context): WebhookRow => {
  for (const [index, list] of LISTS.entries()) loaders.value(list).prime(webhook.id, lists[index]!)
  return webhook
}

export const webhookMutations: Mutations = {
  createWebhook: mutation<WebhookInput>('webhooks', async (input, context) =>
    answer(await createWebhook(context, input, told(context)), context),
  ),
  upsertWebhook: mutation<WebhookInput & { id?: string }>('webhooks', async ({ id, ...input }, context) =>
    answer(await upsertWebhook(context, id, input, told(context)), context),
  ),
  pingWebhook: mutation<{ id: string }>('webhooks', async ({ id }, context) => {
    const deliveryId = await pingWebhook(context, id)
    return context.loaders.row(deliveries).load(deliveryId)
  }),
  recoverDeliveries: mutation<{ webhookId: string; since: string; until?: string }>(
    'webhooks',
    async ({ webhookId, since, until }, { tools: { clock }, change }) => {
      const span = { since: timeArgument(since)!, until: timeArgument(until) }
      const recovery = await recoverDeliveries({ clock, change }, webhookId, span)
      const { resumeSince } = recovery
      return { ...recovery, resumeSince: resumeSince === null ? null : toIso(resumeSince) }
    },
  ),
}
