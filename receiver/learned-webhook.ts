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
  let learning: Promise<unknown> = Promise.resolve()
  const isOwn = async (webhookId: string, isPing: boolean): Promise<boolean> => {
    const known = await keeper.load()
    if (known !== undefined && known !== null) return known === webhookId
    if (!isPing) return false
    await keeper.save(webhookId)
    return true
  }
  // One call at a time, so that of two concurrent pings exactly one is the first.
  return (webhookId, { eventType }) => {
    const decided = learning.then(() => isOwn(webhookId, eventType === 'ping'))
    learning = decided.catch(() => {})
    return decided
  }
}
