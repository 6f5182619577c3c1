import type { RehearsalAnswer } from '../../../shared/rehearsal.ts'
import { toIso } from '../../../shared/time.ts'
import type { EventType, RehearsalScene } from '../../../shared/vocabulary.ts'
import {
  createWebhook,
  pingWebhook,
  rotateWebhookSecret,
  type Stored,
  upsertWebhook,
} from '../../delivery/registration.ts'
import { rehearse } from '../../delivery/rehearsal/rehearse.ts'
import type { Change } from '../../domain/change.ts'
import { sendExample } from '../../domain/examples.ts'
import { type Recovery, recoverDeliveries } from '../../domain/recovery.ts'
import { deliveries, type WebhookRow, webhooks } from '../../domain/resources.ts'
import { deleteWebhook, type WebhookInput } from '../../domain/webhooks.ts'
import type { Json } from '../../mango/selector.ts'
import type { Context } from '../context.ts'
import { createLoaders } from '../loaders.ts'
import { type Mutations, mutation, resumable, timeArgument } from './mutation.ts'

const LISTS = Object.values(webhooks.fields).filter(field => field.kind === 'list')

type Answer = { webhook: WebhookRow; lists: Json[] }

/** Reads a webhook with its lists in the transaction that has changed it. */
const readAnswer =
  ({ database, tools, budget }: Context) =>
  async ({ trx, token }: Change, webhook: WebhookRow): Promise<Answer> => {
    const { value } = createLoaders({ ...database, knex: trx }, tools.clock, token, budget)
    return { webhook, lists: await Promise.all(LISTS.map(list => value(list).load(webhook.id))) }
  }

/** A webhook in the answer to the mutation that has made its secret; null if it has made none. */
type Answered = WebhookRow & { secret: string | null }

/** Answers with the webhook as its change left it, whatever others have changed since. */
const answer = ({ secret, answer: { webhook, lists } }: Stored<Answer>, { loaders }: Context): Answered => {
  for (const [index, list] of LISTS.entries()) loaders.value(list).prime(webhook.id, lists[index]!)
  return { ...webhook, secret }
}

export const webhookMutations: Mutations = {
  createWebhook: mutation<WebhookInput, Stored<Answer>>(
    'webhooks',
    (input, context) => createWebhook(context, input, readAnswer(context)),
    answer,
    ({ answer }) => answer.webhook.id,
  ),
  upsertWebhook: mutation<WebhookInput & { id?: string }, Stored<Answer>>(
    'webhooks',
    ({ id, ...input }, context) => upsertWebhook(context, id, input, readAnswer(context)),
    answer,
    ({ answer }) => answer.webhook.id,
  ),
  rotateWebhookSecret: mutation<{ id: string; secret?: string; graceSeconds?: number }, Stored<Answer>>(
    'webhooks',
    (input, context) => rotateWebhookSecret(context, input, readAnswer(context)),
    (stored, context) => ({ webhook: answer(stored, context), secret: stored.secret }),
  ),
  deleteWebhook: mutation<{ id: string }, string>('webhooks', ({ id }, { change }) =>
    change(async within => {
      await deleteWebhook(within, id)
      return id
    }),
  ),
  pingWebhook: mutation<{ id: string }, { deliveryId: string }>(
    'webhooks',
    ({ id }, context) => pingWebhook(context, id),
    ({ deliveryId }, { loaders }) => loaders.row(deliveries).load(deliveryId),
    ({ deliveryId }) => deliveryId,
  ),
  rehearse: mutation<{ webhookId: string; scene: RehearsalScene }, RehearsalAnswer[]>('webhooks', (args, context) =>
    rehearse(context, args),
  ),
  sendExample: mutation<{ webhookId: string; eventType: EventType; payload?: unknown }, string>(
    'webhooks',
    (args, { change }) => change(within => sendExample(within, args)),
    (id, { loaders }) => loaders.row(deliveries).load(id),
    id => id,
  ),
  recoverDeliveries: resumable<{ webhookId: string; since: string; until?: string; dryRun?: boolean }, Recovery>(
    'webhooks',
    ({ webhookId, since, until, dryRun }, { database, tools: { clock }, change, look }, earlier) => {
      const span = { since: timeArgument(since)!, until: timeArgument(until), dryRun }
      return recoverDeliveries({ database, clock, change, look }, webhookId, span, earlier)
    },
    ({ webhookId, queued, isComplete, after }) => ({
      webhookId,
      queued,
      resumeSince: isComplete ? null : toIso(after.time),
      resumeAfter: null,
    }),
  ),
}
