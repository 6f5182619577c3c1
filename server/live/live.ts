import { setTimeout as sleep } from 'node:timers/promises'
import { TidingsError } from '../../shared/errors.ts'
import type { Clock } from '../clock.ts'
import type { Database } from '../database/connect.ts'
import { patiently } from '../database/patience.ts'
import { findByApiKeys } from '../domain/access-tokens.ts'
import { type AccessToken, endOf, requirePermission } from '../domain/permissions.ts'
import { type Log, logSeldom } from '../log.ts'
import { Mode } from '../mode.ts'
import { Changes } from './changes.ts'
import { Groups, MOST_OWED, type Subscriber } from './groups.ts'
import { Teller } from './teller.ts'

/** `lookMs`: the time between two looks for changes. `beatMs`: between two keep-alives, and checks of tokens. */
export type LiveTimes = { lookMs: number; beatMs: number }
/** A keep-alive comes sooner than the timeout for unread answers. */
const TIMES: LiveTimes = { lookMs: 1_000, beatMs: 5_000 }
/** The pause before a look after a change by this process. */
const HURRY_MS = 50
/** The loop rests this many times as long as a look took: the process has other work. */
const REST_PART = 3
const MOST_STREAMS = 2_048
/** The most different subscriptions of one token: each costs a statement for every change. */
const MOST_QUESTIONS = 256

/** A client that is about to subscribe, and what has changed meanwhile. */
export type Coming = { changed: Set<string> }

/**
 * `idle`: nobody subscribes, and the database is asked nothing. `beginning`: reads the present state. `following`:
 * looks for changes.
 */
type LiveMode = 'idle' | 'beginning' | 'following' | 'stopped'

/**
 * Reports deliveries to subscribers as they change. While somebody subscribes, a process reads the changes once a
 * second, for all of its subscribers. It queries what a subscriber may see only when it has something to send.
 */
export class Live {
  readonly #database: Database
  readonly #clock: Clock
  readonly #log: Log
  readonly #times: LiveTimes
  readonly #mode = new Mode<LiveMode>('idle', {
    idle: ['beginning', 'stopped'],
    beginning: ['following', 'idle', 'stopped'],
    following: ['idle', 'stopped'],
    stopped: [],
  })
  readonly #groups = new Groups()
  readonly #coming = new Set<Coming>()
  readonly #teller: Teller
  #changes: Changes
  #begun: Promise<void> | undefined
  #woken = new AbortController()
  /** All changes until then are owed to the groups, or told. */
  #cursor = 0

  constructor(
    { database, clock, log }: { database: Database; clock: Clock; log: Log },
    times: Partial<LiveTimes> = {},
  ) {
    this.#database = database
    this.#clock = clock
    this.#log = log
    this.#times = { ...TIMES, ...times }
    this.#changes = new Changes(database.knex, clock)
    this.#teller = new Teller(this.#groups, () => this.#cursor)
  }

  /**
   * From here on a client that is about to subscribe misses nothing. Throws UNAVAILABLE if there are too many
   * subscribers, or the database is unavailable until `giveUpAt`.
   */
  async ready(tokenId: string, giveUpAt: number): Promise<Coming> {
    const own = this.#groups.of(tokenId).reduce((sum, { streams }) => sum + streams.size, 0)
    const isFull = this.#groups.streams.length >= MOST_STREAMS || own >= MOST_STREAMS / 2
    if (isFull || this.#mode.now === 'stopped') throw tooManyStreams()
    const coming: Coming = { changed: new Set() }
    this.#coming.add(coming)
    try {
      if (this.#mode.now !== 'following') await patiently(() => this.#begin(), giveUpAt)
    } catch (error) {
      this.left(coming)
      throw error
    }
    return coming
  }

  /** A client that was about to subscribe does not, or has. */
  left(coming: Coming): void {
    this.#coming.delete(coming)
  }

  subscribe({ stream, missed, ...asked }: Subscriber, coming: Coming): void {
    this.left(coming)
    const questions = new Set(this.#groups.of(asked.token.id).map(({ key }) => key))
    const isOneMore = questions.size >= MOST_QUESTIONS && !questions.has(asked.key)
    const owed = [...missed, ...coming.changed]
    if (this.#mode.now !== 'following') stream.breakOff()
    else if (isOneMore) stream.complete(asked.asError(tooManyQuestions()))
    else {
      this.#groups.add({ ...asked, stream, missed: owed })
      if (owed.length > 0) this.hurry()
      // From here on nothing is missed, even if the connection breaks at once.
      else stream.beat(this.#cursor)
    }
  }

  /** Reports a change made in this process, such as of this delivery. */
  hurry(deliveryId?: string): void {
    if (this.#mode.now !== 'following') return
    if (deliveryId !== undefined) this.#changes.settled(deliveryId)
    this.#woken.abort()
  }

  /** Ends all streams, so that their clients reconnect elsewhere. */
  stop(): void {
    if (this.#isIn('stopped')) return
    this.#mode.enter('stopped')
    this.#woken.abort()
    this.#groups.breakOff()
  }

  #begin(): Promise<void> {
    this.#begun ??= this.#readPresent().finally(() => {
      this.#begun = undefined
    })
    return this.#begun
  }

  async #readPresent(): Promise<void> {
    this.#mode.enter('beginning')
    this.#changes = new Changes(this.#database.knex, this.#clock)
    const cursor = this.#clock.now()
    try {
      await this.#changes.begin()
    } catch (error) {
      if (this.#isIn('beginning')) this.#mode.enter('idle')
      throw error
    }
    if (!this.#isIn('beginning')) return
    this.#cursor = cursor
    this.#mode.enter('following')
    void this.#follow()
  }

  /** Asked again after an await, when the mode may be another. */
  #isIn(mode: LiveMode): boolean {
    return this.#mode.now === mode
  }

  async #follow(): Promise<void> {
    const beating = setInterval(() => this.#groups.beat(this.#cursor), this.#times.beatMs)
    let checkedAt = performance.now()
    while (this.#isIn('following')) {
      await this.#rest()
      if (!this.#isIn('following')) break
      const lookedAt = performance.now()
      try {
        await this.#look()
        if (lookedAt - checkedAt >= this.#times.beatMs || this.#groups.all.some(({ owed }) => owed.size > 0)) {
          checkedAt = lookedAt
          await this.#checkTokens()
        }
        this.#teller.tellAll()
      } catch (error) {
        const message = 'changes cannot be told to subscribers; trying until they can'
        logSeldom(this.#log, 'warn', 'live', { err: error }, message)
      }
      await sleep(REST_PART * (performance.now() - lookedAt), undefined, { ref: false })
      const isWanted = this.#groups.all.length > 0 || this.#coming.size > 0
      if (!isWanted && this.#isIn('following')) this.#mode.enter('idle')
    }
    clearInterval(beating)
  }

  /** Waits for the next look, or for a change by this process and those just after it. */
  async #rest(): Promise<void> {
    const { signal } = this.#woken
    await sleep(this.#times.lookMs, undefined, { signal, ref: false }).catch(() => sleep(HURRY_MS))
    this.#woken = new AbortController()
  }

  async #look(): Promise<void> {
    const startedAt = this.#clock.now()
    const ids = await this.#changes.look()
    for (const { changed } of this.#coming) for (const id of ids) if (changed.size <= MOST_OWED) changed.add(id)
    await this.#groups.oweAll(ids)
    this.#cursor = startedAt
  }

  /** Ends the subscriptions of revoked or expired tokens, and updates the other tokens. */
  async #checkTokens(): Promise<void> {
    const groups = this.#groups.all
    if (groups.length === 0) return
    const keys = groups.map(({ token }) => token.apiKey)
    const found = await findByApiKeys(this.#database.knex, keys)
    for (const group of groups) {
      try {
        group.token = stillMayRead(found.get(group.token.apiKey)?.token, this.#clock.now())
      } catch (error) {
        this.#groups.end(group, group.asError(error))
      }
    }
  }
}

const stillMayRead = (token: AccessToken | undefined, now: number): AccessToken => {
  const ended = token ? endOf(token, now) : { reason: 'unknown_key' as const, message: 'The access token is gone.' }
  if (ended) throw new TidingsError('UNAUTHENTICATED', ended.message, { reason: ended.reason })
  requirePermission(token!, 'read')
  return token!
}

const tooManyStreams = (): TidingsError =>
  new TidingsError('UNAVAILABLE', 'Too many subscriptions are open at this server. Try again in 5 s.', {
    retryAfterSeconds: 5,
  })

const tooManyQuestions = (): TidingsError =>
  new TidingsError(
    'QUERY_TOO_COMPLEX',
    `This access token has ${MOST_QUESTIONS} different subscriptions at this server. Equal subscriptions count as ` +
      'one: use fewer different ones, with broader selectors.',
    { limit: MOST_QUESTIONS, budget: 'subscriptions' },
  )
