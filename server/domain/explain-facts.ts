import type { CONDITIONS } from './matching.ts'
import type { HealingRow } from './missed.ts'
import type { AttemptRow, DeliveryRow, EventRow, WebhookRow } from './resources.ts'
import type { EndingChange, VersionRow, WebhookThen } from './webhook-versions.ts'

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
  /** The change since which the webhook has its status, if that is known. */
  since: VersionRow | undefined
  /** The webhook when the event happened, and whether it chose the event then; undefined if that was not kept. */
  then: WebhookThen & { chooses: boolean | undefined }
  /** Another organisation of the event's project: its present one, or that of another event at a time. */
  moved: { organisationId: string; at?: number } | undefined
  /** The names of access tokens that the caller may see. */
  names: Map<string, string>
  /** The deliveries, oldest first. */
  sent: DeliveryRow[]
  /** The attempts of the last one. */
  attempts: AttemptRow[]
  /** Where the last answer redirects to, as it says. */
  redirect: string | undefined
  /** The names of the webhook's static headers. */
  headers: string[]
  /** The webhook's URL at the last attempt. */
  urlThen: string | undefined
  queued: { dueAt: number; isInLine: boolean; isLeased: boolean; isRecovered: boolean } | undefined
  /** Whether a process runs that sends. */
  isSending: boolean
  /** The visible delivery that the last one waits for in its line. */
  turnOf: string | undefined
  /** What automatic recovery has noted of the webhook. */
  healing: HealingRow | undefined
  /** The change that cancelled the last delivery. */
  ender: EndingChange | undefined
  /** When the deliveries nearest to the event were queued. */
  around: { before?: number | undefined; after?: number | undefined }
  now: number
}
