import { setTimeout as sleep } from 'node:timers/promises'
import { badInput, notFound, type TidingsError } from '../../../shared/errors.ts'
import { toIso } from '../../../shared/time.ts'
import type { Database } from '../../database/connect.ts'
import { CommitInDoubt, patiently, REQUEST_MS, unavailable } from '../../database/patience.ts'
import type { Change } from '../../domain/change.ts'
import { waitForLines } from '../../domain/lines.ts'
import type { AccessToken } from '../../domain/permissions.ts'
import { seesAnyway } from '../../domain/visibility.ts'
import { findWebhook, lockActive } from '../../domain/webhooks.ts'
import { type AttemptTools, type Message, signed } from '../attempt.ts'
import { newLease } from '../leases.ts'
import type { DeliveryLoop } from '../loop.ts'
import { requireSigning } from '../ping.ts'
import type { Job } from '../queue.ts'
import { type Answer, type Counted, extendTaken, readAnswer, recordAnswers } from './answer.ts'
import { notPulled } from './looks.ts'
import { answerPings, type PullPings, takePing } from './pings.ts'
import type { Standing } from './seen.ts'
import { take } from './take.ts'
import { LONGEST_TAKEN_MS, LONGEST_WAIT_S, MOST_AT_ONCE, TAKEN_MS, takerJson } from './taken.ts'
import type { Taken } from './waiting.ts'
import type { Take, Waits } from './waits.ts'

/** What taking, answering and extending need of a request. */
export type Puller = {
  database: Database
  tools: AttemptTools
  loop: DeliveryLoop
  pull: { waits: Waits; pings: PullPings }
  token: AccessToken
  /** The address of the client. */
  address: string | undefined
  /** Aborts when the client has left. */
  gone: AbortSignal
  /** Lets another request begin in the place of this one, which from now on only waits. */
  leavePlace(): void
  /** Marks the request's signature as used, if it is not: before a wait, so that what ends it is answered at once. */
  mark(): Promise<void> | undefined
  /** Runs work in a transaction that holds the calling token, without an entry in the audit log. */
  act<T>(work: (change: Change) => Promise<T>): Promise<T>
}

/** A delivery that a client has taken. */
export type TakenDelivery = {
  deliveryId: string
  attempt: number
  headers: Record<string, string>
  body: string
  leaseUntil: string
}

/**
 * Takes deliveries that are due, and waits for some if there are none. A client that waits for a webhook that is not
 * active, or not stored yet, gets the ping that lets it in. Throws NOT_FOUND or CONFLICT if nothing can be taken by the
 * end of the wait, and at once if the webhook or the token ends meanwhile.
 */
export const takeDeliveries = async (
  puller: Puller,
  { webhookId, limit = 10, waitSeconds = 0 }: { webhookId: string; limit?: number; waitSeconds?: number },
): Promise<TakenDelivery[]> => {
  within('limit', limit, 1, MOST_AT_ONCE)
  within('waitSeconds', waitSeconds, 0, LONGEST_WAIT_S)
  const { database, token, address, pull, gone } = puller
  const until = performance.now() + waitSeconds * 1000
  const find = () => patiently(() => findWebhook(database.knex, token, webhookId), performance.now() + REQUEST_MS)
  const look = () => pull.waits.seen.find(token.id, webhookId, find)
  let seen = await look()
  const isActive = () => seen?.status === 'active' && seen.transport === 'pull'
  if (!isActive() && waitSeconds === 0) throw nothingToTake(webhookId, seen)
  let marking: Promise<void> | undefined
  const mark = () => {
    puller.leavePlace()
    marking ??= puller.mark()
    return marking
  }
  const client = { webhookId, token, address, until, gone, limit, mark }
  for (let isLate = false; ; ) {
    const woken = await pull.waits.wait({ ...client, isActive: isActive(), isSeen: seen !== undefined, isLate })
    await marking?.catch(() => {})
    if (woken.why === 'time' && !isActive() && !gone.aborted) throw nothingToTake(webhookId, seen)
    if (woken.why === 'time' || woken.why === 'stopping') return []
    if (woken.why === 'active') {
      seen = await look()
      continue
    }
    if (woken.why === 'handed') {
      const handed = await handOver(puller, woken.handed)
      if (handed.length > 0) return handed
      continue
    }
    const under = pull.waits.take(webhookId)
    const taking = woken.why === 'ping' ? takeOne(puller, woken.deliveryId) : takeDue(puller, webhookId, limit, under)
    const taken = await taking.finally(under.end)
    if (taken.length > 0 || performance.now() >= until) return taken
    isLate = !under.isOvertaken
  }
}

const within = (argument: string, value: number, least: number, most: number): void => {
  if (value < least || value > most) throw badInput(argument, `${value} must be from ${least} to ${most}`)
}

const nothingToTake = (webhookId: string, seen: Standing | undefined): TidingsError =>
  seen ? notPulled(webhookId, seen.status, seen.transport) : notFound('webhook', [webhookId])

const takeDue = async (puller: Puller, webhookId: string, limit: number, under: Take): Promise<TakenDelivery[]> => {
  const { tools, pull, token, address, act } = puller
  requireSigning(tools)
  const startedAt = performance.now()
  const lease = newLease(tools.clock.now())
  let leaseEnd = 0
  let jobs: Job[] = []
  let isAll = false
  const taking = act(async within => {
    const webhook = await lockActive(within, webhookId)
    // It may have become another since the client was woken.
    if (webhook.transport !== 'pull') throw notPulled(webhookId, webhook.status, webhook.transport)
    const now = within.now()
    leaseEnd = now + TAKEN_MS
    const taker = takerJson({ token, address }, webhook.epoch)
    isAll = seesAnyway(within.token, webhook)
    jobs = await take(within.trx, { webhook, token: within.token, taker, lease, limit, now, leaseEnd })
  })
  try {
    await taking
  } catch (error) {
    // Nobody has them: they need not wait for the end of the lease.
    if (!(error instanceof CommitInDoubt)) throw error
    void pull.waits.giveBack({ webhookId, jobs, leaseEnd })
    throw unavailable(error.cause)
  }
  pull.waits.handOver.believe(token.id, startedAt)
  if (jobs.length === limit) pull.waits.wake(webhookId)
  else under.isAll = isAll
  return handOver(puller, { webhookId, jobs, leaseEnd })
}

/** Signs what a client has taken. If the client has left, it is given back. */
const handOver = async (puller: Puller, taken: Taken): Promise<TakenDelivery[]> => {
  const { gone, pull, tools } = puller
  const { jobs, leaseEnd } = taken
  // A process that stood still finds its leases over.
  if (!gone.aborted && leaseEnd > tools.clock.now()) {
    const handed = await Promise.all(jobs.map(job => handedOver(puller, job, job.attempt, leaseEnd)))
    if (!gone.aborted) return handed
  }
  void pull.waits.giveBack(taken)
  return []
}

const takeOne = async (puller: Puller, deliveryId: string): Promise<TakenDelivery[]> => {
  const taken = await puller.act(within => takePing(within, deliveryId))
  return taken ? [await handedOver(puller, taken.message, 1, taken.until)] : []
}

const handedOver = async (
  { tools }: Puller,
  message: Message,
  attempt: number,
  leaseEnd: number,
): Promise<TakenDelivery> => {
  const { headers, body } = await signed(message, tools, { isPulled: true })
  return { deliveryId: message.deliveryId, attempt, headers, body, leaseUntil: toIso(leaseEnd) }
}

/** How long the answer waits until what it asks of the webhook is written. It is recorded by then. */
const FOLLOWED_MS = 2_000

/**
 * Records answers, and returns what became of each. Throws UNAVAILABLE if they cannot be recorded in time; the same
 * answers may be sent again.
 */
export const answerDeliveries = async (
  { tools, loop, pull, token, address, act }: Puller,
  { answers }: { answers: Answer[] },
): Promise<Counted[]> => {
  within('answers', answers.length, 1, MOST_AT_ONCE)
  for (const { status } of answers) within('answers', status, 100, 599)
  const read = answers.map(answer => ({ answer, ...readAnswer(answer) }))
  const startedAt = performance.now()
  const made = act(async within => {
    const queued = await waitForLines(
      within.trx,
      answers.map(({ deliveryId }) => deliveryId),
    )
    // A ping that lets a webhook in is not queued.
    const outside = read.filter(({ answer }) => !queued.has(answer.deliveryId))
    const pings = await answerPings(within, outside, address)
    const others = read.filter(({ answer }) => !pings.has(answer.deliveryId))
    const recorded = await recordAnswers(within, others, tools.retryScheduleMs)
    return { pings, ...recorded }
  })
  const { pings, counted, settlements } = await made.catch(error => {
    // The same answer again is no second one, so nothing is lost by asking for it.
    throw error instanceof CommitInDoubt ? unavailable(error.cause) : error
  })
  pull.waits.handOver.believe(token.id, startedAt)
  for (const id of pings) pull.pings.answered(id)
  const followed = Promise.all(settlements.map(settlement => loop.recorded(settlement)))
  await Promise.race([followed, sleep(FOLLOWED_MS, undefined, { ref: false })])
  const others = counted[Symbol.iterator]()
  return answers.map(({ deliveryId, attempt }) =>
    pings.has(deliveryId) ? { deliveryId, attempt, counted: true, reason: null } : others.next().value!,
  )
}

/** Extends leases; a delivery that the client does not hold any more has none. */
export const extendDeliveries = async (
  { act }: Puller,
  {
    deliveries,
    seconds = TAKEN_MS / 1000,
  }: { deliveries: { deliveryId: string; attempt: number }[]; seconds?: number },
): Promise<{ deliveryId: string; attempt: number; leaseUntil: string | null }[]> => {
  within('deliveries', deliveries.length, 1, MOST_AT_ONCE)
  within('seconds', seconds, 1, LONGEST_TAKEN_MS / 1000)
  const extended = await act(within => extendTaken(within, deliveries, seconds))
  return extended.map(one => ({ ...one, leaseUntil: one.leaseUntil === null ? null : toIso(one.leaseUntil) }))
}
