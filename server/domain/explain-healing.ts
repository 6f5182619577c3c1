import type { Facts } from './explain-facts.ts'
import { type Explained, type Reason, reason, recoverSince } from './explain-words.ts'
import { nextPingOf } from './missed.ts'

/** What automatic recovery does, or has done, about the event. Leaves other explanations as they are. */
export const withHealing = (facts: Facts, explained: Explained): Explained => {
  const { healing, webhook, conditions } = facts
  if (healing === undefined) return explained
  const add = (added: Reason, changes: Partial<Explained> = {}): Explained => ({
    ...explained,
    ...changes,
    reasons: [...explained.reasons, added],
  })
  if (isDroppedAgain(facts, explained, healing)) {
    const message =
      'It was queued again after its endpoint had answered a ping, and not acknowledged. Once what the webhook ' +
      'missed is queued, the endpoint is pinged again, and it is sent again by itself.'
    return add(reason('heals', message, healing.answered_at), { verdict: 'waiting', next: null })
  }
  if (isQueuedAgain(facts, healing)) {
    const message = 'What the webhook had missed was queued again by itself, after its endpoint answered a ping.'
    return add(reason('healed', message, healing.recovered_at ?? healing.answered_at))
  }
  if (!isMissed(facts, explained, healing)) return explained
  if (healing.given_up_at !== null) {
    const message =
      'Automatic recovery has given up: for seven days the endpoint acknowledged nothing, or the webhook was not ' +
      'active. When it works again, recover what it missed.'
    const next = conditions.active ? recoverSince(webhook.id, Number(healing.missed_since)) : explained.next
    return add(reason('healing_given_up', message, healing.given_up_at), { next })
  }
  if (!conditions.active) {
    const message =
      'Once the webhook is active and its endpoint answers a ping with 200, what it missed is queued again by ' +
      'itself; recovering it by hand is not needed.'
    return add(reason('heals', message))
  }
  if (healing.answered_at !== null && healing.on_trial === 1) {
    const message =
      'The endpoint has answered a ping, but after the last one it acknowledged nothing. So a few of the missed ' +
      'events are sent first; the others are queued by themselves once it has answered one of these.'
    return add(reason('heals', message, healing.answered_at), { verdict: 'waiting', next: null })
  }
  if (healing.answered_at !== null) {
    const message = 'The endpoint has answered a ping: what the webhook missed is being queued again by itself.'
    return add(reason('heals', message, healing.answered_at), { verdict: 'waiting', next: null })
  }
  const message =
    'It will be sent again by itself, once the endpoint answers a ping with 200; the next ping is at this time.'
  const next = `tidings webhooks ping ${webhook.id}`
  return add(reason('heals', message, nextPingOf(healing, webhook)), { verdict: 'waiting', next })
}

type Healing = NonNullable<Facts['healing']>

/** The event is older than the answer to the ping, and was queued after it. */
const isQueuedAgain = ({ event, sent }: Facts, { answered_at, recovered_at }: Healing): boolean => {
  const last = sent.at(-1)
  if (last === undefined || answered_at === null) return false
  const queuedAt = Number(last.created_at)
  return (
    Number(event.created_at) < Number(answered_at) &&
    queuedAt >= Number(answered_at) &&
    queuedAt <= Number(recovered_at ?? queuedAt)
  )
}

/** It was dropped while other missed events are being queued. */
const isDroppedAgain = (facts: Facts, { verdict }: Explained, healing: Healing): boolean =>
  verdict === 'failed' &&
  isQueuedAgain(facts, healing) &&
  healing.recovered_at === null &&
  Number(facts.event.created_at) >= Number(healing.again_since ?? Number.MAX_SAFE_INTEGER)

/** As recovery decides it: not acknowledged, not pending, since the first miss, and the webhook should have had it. */
const isMissed = ({ event, conditions }: Facts, { verdict }: Explained, healing: Healing): boolean => {
  const { active: _, ...ever } = conditions
  return (
    ['failed', 'cancelled', 'not_sent'].includes(verdict) &&
    Object.values(ever).every(Boolean) &&
    healing.recovered_at === null &&
    Number(event.created_at) >= Number(healing.missed_since)
  )
}
