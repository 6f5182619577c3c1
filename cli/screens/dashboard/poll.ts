import { CliError, exitCodes } from '../../errors.ts'

/** The result of the last poll. */
export type Link =
  | { kind: 'live' }
  /** The server was not reached; polling continues. */
  | { kind: 'away'; message: string }
  /** The access token has used up its requests of this minute. */
  | { kind: 'limited'; everyMs: number }
  /** The server refuses, for instance a revoked token. */
  | { kind: 'refused'; message: string }

/** The longest interval that still shows the present. */
const LONGEST_REST_MS = 15_000
/**
 * A pause is at least this many times as long as the last answer took, so that a server spends at most a tenth of its
 * time on a screen, up to the longest rest, because one stall does not make a server slow.
 */
const REST = 9
/** The least time between polls that keys cause. */
const LEAST_MS = 250

/** The factor by which all polls of a screen slow down because of the access token's rate limit. */
export class Restraint {
  slowdown = 1
  #limitedAtMs = Number.NEGATIVE_INFINITY

  /** After RATE_LIMITED: rests, then continues at half the rate. */
  limited(): void {
    if (this.restMs > 0) return
    this.slowdown = Math.min(64, this.slowdown * 2)
    this.#limitedAtMs = performance.now()
  }

  /** The remaining rest in milliseconds. The limit applies to a minute, part of which may be over. */
  get restMs(): number {
    return Math.max(0, this.#limitedAtMs + 15_000 - performance.now())
  }

  /** After a success; after ten minutes of successes the rate is doubled. */
  fine(): void {
    if (this.slowdown === 1 || performance.now() - this.#limitedAtMs < 10 * 60_000) return
    this.slowdown /= 2
    this.#limitedAtMs = performance.now() - 15_000
  }
}

/**
 * Polls, one request at a time, at a rate that the server can bear: slower if it is slow or limits the access token,
 * and ever less often while it is unreachable.
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

  /** Polls at once, or after the present poll, unless the server needs a rest. */
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

  /** Resolves to the wait before the next poll. */
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
    return Math.max(LONGEST_REST_MS, this.#intervalMs())
  }

  #everyMs(): number {
    const intervalMs = this.#intervalMs()
    return Math.max(intervalMs, Math.min(LONGEST_REST_MS, intervalMs * this.#restraint.slowdown))
  }

  #say(link: Link): void {
    if (!this.#stopped) this.#tell(link)
  }
}
