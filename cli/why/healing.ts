import type { DeliveryStatus } from '../../shared/vocabulary.ts'
import type { Session } from '../connection/session.ts'
import type { Webhook } from '../resources/webhook.ts'
import { whyEvent } from './event.ts'
import type { Reason } from './words.ts'

export type Healing = Pick<Webhook, 'recovery' | 'missedSince' | 'recoveredAt'>

const NEWEST_DROPPED = `query ($query: MangoQuery) { deliveries(query: $query) { eventId } }`
const DROPPED: DeliveryStatus = 'dropped'
/** The codes of reasons that tell of automatic recovery. */
const CODES = ['heals', 'healing_given_up']

/**
 * What automatic recovery does about what a webhook has missed, as the server explains it of an event that it missed.
 *
 * @param missed by default the event that was dropped last
 */
export const healingReasons = async (
  session: Session,
  { id: webhookId, recovery, missedSince, recoveredAt }: Healing & { id: string },
  missed: string | undefined,
): Promise<Reason[]> => {
  if (recovery !== 'automatic') return []
  if (recoveredAt !== null) {
    const message = 'Everything that it had missed was queued again by itself.'
    return [{ code: 'healed', message, at: recoveredAt }]
  }
  if (missedSince === null) return []
  const eventId = missed ?? (await newestDropped(session, webhookId))
  if (eventId === undefined) return []
  const { reasons } = await whyEvent(session, { webhookId, eventId })
  return reasons.filter(({ code }) => CODES.includes(code))
}

const newestDropped = async (session: Session, webhookId: string): Promise<string | undefined> => {
  const selector = { webhookId, status: DROPPED, eventType: { $ne: 'ping' } }
  const { deliveries } = await session.graphql<{ deliveries: { eventId: string }[] }>(NEWEST_DROPPED, {
    query: { selector, sort: [{ createdAt: 'desc' }], limit: 1 },
  })
  return deliveries[0]?.eventId
}
