import type { CONDITIONS } from './matching.ts'
import type { HealingRow } from './missed.ts'
import type { AttemptRow, DeliveryRow, EventRow, WebhookRow } from './resources.ts'

/** What is known of a webhook, an event, and the deliveries of one to the other. */
export type Facts = {
  webhook: WebhookRow
  event: EventRow
  /** Whether each condition of matching is true now. */
  conditions: Record<keyof typeof CONDITIONS, boolean>
  /** The types that the webhook names. */
  types: string[]
  /** The organisations and projects that it names and the caller sees, and whether it names others. */
  chosen: { organisations: string[]; projects: string[]; areMore: boolean }
  /** The deliveries, oldest first. */
  sent: DeliveryRow[]
  /** The attempts of the last one. */
  attempts: AttemptRow[]
  queued: { dueAt: number; isInLine: boolean; isLeased: boolean; isRecovered: boolean } | undefined
  /** The visible delivery that the last one waits for in its line. */
  turnOf: string | undefined
  /** What automatic recovery has noted of the webhook. */
  healing: HealingRow | undefined
  ender: { who: string; operation: string; at: number } | undefined
  /** When the deliveries nearest to the event were queued. */
  around: { before?: number | undefined; after?: number | undefined }
  now: number
}
