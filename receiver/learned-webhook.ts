import { hasMethods, requireGiven } from './given.ts'
import type { VerifyOptions } from './options.ts'

/** Stores the id of the receiver's webhook, such as in a file or a row. */
export interface WebhookIdKeeper {
  load(): string | undefined | Promise<string | undefined>
  save(webhookId: string): unknown
}

/**
 * A value for the option `webhookId` that learns: it saves the webhook's id from the first verified ping, that of the
 * registration, and accepts no other webhook from then on. It trusts the first webhook for the endpoint's URL, so
 * register your webhook before you publish the URL.
 *
 * @example
 *   const webhookId = learnedWebhook({ load: () => readId(), save: id => writeId(id) })
 */
export const learnedWebhook = (keeper: WebhookIdKeeper): Exclude<VerifyOptions['webhookId'], undefined> => {
  requireGiven(hasMethods(keeper, 'load', 'save'), 'keeper', keeper, 'an object with the methods load and save')
  // The webhook that this process is the first to learn, and the writing of it. It is set without waiting in between,
  // so that of two concurrent pings exactly one is the first; nothing waits for anybody's `load` but its own.
  let first: { webhookId: string; saved: Promise<void> } | undefined
  return async (webhookId, { eventType }) => {
    const known = (await keeper.load()) ?? first?.webhookId
    if (known !== undefined && known !== webhookId) return false
    if (first === undefined) {
      if (known !== undefined) return true
      if (eventType !== 'ping') return false
      const learning = { webhookId, saved: save(keeper, webhookId) }
      first = learning
      learning.saved.catch(() => {
        if (first === learning) first = undefined
      })
    }
    await first.saved
    return true
  }
}

const save = async (keeper: WebhookIdKeeper, webhookId: string): Promise<void> => void (await keeper.save(webhookId))
