import type { WebhookTransport } from '../../shared/vocabulary.ts'

// Pulled deliveries are rows of the queue like any other, on a scale of time of their own, far in the future: a claim
// of the delivery loop asks for what is due by now, and never finds them. Three scales in one column, `due_at`:
// - below PULL_TIME: to be sent at that time
// - from PULL_TIME: to be taken by a client from that time minus PULL_TIME on
// - from TAKEN_TIME: taken by a client, whose lease ends at that time minus TAKEN_TIME
//
// An active webhook with `transport: pull` has `held_until` on the second scale, at its beginning unless it asked to
// wait. So whoever finds one of its deliveries among those to send, such as a process of version 0.2 that has queued
// it, follows the rule for a webhook that is held: it does not send, and postpones the delivery to `held_until`. There
// it is due for clients.

export const PULL_TIME = 4_000_000_000_000_000
export const TAKEN_TIME = 6_000_000_000_000_000

/** The beginning of the scale of a webhook's deliveries. */
export const scaleOf = (transport: WebhookTransport): number => (transport === 'pull' ? PULL_TIME : 0)

/** `webhooks.held_until` while nothing is held. */
export const unheld = (transport: WebhookTransport): number | null => (transport === 'pull' ? PULL_TIME : null)

/** The epoch milliseconds of a due time on any scale. */
export const epochTimeOf = (dueAt: number): number => dueAt % 2_000_000_000_000_000
