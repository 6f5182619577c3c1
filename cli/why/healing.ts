import type { DeliveryStatus } from '../../shared/vocabulary.ts'
import type { Session } from '../connection/session.ts'
import type { Webhook } from '../resources/webhook.ts'
import { whyEvent } from './event.ts'
import type { Reason } from './words.ts'

export type Healing = Pick<Webhook, 'recovery' | 'missedSince' | 'recoveredAt'>

const NEWEST_DROPPED = `query ($query: MangoQuery) { deliveries(query: $query) { eventId } }`
/** The codes of reasons that tell of automatic recovery. */
const CODES = ['heals', 'healing_given_up']

/**
 * What automatic recovery does about what a webhook has missed, as the server explains it of the newest delivery that
 * was dropped.
 */
export const healingReasons = async (
  session: Session,
  { id: webhookId, recovery, missedSince, recoveredAt }: Healing & { id: string },
): Promise<Reason[]> => {
  if (recovery !== 'automatic') return []
  if (recoveredAt !== null) {
    const message = 'Everything that it had missed was queued again by itself.'
    return [{ code: 'healed', message, at: recoveredAt }]
  }
  if (missedSince === null) return []
  const status: DeliveryStatus = 'dropped'
  const { deliveries } = await session.graphql<{ deliveries: { eventId: string }[] }>(NEWEST_DROPPED, {
    query: { selector: { webhookId, status }, sort: [{ createdAt: 'desc' }], limit: 1 },
  })
  const [newest] = deliveries
  if (newest === undefined) return []
  const { reasons } = await whyEvent(session, { webhookId, eventId: newest.eventId })
  return reasons.filter(({ code }) => CODES.includes(code))
}
