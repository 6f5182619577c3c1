import type { Middleware } from 'koa'
import { TidingsError } from '../../shared/errors.ts'
import { Turns } from '../turns.ts'
import { type Answerable, answerUnavailable, type RequestState } from './request-id.ts'

/** Requests that run at once; the others wait in a line of each API key. */
const AT_ONCE = 64
/** A key with fewer under way does not wait for those of others, up to so many in all. */
const FEW = 2
const MOST_AT_ONCE = 2 * AT_ONCE
/** A request that takes longer is itself waiting, such as for an endpoint or a lock, and gives its place to others. */
const IN_THE_WAY_MS = 250
/** Unless the process itself is too busy for it. */
const LONGEST_IN_THE_WAY_MS = 2_000
/** The event loop utilisation from which the process counts as busy. */
const BUSY = 0.85
/**
 * A request that comes in a burst waits this long at most, which is better than a refusal. Its client has waited for
 * longer, since a busy process reads late, and is refused within a second.
 */
const LONGEST_WAIT_MS = 800
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

type FromKey = RequestState & { apiKey: string }

type Given = {
  now?: () => number
  isBusy?: () => boolean
}

/**
 * Runs as many requests as it can, and refuses the others soon, with nothing done. A server that begins everything
 * under overload finishes nothing in time. The requests of an API key begin in the order of arrival; the keys take
 * turns, so that nobody else is refused because one key asks too much. A request waits in the line of its key only
 * after it was authenticated.
 *
 * @param given.now the clock of the waits, in milliseconds
 * @param given.isBusy whether the process has been busy lately
 */
export class Admission {
  readonly #now: () => number
  readonly #isBusy: () => boolean
  #working = 0
  readonly #workingOf = new Map<string, number>()
  readonly #waiting = new Turns<Waiting>()
  /** Of each API key that has a line: when a request of it last waited for a short time. */
  readonly #shortAt = new Map<string, number>()
  /** Since when some request has waited, and when the last ones began since: the pace at which the lines move. */
  #formedAt = 0
  readonly #began: number[] = []

  constructor({ now = () => performance.now(), isBusy = measureBusy() }: Given = {}) {
    this.#now = now
    this.#isBusy = isBusy
  }

  /** Refuses a request that would not begin in time. Comes first, so that a refusal costs next to nothing. */
  readonly refuseHopeless: Middleware<FromKey> = (ctx, next) => {
    // With no line it begins at once, even if it has waited for a process that stood still.
    const { apiKey, arrivedAt } = ctx.state
    const isHopeless =
      this.#waiting.size > 0 &&
      !this.#mayBegin(apiKey) &&
      this.#now() - arrivedAt + this.#waitMs(apiKey) > this.#longestWaitMs(apiKey)
    return isHopeless ? refuse(ctx) : next()
  }

  /** Begins requests, the API keys in turn, and refuses those that have waited for too long. */
  readonly admit: Middleware<FromKey> = async (ctx, next) => {
    const giveBack = await this.#place(ctx.state.apiKey, ctx.state.arrivedAt)
    if (!giveBack) return refuse(ctx)
    ctx.state.leavePlace = giveBack
    try {
      await next()
    } finally {
      giveBack()
    }
  }

  /** One that may begin does not wait: whenever a place is given back, the next that may have it begin. */
  #mayBegin(apiKey: string): boolean {
    if (this.#working < AT_ONCE) return true
    return this.#working < MOST_AT_ONCE && (this.#workingOf.get(apiKey) ?? 0) < FEW
  }

  #count(apiKey: string, more: 1 | -1): void {
    this.#working += more
    const own = (this.#workingOf.get(apiKey) ?? 0) + more
    if (own === 0) this.#workingOf.delete(apiKey)
    else this.#workingOf.set(apiKey, own)
  }

  /** Takes a place. Returns the function that gives it back, which may be called twice. */
  #take(apiKey: string): () => void {
    this.#count(apiKey, 1)
    let isHeld = true
    const giveBack = (): void => {
      clearTimeout(timer)
      if (!isHeld) return
      isHeld = false
      this.#count(apiKey, -1)
      this.#beginNext()
    }
    const since = this.#now()
    this.#began.push(since)
    if (this.#began.length > PACE_OF) this.#began.shift()
    const giveBackIfIdle = (): void => {
      if (!isHeld) return
      if (this.#isBusy() && this.#now() - since < LONGEST_IN_THE_WAY_MS)
        timer = setTimeout(giveBackIfIdle, IN_THE_WAY_MS)
      else giveBack()
    }
    let timer = setTimeout(giveBackIfIdle, IN_THE_WAY_MS)
    return giveBack
  }

  /** A request keeps the time that it was given when it came: who waited through a burst is not refused at its end. */
  #longestWaitMs(apiKey: string): number {
    return this.#now() - (this.#shortAt.get(apiKey) ?? this.#now()) > STANDING_FOR_MS
      ? LONGEST_WAIT_OVERLOADED_MS
      : LONGEST_WAIT_MS
  }

  #end(one: Waiting, isAdmitted: boolean): void {
    const { apiKey, since } = one
    clearTimeout(one.timer)
    this.#waiting.delete(apiKey, one)
    if (this.#waiting.of(apiKey).size === 0) this.#shortAt.delete(apiKey)
    else if (this.#now() - since <= STANDING_MS) this.#shortAt.set(apiKey, this.#now())
    one.begin(isAdmitted)
  }

  #beginNext(): void {
    const next = () => this.#waiting.takeOf(apiKey => this.#mayBegin(apiKey))
    // The timer of one may be late if the process was.
    for (let one = next(); one; one = next()) this.#end(one, this.#now() < one.giveUpAt)
  }

  /** Resolves to undefined if the request was not admitted in time. */
  async #place(apiKey: string, since: number): Promise<(() => void) | undefined> {
    if (this.#mayBegin(apiKey)) return this.#take(apiKey)
    if (this.#waiting.size >= MOST_WAITING || this.#waiting.of(apiKey).size >= MOST_WAITING / 2) return undefined
    const giveUpAt = since + this.#longestWaitMs(apiKey)
    return new Promise(resolve => {
      const one: Waiting = {
        ...{ apiKey, since, giveUpAt },
        timer: setTimeout(() => this.#end(one, false), Math.max(0, giveUpAt - this.#now())),
        begin: isAdmitted => resolve(isAdmitted ? this.#take(apiKey) : undefined),
      }
      if (!this.#shortAt.has(apiKey)) this.#shortAt.set(apiKey, this.#now())
      if (this.#waiting.size === 0) {
        this.#formedAt = this.#now()
        this.#began.length = 0
      }
      this.#waiting.add(apiKey, one)
    })
  }

  /** How many requests begin before one of this API key that comes now. */
  #before(apiKey: string): number {
    const own = this.#waiting.of(apiKey).size
    let count = 0
    for (const line of this.#waiting.lines) count += Math.min(line.size, own + 1)
    return count
  }

  /** How long a request that comes now is likely to wait. */
  #waitMs(apiKey: string): number {
    const elapsedMs = this.#now() - (this.#began.length < PACE_OF ? this.#formedAt : this.#began[0]!)
    return elapsedMs < PACE_AFTER_MS ? 0 : (this.#before(apiKey) * elapsedMs) / Math.max(1, this.#began.length)
  }
}

const refuse = (ctx: Answerable): void => {
  const message = `This server has too many requests at once. Nothing was done. Try again in ${RETRY_AFTER_S} s.`
  answerUnavailable(ctx, new TidingsError('UNAVAILABLE', message, { retryAfterSeconds: RETRY_AFTER_S }))
}
