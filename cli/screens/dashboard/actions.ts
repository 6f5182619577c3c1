import { toIso } from '../../../shared/time.ts'
import type { Ask } from '../../connection/client.ts'
import { type Colours, cellText } from '../../output/output.ts'
import { count, dateAndTime, zoneAt, zoneName } from '../../output/time.ts'
import { calledWebhook } from '../../resources/cells.ts'
import { type Delivery, deliveryFields, describeAttempt } from '../../resources/timeline.ts'
import { cutMiddle } from './lines.ts'
import type { Action, Target } from './state.ts'

export interface Outcome {
  text: string
  /** Whether the action succeeded as intended. */
  good: boolean
  /** The created delivery, to be shown. */
  deliveryId?: string
}

/** Short enough for a question to fit; URLs of real endpoints are shorter. */
export const shownWebhook = (webhook: { id: string; name?: string | null; url?: string }): string =>
  cutMiddle(calledWebhook(webhook, webhook.id), 100)

/** The confirmation question. */
export const questionOf = (action: Action): string => {
  switch (action.kind) {
    case 'redeliver': {
      const { eventType, webhook, webhookId } = action.delivery
      const to = shownWebhook({ ...webhook, id: webhookId })
      return `Send ${cellText(eventType)} to ${to} again, as a new delivery?`
    }
    case 'ping':
      return `Send a ping to ${shownWebhook(action.webhook)} now?`
    case 'disable': {
      const waiting = action.pending
        ? ` and cancel ${count(action.pending, 'delivery', 'deliveries')} that wait for it`
        : ''
      return `Disable ${shownWebhook(action.webhook)}${waiting}? It receives nothing until it is enabled again.`
    }
    case 'enable':
      return `Make ${shownWebhook(action.webhook)} active? It must answer a ping with 200 first.`
    case 'recover':
      return (
        `Send ${shownWebhook(action.webhook)} again all that it has not acknowledged since ` +
        `${dateAndTime(action.sinceMs)} ${zoneName(zoneAt(action.sinceMs))}?`
      )
  }
}

/** The text while the action runs. */
export const progressOf = (action: Action): string => {
  switch (action.kind) {
    case 'redeliver':
      return 'Queueing it again …'
    case 'ping':
      return `Pinging ${shownWebhook(action.webhook)}, which may take 15 s …`
    case 'disable':
      return `Disabling ${shownWebhook(action.webhook)} …`
    case 'enable':
      return `Pinging ${shownWebhook(action.webhook)} and making it active …`
    case 'recover':
      return `Queueing what ${shownWebhook(action.webhook)} has missed …`
  }
}

/** Runs the action and returns its result as text. Throws a CliError if the server refuses. */
export const perform = async (ask: Ask, action: Action, colours: Colours): Promise<Outcome> => {
  switch (action.kind) {
    case 'redeliver': {
      const { made } = await ask<{ made: { id: string } }>(
        'mutation ($id: UUID!) { made: redeliver(deliveryId: $id) { id } }',
        { id: action.delivery.id },
      )
      return { text: `Queued as ${cellText(made.id)}.`, good: true, deliveryId: made.id }
    }
    case 'ping': {
      const { ping } = await ask<{ ping: Delivery }>(
        `mutation ($id: UUID!) { ping: pingWebhook(id: $id) { ${deliveryFields} } }`,
        { id: action.webhook.id },
      )
      const [attempt] = ping.attempts
      const answer = attempt ? describeAttempt(attempt, colours) : 'not attempted yet'
      return { text: `Ping ${cellText(ping.status)}: ${answer}.`, good: ping.status === 'delivered' }
    }
    case 'disable':
    case 'enable': {
      const { webhook } = await ask<{ webhook: { status: string } }>(
        'mutation ($id: UUID!, $status: WebhookStatus) { webhook: upsertWebhook(id: $id, status: $status) { status } }',
        { id: action.webhook.id, status: action.kind === 'enable' ? 'active' : 'disabled' },
      )
      const next = action.kind === 'enable' ? ' What it missed meanwhile is sent with c.' : ''
      return { text: `${shownWebhook(action.webhook)} is ${cellText(webhook.status)}.${next}`, good: true }
    }
    case 'recover':
      return recover(ask, action.webhook, action.sinceMs)
  }
}

/** The server limits each request, and returns where to continue. */
const recover = async (ask: Ask, webhook: Target, sinceMs: number): Promise<Outcome> => {
  let queued = 0
  for (let since: string | null = toIso(sinceMs); since !== null; ) {
    const { recovery }: { recovery: { queued: number; resumeSince: string | null } } = await ask(
      `mutation ($webhookId: UUID!, $since: DateTime!) {
        recovery: recoverDeliveries(webhookId: $webhookId, since: $since) { queued resumeSince }
      }`,
      { webhookId: webhook.id, since },
    )
    queued += recovery.queued
    since = recovery.resumeSince
  }
  const text =
    queued === 0
      ? 'Nothing to send: everything is acknowledged or pending.'
      : `Queued ${count(queued, 'delivery', 'deliveries')}.`
  return { text, good: true }
}
