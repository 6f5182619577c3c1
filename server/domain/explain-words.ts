import { toIso } from '../../shared/time.ts'
import type { DeliveryVerdict } from '../../shared/vocabulary.ts'

/** One reason: a stable code, the sentence, and the time that it is about (ISO 8601). */
export type Reason = { code: string; message: string; at: string | null }

/** `next`: the command that mends it, if one does. */
export type Explained = { verdict: DeliveryVerdict; reasons: Reason[]; next: string | null }

export const reason = (code: string, message: string, at: number | null = null): Reason => ({
  code,
  message,
  at: at === null ? null : toIso(Number(at)),
})

/** The command that queues what a webhook has missed since a time. */
export const recoverSince = (webhookId: string, since: number): string =>
  `tidings webhooks recover ${webhookId} --since ${toIso(since).replace('+00:00', 'Z')}`

/** No shell reads anything into it. */
export const PLAIN_URL = /^https?:\/\/[\w:/.~%-]+$/
