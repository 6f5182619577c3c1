import type { Middleware } from 'koa'
import { TidingsError } from '../../shared/errors.ts'
import { answerUnavailable, type RequestState } from './request-id.ts'

/** Requests that are worked on at once; the others wait in the order they came. */
const AT_ONCE = 64
/** A request that takes longer waits for something itself, as for an endpoint or a lock, and is in nobody's way. */
const IN_THE_WAY_MS = 250
/** Unless it is this process that has no time for it. */
const LONGEST_IN_THE_WAY_MS = 2_000
/** Part of its time that the event loop has been at work from which on the process has no more to give. */
const BUSY = 0.85
/** Who has waited so long is told to come again, within a second of having come. */
const LONGEST_WAIT_MS = 700
const RETRY_AFTER_S = 1

/** Looks at the event loop anew a few times a second at most. */
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
 * Works on what it can in the order it came, and refuses the rest soon, with nothing done: offered more than it can
 * take, a server that begins everything ends nothing in time.
 *
 * @param given.now milliseconds by which waiting is measured
 * @param given.isBusy whether the process has had no time to spare of late
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

  /** Takes a place; answers how it is given back, which may be done twice. */
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
      // Its timer may be late where this process was.
      const isAdmitted = now() - one.since < LONGEST_WAIT_MS
      end(one, isAdmitted)
      if (isAdmitted) return
    }
  }

  /** Undefined if it was not admitted in time. */
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
      const message = `Too much is asked of this server at once. Nothing was done. Try again in ${RETRY_AFTER_S} s.`
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
