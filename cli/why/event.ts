import type { DeliveryVerdict } from '../../shared/vocabulary.ts'
import type { Session } from '../connection/session.ts'
import { type Colours, cellText } from '../output/output.ts'
import { type Delivery, deliveryFields } from '../resources/timeline.ts'
import { type Reason, reasonLines, verdictLine } from './words.ts'

export interface EventWhy {
  webhookId: string
  eventId: string
  verdict: DeliveryVerdict
  reasons: Reason[]
  delivery: Delivery | null
  next: string | null
}

const EXPLAIN = `query ($webhookId: UUID!, $eventId: UUID!) {
  explained: explainDelivery(webhookId: $webhookId, eventId: $eventId) {
    verdict reasons { code message at } next delivery { ${deliveryFields} }
  }
}`

/** Why an event did or did not go to a webhook, as the server says. */
export const whyEvent = async (session: Session, ids: { webhookId: string; eventId: string }): Promise<EventWhy> => {
  const { explained } = await session.graphql<{ explained: Omit<EventWhy, 'webhookId' | 'eventId'> }>(EXPLAIN, ids)
  return { ...ids, ...explained }
}

const VERDICTS: Record<DeliveryVerdict, [text: string, colour: 'green' | 'yellow' | 'red']> = {
  delivered: ['It arrived.', 'green'],
  waiting: ['It has not arrived yet: it waits.', 'yellow'],
  failed: ['It did not arrive: it was sent and failed.', 'red'],
  cancelled: ['It did not arrive: it was cancelled.', 'red'],
  not_sent: ['It was never sent there.', 'red'],
}

export const describeEventWhy = ({ verdict, reasons, delivery, next }: EventWhy, nowMs: number, colours: Colours) => {
  const [text, colour] = VERDICTS[verdict] ?? [cellText(verdict), 'yellow']
  const evidence = delivery === null ? [] : [`Evidence: tidings deliveries show ${cellText(delivery.id)} --full`]
  return verdictLine(colours[colour](text), reasonLines(reasons, nowMs, colours), evidence, next, colours)
}
