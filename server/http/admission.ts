import type { Middleware } from 'koa'
import { TidingsError } from '../../shared/errors.ts'
import { Turns } from '../turns.ts'
import { type Answerable, answerUnavailable, type RequestState } from './request-id.ts'

/** Requests that run at once; the others wait in a line of each API key. */
const AT_ONCE = 64
/** A request that takes longer is itself waiting, such as for an endpoint or a lock, and gives its place to others. */
const IN_THE_WAY_MS = 250
/** Unless the process itself is too busy for it. */
const LONGEST_IN_THE_WAY_MS = 2_000
/** The event loop utilisation from which the process counts as busy. */
const BUSY = 0.85
/** A request that comes in a burst waits this long at most: waiting it out is better than a refusal. */
const LONGEST_WAIT_MS = 1_000
/**
 * A line is overloaded if no request of it has waited less for a second: it is no burst, nothing is gained by waiting,
 * and who comes now waits for less time, or is refused (CoDel, RFC 8289: the shortest delay of an interval tells a
 * queue that stands from one that drains).
 */
const STANDING_MS = 400
const STANDING_FOR_MS = 1_000
const LONGEST_WAIT_OVERLOADED_MS = 600
/** Requests that wait, which costs memory; half as many of one API key. */
const MOST_WAITING = 4_096
const RETRY_AFTER_S = 1
/** The requests whose beginning is the measure of the line's pace, and how long a line is before it has one. */
const PACE_OF = 512
const PACE_AFTER_MS = 100

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

type Waiting = {
  apiKey: string
  since: number
  giveUpAt: number
  timer: NodeJS.Timeout
  begin: (isAdmitted: boolean) => void
}

export type Admission = {
  /** Refuses a request that would not begin in time. Comes first, so that a refusal costs next to nothing. */
  refuseHopeless: Middleware<FromKey>
  /** Begins requests, the API keys in turn, and refuses those that have waited for too long. */
  admit: Middleware<FromKey>
}

type FromKey = RequestState & { apiKey: string }

/**
 * Runs as many requests as it can, and refuses the others soon, with nothing done. A server that begins everything
 * under overload finishes nothing in time. The requests of an API key begin in the order of arrival; the keys take
 * turns, so that nobody else is refused because one key asks too much. A request waits in the line of its key only
 * after it was authenticated.
 *
 * @param given.now the clock of the waits, in milliseconds
 * @param given.isBusy whether the process has been busy lately
 */
export const createAdmission = ({
  now = () => performance.now(),
  isBusy = measureBusy(),
}: {
  now?: () => number
  isBusy?: () => boolean
} = {}): Admission => {
  let working = 0
  const waiting = new Turns<Waiting>()
  /** Of each API key that has a line: when a request of it last waited for a short time. */
  const shortAt = new Map<string, number>()
  /** Since when some request has waited, and when the last ones began since: the pace at which the lines move. */
  let formedAt = 0
  const began: number[] = []

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
    began.push(since)
    if (began.length > PACE_OF) began.shift()
    const giveBackIfIdle = (): void => {
      if (!isHeld) return
      if (isBusy() && now() - since < LONGEST_IN_THE_WAY_MS) timer = setTimeout(giveBackIfIdle, IN_THE_WAY_MS)
      else giveBack()
    }
    let timer = setTimeout(giveBackIfIdle, IN_THE_WAY_MS)
    return giveBack
  }

  /** A request keeps the time that it was given when it came: who waited through a burst is not refused at its end. */
  const longestWaitMs = (apiKey: string): number =>
    now() - (shortAt.get(apiKey) ?? now()) > STANDING_FOR_MS ? LONGEST_WAIT_OVERLOADED_MS : LONGEST_WAIT_MS

  const end = (one: Waiting, isAdmitted: boolean): void => {
    const { apiKey, since } = one
    clearTimeout(one.timer)
    waiting.delete(apiKey, one)
    if (waiting.of(apiKey).size === 0) shortAt.delete(apiKey)
    else if (now() - since <= STANDING_MS) shortAt.set(apiKey, now())
    one.begin(isAdmitted)
  }

  const beginNext = (): void => {
    for (let one = waiting.take(); one; one = waiting.take()) {
      // The timer may be late if the process was.
      const isAdmitted = now() < one.giveUpAt
      end(one, isAdmitted)
      if (isAdmitted) return
    }
  }

  /** Resolves to undefined if the request was not admitted in time. */
  const place = async (apiKey: string, since: number): Promise<(() => void) | undefined> => {
    if (working < AT_ONCE && waiting.size === 0) return take()
    if (waiting.size >= MOST_WAITING || waiting.of(apiKey).size >= MOST_WAITING / 2) return undefined
    const giveUpAt = since + longestWaitMs(apiKey)
    return new Promise(resolve => {
      const one: Waiting = {
        ...{ apiKey, since, giveUpAt },
        timer: setTimeout(() => end(one, false), Math.max(0, giveUpAt - now())),
        begin: isAdmitted => resolve(isAdmitted ? take() : undefined),
      }
      if (!shortAt.has(apiKey)) shortAt.set(apiKey, now())
      if (waiting.size === 0) {
        formedAt = now()
        began.length = 0
      }
      waiting.add(apiKey, one)
    })
  }

  /** How many requests begin before one of this API key that comes now. */
  const before = (apiKey: string): number => {
    const own = waiting.of(apiKey).size
    let count = 0
    for (const line of waiting.lines) count += Math.min(line.size, own + 1)
    return count
  }

  /** How long a request that comes now is likely to wait. */
  const waitMs = (apiKey: string): number => {
    const elapsedMs = now() - (began.length < PACE_OF ? formedAt : began[0]!)
    return elapsedMs < PACE_AFTER_MS ? 0 : (before(apiKey) * elapsedMs) / Math.max(1, began.length)
  }

  return {
    refuseHopeless(ctx, next) {
      // With no line it begins at once, even if it has waited for a process that stood still.
      const { apiKey, arrivedAt } = ctx.state
      const isHopeless = waiting.size > 0 && now() - arrivedAt + waitMs(apiKey) > longestWaitMs(apiKey)
      return isHopeless ? refuse(ctx) : next()
    },
    async admit(ctx, next) {
      const giveBack = await place(ctx.state.apiKey, ctx.state.arrivedAt)
      if (!giveBack) return refuse(ctx)
      try {
        await next()
      } finally {
        giveBack()
      }
    },
  }
}

const refuse = (ctx: Answerable): void => {
  const message = `This server has too many requests at once. Nothing was done. Try again in ${RETRY_AFTER_S} s.`
  answerUnavailable(ctx, new TidingsError('UNAVAILABLE', message, { retryAfterSeconds: RETRY_AFTER_S }))
}
