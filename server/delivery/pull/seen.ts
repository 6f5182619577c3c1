import type { WebhookRow } from '../../domain/resources.ts'

/** For so long after it was read, a token is believed to be valid, and to see a webhook that is active and pulled. */
export const BELIEVED_MS = 1_000
const MOST = 10_000

export type Standing = Pick<WebhookRow, 'status' | 'transport'>
const ACTIVE: Standing = { status: 'active', transport: 'pull' }

/**
 * Which tokens have lately been found to see which active pulled webhooks. A busy client comes back thirty times a
 * second, and what a token sees is the dearest statement of a take. What it takes is checked again under the lock.
 */
export class SeenWebhooks {
  /** When each was read, by token and webhook and `performance.now()`. */
  #seenAt = new Map<string, number>()

  /** How a webhook stood a second ago at most; undefined if the token does not see it. */
  async find(
    tokenId: string,
    webhookId: string,
    read: () => Promise<Standing | undefined>,
  ): Promise<Standing | undefined> {
    const key = `${tokenId} ${webhookId}`
    const at = performance.now()
    if (at - (this.#seenAt.get(key) ?? Number.NEGATIVE_INFINITY) < BELIEVED_MS) return ACTIVE
    // What was read before a change is not kept after it.
    const seenAt = this.#seenAt
    const webhook = await read()
    seenAt.delete(key)
    if (webhook?.status === 'active' && webhook.transport === 'pull') seenAt.set(key, at)
    if (seenAt.size > MOST) seenAt.delete(seenAt.keys().next().value!)
    return webhook
  }

  /** Reports that this process has changed something. */
  forget(): void {
    this.#seenAt = new Map()
  }
}
