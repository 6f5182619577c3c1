import type { Middleware } from 'koa'
import { TidingsError } from '../../shared/errors.ts'
import { answerUnavailable, type RequestState } from './request-id.ts'

/** Requests that run at once; the others wait in the order of arrival. */
const AT_ONCE = 64
/** A request that takes longer is itself waiting, such as for an endpoint or a lock, and gives its place to others. */
const IN_THE_WAY_MS = 250
/** Unless the process itself is too busy for it. */
const LONGEST_IN_THE_WAY_MS = 2_000
/** The event loop utilisation from which the process counts as busy. */
const BUSY = 0.85
/** A request that has waited this long is refused, within a second of its arrival. */
const LONGEST_WAIT_MS = 700
const RETRY_AFTER_S = 1

/** The event loop is sampled at most a few times a second. */
const measureBusy = (): (() => boolean) => {
  let last = performance.eventLoopUtilization()
  let lookedAt = performance.now()
  let busy = false
  return () => {
    if (performance.now() - lookedAt >= IN_THE_WAY_MS / 2) {
      const current = performance.eventLoopUtilization()
      busy = performance.eventLoopUtilization(current, last).utilization >= BUSY
      last = current
      lookedAt = performance.now()
    }
    return busy
  }
}

type Waiting = { since: number; timer: NodeJS.Timeout; begin: (isAdmitted: boolean) => void }

/**
 * Runs as many requests as it can in the order of arrival, and refuses the others soon, with nothing done. A server
 * that begins everything under overload finishes nothing in time.
 *
 * @param given.now the clock of the waits, in milliseconds
 * @param given.isBusy whether the process has been busy lately
 */
export const admit = ({
  now = () => performance.now(),
  isBusy = measureBusy(),
}: {
  now?: () => number
  isBusy?: () => boolean
} = {}): Middleware<RequestState> => {
  let working = 0
  const waiting = new Set<Waiting>()

  /** Takes a place. Returns the function that gives it back, which may be called twice. */
  const take = (): (() => void) => {
    working += 1
    let isHeld = true
    const giveBack = (): void => {
      clearTimeout(timer)
      if (!isHeld) return
      isHeld = false
      working -= 1
      beginNext()
    }
    const since = now()
    const giveBackIfIdle = (): void => {
      if (!isHeld) return
      if (isBusy() && now() - since < LONGEST_IN_THE_WAY_MS) timer = setTimeout(giveBackIfIdle, IN_THE_WAY_MS)
      else giveBack()
    }
    let timer = setTimeout(giveBackIfIdle, IN_THE_WAY_MS)
    return giveBack
  }

  const end = (one: Waiting, isAdmitted: boolean): void => {
    clearTimeout(one.timer)
    waiting.delete(one)
    one.begin(isAdmitted)
  }

  const beginNext = (): void => {
    for (const one of waiting) {
      // The timer may be late if the process was.
      const isAdmitted = now() - one.since < LONGEST_WAIT_MS
      end(one, isAdmitted)
      if (isAdmitted) return
    }
  }

  /** Resolves to undefined if the request was not admitted in time. */
  const place = async (since: number): Promise<(() => void) | undefined> => {
    if (working < AT_ONCE && waiting.size === 0) return take()
    return new Promise(resolve => {
      const one: Waiting = {
        since,
        timer: setTimeout(() => end(one, false), Math.max(0, since + LONGEST_WAIT_MS - now())),
        begin: isAdmitted => resolve(isAdmitted ? take() : undefined),
      }
      waiting.add(one)
    })
  }

  return async (ctx, next) => {
    const giveBack = await place(ctx.state.arrivedAt)
    if (!giveBack) {
      const message = `This server has too many requests at once. Nothing was done. Try again in ${RETRY_AFTER_S} s.`
      answerUnavailable(ctx, new TidingsError('UNAVAILABLE', message, { retryAfterSeconds: RETRY_AFTER_S }))
      return
    }
    try {
      await next()
    } finally {
      giveBack()
    }
  }
}
