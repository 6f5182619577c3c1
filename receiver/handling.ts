import type { Ping, TidingsEvent } from './event.ts'
import { Fault } from './fault.ts'
import type { Handler, Progress } from './handler.ts'
import type { CheckedOptions } from './options.ts'
import type { Claim } from './replay-store.ts'
import { RetryLater } from './retry-later.ts'
import type { DeliveryRequest, DeliveryToken, VerifiedDelivery } from './verify.ts'

/**
 * How long a claim holds, in seconds: four times what the service waits for an answer. A process that dies while it
 * handles an event leaves its claim behind, and the event can be handled only after that.
 */
const CLAIM_SECONDS = 60
/**
 * How long a handled event is remembered, in seconds. Its tokens are valid for 5 minutes, but the service may make new
 * ones with the same `jti` for as long as it has not seen the 2XX: the schedule of retries takes 85 minutes, and a
 * webhook that answers 429 is waited for 72 hours, and once more 24 at most.
 */
const HANDLED_SECONDS = 96 * 3600
/** Deliveries whose attempts are counted. */
const MAX_COUNTED = 10_000

/** What gives a verified delivery to its handler, unless it is or was given to one. Rejects with Faults alone. */
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
    const { told, signal } = progress
    /** What became of the event stands, and is answered, whether or not the store could take it. */
    const settle = async (change: () => boolean | Promise<boolean>): Promise<void> => {
      try {
        if ((await change()) === false) throw new Error('The claim had lapsed, and somebody else has the event by now.')
      } catch (error) {
        told.failed(error)
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
    // It comes again, and may find its claim free.
    if (signal.aborted) return settle(() => replayStore.release(key, owner))

    progress.waitingFor = 'The handler'
    const startedAtMs = now()
    const attempt = attempts.count(key)
    try {
      if (event.eventType !== 'ping') {
        const waitUntil = (promise: Promise<unknown>) => {
          const guarded = Promise.resolve(promise).catch(told.failed)
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
    if (isHandled(event)) told.handled({ event, attempt, durationMs: now() - startedAtMs, isLate: signal.aborted })
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
 * Whether a delivery of an event that was handled is answered 200: another delivery of it is, since its `jti` was never
 * seen, and with `acknowledge` a token that was made later.
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

/** How often each of the latest deliveries was begun. */
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
