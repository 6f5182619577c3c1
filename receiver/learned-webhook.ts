import { hasMethods, requireGiven } from './given.ts'
import type { VerifyOptions } from './options.ts'

/** Where the id of the receiver's webhook is kept, such as a file or a row. */
export interface WebhookIdKeeper {
  load(): string | undefined | Promise<string | undefined>
  save(webhookId: string): unknown
}

/**
 * A `webhookId` option that learns: of the first verified ping, which is that of the webhook's registration, the id is
 * saved, and from then on no other webhook is listened to. Whoever registers this endpoint's URL first is believed:
 * register yours before you tell the URL to anybody.
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
  // One after the other: of two first pings one is the first.
  return (webhookId, { eventType }) => {
    const decided = learning.then(() => isOwn(webhookId, eventType === 'ping'))
    learning = decided.catch(() => {})
    return decided
  }
}
