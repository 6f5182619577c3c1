import { answerDeliveries, extendDeliveries, takeDeliveries } from '../../delivery/pull/pull.ts'
import type { Context } from '../context.ts'
import { type Mutations, mutation } from './mutation.ts'

/** The attempts say who took and answered them, so the audit log has no entries of these mutations. */
const unlisted =
  <Args, Result>(work: (context: Context, args: Args) => Promise<Result>) =>
  (args: Args, context: Context): Promise<Result> => {
    context.entry = undefined
    return work(context, args)
  }

export const pullMutations: Mutations = {
  takeDeliveries: mutation('webhooks', unlisted(takeDeliveries)),
  answerDeliveries: mutation('webhooks', unlisted(answerDeliveries)),
  extendDeliveries: mutation('webhooks', unlisted(extendDeliveries)),
}
