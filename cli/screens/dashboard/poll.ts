import { CliError, exitCodes } from '../../errors.ts'

/** How the last look went. */
export type Link =
  | { kind: 'live' }
  /** The server was not reached; it is tried again. */
  | { kind: 'away'; message: string }
  /** The access token has used up its requests of this minute. */
  | { kind: 'limited'; everyMs: number }
  /** The server refuses to answer, for instance a token that has been revoked. */
  | { kind: 'refused'; message: string }

/** A screen that looks less often than this says too little of what is so now. */
const LONGEST_REST_MS = 15_000
/**
 * A server that needs long for an answer is left alone for this many times as long: it spends a tenth of its time on a
 * screen. No longer than the longest rest: a server that stalled once is not slow.
 */
const REST = 9
/** Keys that ask for a look may be pressed faster than a server is to be asked. */
const LEAST_MS = 250

/**
 * How much more slowly than it would a screen asks, because of the limit of its access token, which all its polls
 * share.
 */
export class Restraint {
  slowdown = 1
  #limitedAtMs = Number.NEGATIVE_INFINITY

  /** The server has answered RATE_LIMITED: half the pace from now on, after a rest. */
  limited(): void {
    if (this.restMs > 0) return
    this.slowdown = Math.min(64, this.slowdown * 2)
    this.#limitedAtMs = performance.now()
  }

  /** Milliseconds that nothing is to be asked for. The limit is for a minute, some of which may have gone by. */
  get restMs(): number {
    return Math.max(0, this.#limitedAtMs + 15_000 - performance.now())
  }

  /** All went well; after ten minutes of that twice the pace is tried. */
  fine(): void {
    if (this.slowdown === 1 || performance.now() - this.#limitedAtMs < 10 * 60_000) return
    this.slowdown /= 2
    this.#limitedAtMs = performance.now() - 15_000
  }
}

/**
 * Looks again and again, one look at a time, at a pace that the server bears: slower when it is slow or limits the
 * access token, and less and less often while it is away.
 */
export class Poll {
  readonly #look: () => Promise<void>
  readonly #intervalMs: () => number
  readonly #restraint: Restraint
  readonly #tell: (link: Link) => void
  #timer: NodeJS.Timeout | undefined
  #looking = false
  #again = false
  #stopped = false
  #failures = 0
  #startedAt = Number.NEGATIVE_INFINITY

  constructor(options: {
    look: () => Promise<void>
    intervalMs: () => number
    restraint: Restraint
    tell: (link: Link) => void
  }) {
    this.#look = options.look
    this.#intervalMs = options.intervalMs
    this.#restraint = options.restraint
    this.#tell = options.tell
  }

  /** Looks at once, or after the look that is under way; not while the server is to be left alone. */
  now(): void {
    if (this.#looking) this.#again = true
    else if (this.#failures === 0) this.#runAfter(this.#soonestMs)
  }

  stop(): void {
    this.#stopped = true
    clearTimeout(this.#timer)
  }

  async #run(): Promise<void> {
    this.#looking = true
    const waitMs = this.#restraint.restMs || (await this.#tryToLook())
    this.#looking = false
    this.#runAfter(waitMs)
  }

  #runAfter(waitMs: number): void {
    clearTimeout(this.#timer)
    if (!this.#stopped) this.#timer = setTimeout(() => void this.#run(), waitMs)
  }

  get #soonestMs(): number {
    return Math.max(0, this.#startedAt + LEAST_MS - performance.now())
  }

  /** Answers how long to wait for the next look. */
  async #tryToLook(): Promise<number> {
    this.#startedAt = performance.now()
    this.#again = false
    try {
      await this.#look()
      this.#failures = 0
      this.#restraint.fine()
      this.#say(this.#restraint.slowdown > 1 ? { kind: 'limited', everyMs: this.#everyMs() } : { kind: 'live' })
      const restMs = Math.min(LONGEST_REST_MS, REST * (performance.now() - this.#startedAt))
      return this.#again ? this.#soonestMs : Math.max(this.#everyMs(), restMs)
    } catch (error) {
      if (!(error instanceof CliError)) throw error
      this.#failures += 1
      return this.#afterFailure(error)
    }
  }

  #afterFailure({ code, exitCode, message, hint }: CliError): number {
    if (code === 'RATE_LIMITED') {
      this.#restraint.limited()
      this.#say({ kind: 'limited', everyMs: this.#everyMs() })
      return this.#restraint.restMs
    }
    if (exitCode === exitCodes.unreachable) {
      this.#say({ kind: 'away', message })
      return Math.min(LONGEST_REST_MS, 1000 * 2 ** (this.#failures - 1))
    }
    this.#say({ kind: 'refused', message: hint ? `${message} ${hint}` : message })
    return LONGEST_REST_MS
  }

  #everyMs(): number {
    return Math.min(LONGEST_REST_MS, this.#intervalMs() * this.#restraint.slowdown)
  }

  #say(link: Link): void {
    if (!this.#stopped) this.#tell(link)
  }
}
