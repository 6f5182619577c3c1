import type { Ping, TidingsEvent } from './event.ts'
import { Fault } from './fault.ts'
import type { Handler, Progress } from './handler.ts'
import type { CheckedOptions } from './options.ts'
import type { Claim } from './replay-store.ts'
import { RetryLater } from './retry-later.ts'
import type { DeliveryRequest, DeliveryToken, VerifiedDelivery } from './verify.ts'

/**
 * How long a claim holds, in seconds: four times the time that Tidings waits for an answer. A process that dies while
 * it handles an event leaves its claim behind; the event can be handled again only after that time.
 */
const CLAIM_SECONDS = 60
/**
 * How long a handled event is remembered, in seconds. A token is valid for 5 minutes, but Tidings may send new ones
 * with the same `jti` until it sees a 2XX. The retries take 85 minutes. While a webhook answers 429, Tidings waits for
 * 72 hours, with one last wait of at most 24 hours.
 */
const HANDLED_SECONDS = 96 * 3600
/** The number of deliveries whose attempts are counted. */
const MAX_COUNTED = 10_000

/** Gives a verified delivery to its handler, unless one is handling it or has handled it. Rejects only with Faults. */
export const handleOnce = ({ replayStore, dedupe, replays, onError: _, now }: CheckedOptions) => {
  const attempts = attemptCounter()

  const claim = async (key: string): Promise<Claim> => {
    try {
      const claimed = await replayStore.claim(key, CLAIM_SECONDS)
      if (isClaim(claimed)) return claimed
      throw new TypeError('The replay store’s claim has not answered as a store does.')
    } catch (cause) {
      throw new Fault('replay_store_unavailable', 'The replay store could not be asked.', { cause })
    }
  }

  return async (
    { event, token }: VerifiedDelivery,
    handler: Handler<never>,
    request: DeliveryRequest,
    progress: Progress,
  ): Promise<void> => {
    const { reports, signal } = progress
    /** Writes the result to the store. The answer stays the same whether or not the store could take it. */
    const settle = async (change: () => boolean | Promise<boolean>): Promise<void> => {
      try {
        if ((await change()) === false) throw new Error('The claim had lapsed, and somebody else has the event by now.')
      } catch (error) {
        reports.failed(error)
      }
    }

    const key = dedupe === 'event' ? event.id : event.eventId
    progress.waitingFor = 'The replay store'
    const claimed = await claim(key)
    if (claimed.status === 'in_progress') throw new Fault('in_progress', 'This event is being handled right now.')
    if (claimed.status === 'handled') {
      if (isAcknowledged(claimed.receipt, token, replays)) return
      throw new Fault('replay', 'This event was handled before; it is not handled again.')
    }
    const { owner } = claimed
    // The delivery comes again, and may then find its claim free.
    if (signal.aborted) return settle(() => replayStore.release(key, owner))

    progress.waitingFor = 'The handler'
    const startedAtMs = now()
    const attempt = attempts.count(key)
    try {
      if (event.eventType !== 'ping') {
        const waitUntil = (promise: Promise<unknown>) => {
          const guarded = Promise.resolve(promise).catch(reports.failed)
          request.waitUntil?.(guarded)
        }
        await handler(event, { request: request.request as never, signal, attempt, token, waitUntil })
      }
    } catch (error) {
      await settle(() => replayStore.release(key, owner))
      throw faultOf(error)
    }
    progress.waitingFor = 'The replay store'
    await settle(() => replayStore.record(key, owner, receiptOf(token), HANDLED_SECONDS))
    attempts.forget(key)
    if (isHandled(event)) reports.handled({ event, attempt, durationMs: now() - startedAtMs, isLate: signal.aborted })
  }
}

const isHandled = (event: TidingsEvent | Ping): event is TidingsEvent => event.eventType !== 'ping'

const faultOf = (error: unknown): Fault => {
  if (!(error instanceof RetryLater)) {
    return new Fault('handler_failed', 'The event could not be handled; the receiver’s log says why.', { cause: error })
  }
  return new Fault('retry_later', error.message, { headers: { 'retry-after': String(error.seconds) } })
}

const receiptOf = ({ claims: { jti, iat } }: DeliveryToken): string =>
  `${iat} ${/^[\w-]{1,100}$/.test(jti) ? jti : 'other'}`

/**
 * Whether a delivery of a handled event is answered 200: yes for another delivery of the event, whose `jti` was never
 * seen, and with `acknowledge` for a token made later.
 */
const isAcknowledged = (receipt: string, { claims }: DeliveryToken, replays: CheckedOptions['replays']): boolean => {
  const [iat, jti] = receipt.split(' ')
  if (jti !== undefined && jti !== 'other' && jti !== claims.jti) return true
  return replays === 'acknowledge' && claims.iat > Number(iat)
}

const isClaim = (value: unknown): value is Claim => {
  const { status, owner, receipt } = (value ?? {}) as Record<string, unknown>
  if (status === 'claimed') return typeof owner === 'string'
  return status === 'in_progress' || (status === 'handled' && typeof receipt === 'string')
}

/** Counts how often each of the latest deliveries was begun. */
const attemptCounter = () => {
  const counts = new Map<string, number>()
  return {
    count(key: string): number {
      const count = (counts.get(key) ?? 0) + 1
      counts.delete(key)
      counts.set(key, count)
      if (counts.size > MAX_COUNTED) counts.delete(counts.keys().next().value!)
      return count
    },
    forget: (key: string) => counts.delete(key),
  }
}
