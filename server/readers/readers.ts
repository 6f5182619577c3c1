import { TidingsError } from '../../shared/errors.ts'
import type { Database } from '../database/connect.ts'
import { RETRY_AFTER_S } from '../database/patience.ts'
import { BUDGET, overspent } from '../graphql/budget.ts'
import { type GraphqlRequest, hungUp } from '../graphql/request.ts'
import type { Log } from '../log.ts'
import { otherRelease } from '../release.ts'
import { Turns } from '../turns.ts'
import { type Ending, HEAP_MB, type Heard as HeardOfOne, type Queries, ReaderProcess, type Start } from './child.ts'
import { FairTurns } from './fair-share.ts'
import { Job, Reader, type ReaderAnswer, type Terms } from './jobs.ts'
import type { FromReader } from './messages.ts'
import {
  hasNoneLight,
  isLightOne,
  isReplacing,
  LIMITS,
  type Limits,
  MOST_HEAVY_A_PARTY,
  mayBegin,
  mayHaveMore,
  mayMove,
  mayStay,
  placesOf,
  type Rules,
  type Share,
} from './shares.ts'
import { Standing } from './standing.ts'
import { Tenants } from './tenants.ts'

/** A reader that has not ended a request this long after its limit is blocked, and is killed. */
const HELD_MS = 2_000
/** The same for a query that is put back where others miss the reader: about what it takes to replace the reader. */
const PUT_BACK_MS = 500
/** How often it is looked whether a query that runs has become heavy. */
const LOOK_MS = 10
/** How long a query that is not light comes after all that are; then it has its turn as they have. */
const BEHIND_MS = 2_000
/** How long a request waits for a busy reader before another reader is started. */
const WORTH_A_READER_MS = 100
/** How long after the first query another reader starts, so that one is left to others where a query takes long. */
const PAIR_MS = 2_000
/** After so long without a query the readers end: at rest, a server is one process. */
const REST_MS = 5 * 60_000
/** The pause before a reader that ended before it was ready is started again. */
const RESTART_MS = 500
/** The most characters of waiting requests, in total; half of it for one token. */
const MOST_WAITING = 32_000_000

/** `onReplaced`: another release was installed in place of this process's. `onEnded`: a reader ended in its work. */
type Heard = { onReplaced(): void; onEnded(): void }

/**
 * When readers start and end that nothing is asked of, how long a query may take, what a reader is (by default, as in
 * the product, a process), and the clock, in milliseconds.
 */
export type ReaderTerms = {
  now?: () => number
  pairMs?: number
  restMs?: number
  timeMs?: number
  start?: (given: Start, heard: HeardOfOne) => Queries
}

const startProcess = (given: Start, heard: HeardOfOne): Queries => new ReaderProcess(given, heard)

/** Starts processes that answer queries, as they are needed: none before the first query. */
export class Readers {
  readonly #databaseUrl: string
  readonly #database: Database
  readonly #log: Log
  readonly #tenants: Tenants
  readonly #limits: Limits
  readonly #readers = new Set<Reader>()
  readonly #waiting = new Turns<Job>()
  readonly #standing: Standing
  readonly #turns = new FairTurns()
  #lastId = 0
  #isStopping = false
  /** Whether two readers have been ready at once. */
  #hadTwo = false
  #startAfter = 0
  #fault: string | undefined
  readonly #heard: Heard
  readonly #now: () => number
  readonly #pairMs: number
  readonly #timeMs: number
  readonly #start: NonNullable<ReaderTerms['start']>
  #pair: NodeJS.Timeout | undefined
  readonly #rest: NodeJS.Timeout

  constructor(
    databaseUrl: string,
    database: Database,
    log: Log,
    heard: Heard,
    {
      now = () => performance.now(),
      pairMs = PAIR_MS,
      restMs = REST_MS,
      timeMs = BUDGET.timeMs,
      start = startProcess,
    }: ReaderTerms = {},
  ) {
    this.#now = now
    this.#heard = heard
    this.#pairMs = pairMs
    this.#timeMs = timeMs
    this.#start = start
    this.#rest = setTimeout(() => this.#endIdle(), restMs).unref()
    this.#databaseUrl = databaseUrl
    this.#database = database
    this.#log = log
    this.#tenants = new Tenants(database, now)
    this.#standing = new Standing(this.#tenants, now)
    this.#limits = LIMITS[database.dialect.isEmbedded ? 'embedded' : 'server']
  }

  #startIfFewer(than: number): void {
    if (!this.#isStopping && this.#readers.size < than) this.#startReader()
  }

  /**
   * Answers a query in another process, so that it blocks nobody here. Resolves to 'mutation' for a valid mutation,
   * which has to be made here. Throws UNAVAILABLE if no reader had a place in time, or the error that ended the query.
   */
  async ask(request: GraphqlRequest, terms: Terms): Promise<ReaderAnswer | 'mutation'> {
    const tenantId = await this.#tenants.of(request.token)
    this.#lastId += 1
    const job = new Job(this.#lastId, tenantId, request, terms, this.#now())
    if (terms.gone.aborted) throw hungUp()
    if (this.#isTooMuch(job)) throw noPlace()
    this.#tenants.notice(tenantId)
    terms.gone.addEventListener('abort', () => this.#forget(job), { once: true })
    this.#waiting.add(job.tokenId, job)
    this.#dispatch()
    this.#pair ??= setTimeout(() => this.#startIfFewer(2), this.#pairMs).unref()
    // The process may have stood still until its time was up.
    const leftMs = Math.max(0, terms.giveUpAt - this.#now())
    const late = setTimeout(() => this.#giveUp(job, noPlace()), leftMs)
    const result = await job.result.promise
    clearTimeout(late)
    if (result instanceof Error) throw result
    return result
  }

  /** Why no reader can be started any more. */
  fault(): string | undefined {
    return this.#fault
  }

  stop(): void {
    this.#isStopping = true
    clearTimeout(this.#rest)
    clearTimeout(this.#pair)
    for (const { process } of this.#readers) process.kill()
  }

  #startReader(): void {
    this.#isReplaced(otherRelease())
    if (this.#fault !== undefined) return
    const { dialect } = this.#database
    const given = { databaseUrl: this.#databaseUrl, engine: dialect.name, logLevel: this.#log.level }
    const processOf = (reader: Reader) =>
      this.#start(
        { ...given, places: this.#limits.places, timeMs: this.#timeMs },
        {
          ready: () => this.#dispatch(),
          isOther: fault => this.#isReplaced(fault),
          message: message => this.#receive(reader, message),
          failed: error => this.#log.error({ err: error }, 'a reader failed'),
          ended: how => this.#ended(reader, how),
        },
      )
    this.#readers.add(new Reader(processOf, this.#now))
  }

  #endIdle(): void {
    for (const reader of this.#readers) {
      if (!reader.process.isReady || reader.running.size > 0) continue
      this.#readers.delete(reader)
      reader.process.kill()
    }
    if (this.#readers.size > 0) return void this.#rest.refresh()
    this.#hadTwo = false
    clearTimeout(this.#pair)
    this.#pair = undefined
  }

  #isReplaced(fault: string | undefined): void {
    if (fault === undefined || this.#fault !== undefined) return
    this.#fault = fault
    this.#log.error({ reason: fault }, 'this process is not ready')
    this.#heard.onReplaced()
    this.#dispatch()
  }

  #receive(reader: Reader, message: Exclude<FromReader, { kind: 'ready' }>): void {
    if (message.kind === 'connection') {
      if (message.before !== undefined) reader.connectionIds.delete(message.before)
      reader.connectionIds.add(message.connectionId)
    } else if (message.kind === 'end') {
      this.#endConnections(reader, [message.connectionId])
    } else if (message.kind === 'heavy') {
      const job = reader.running.get(message.id)
      if (job) this.#wantsToMatch(reader, job)
    } else if (message.kind === 'large') {
      const job = reader.running.get(message.id)
      if (job) job.isLarge = true
    } else if (message.kind === 'mutation') {
      const job = reader.running.get(message.id)
      if (!job) return
      this.#left(reader, job)
      job.settle('mutation')
      this.#dispatch()
    } else void this.#answered(reader, message)
  }

  /** Closes connections of a reader with their running statements; ignores those already closed. */
  #endConnections(reader: Reader, connectionIds: Iterable<number>): void {
    for (const connectionId of connectionIds) {
      reader.connectionIds.delete(connectionId)
      const ended = this.#database.knex.raw(`KILL ${connectionId}`)
      ended.catch(error => this.#log.debug({ err: error }, 'a connection was not ended'))
    }
  }

  async #answered(reader: Reader, message: Extract<FromReader, { kind: 'answer' }>): Promise<void> {
    const { id, body, status, headers, codes, operation, costMs } = message
    const job = reader.running.get(id)
    const whole = typeof body === 'number' ? await reader.process.receive(body) : [body]
    // The reader may have ended meanwhile, or another have the job.
    if (!job || reader.running.get(id) !== job) return
    this.#left(reader, job, costMs)
    if (job.mode.now === 'put back' && costMs === undefined) this.#waitAgain(job)
    else job.settle({ status, headers, codes, operation, body: whole })
    this.#dispatch()
  }

  /** `tookMs`: of one that was answered. */
  #left(reader: Reader, job: Job, tookMs?: number): void {
    this.#standing.noteEnd(job, reader, tookMs)
    this.#leave(reader, job, tookMs ?? reader.costOf(job))
  }

  #leave(reader: Reader, job: Job, tookMs: number): void {
    job.endTurn(tookMs)
    reader.leave(job)
    job.leave()
  }

  #waitAgain(job: Job): void {
    const { gone, giveUpAt } = job.terms
    if (gone.aborted) job.settle(hungUp())
    else if (this.#now() > giveUpAt) job.settle(noPlace())
    else {
      job.mode.enter('waiting')
      this.#waiting.add(job.tokenId, job)
    }
  }

  #ended(reader: Reader, { isKilled, wasReady, said }: Ending): void {
    this.#readers.delete(reader)
    const jobs = [...reader.running.values()]
    if (this.#isStopping) {
      for (const job of jobs) {
        this.#leave(reader, job, reader.costOf(job))
        job.settle(isRestarting())
      }
      return
    }
    this.#endConnections(reader, reader.connectionIds)
    if (jobs.length > 0) this.#heard.onEnded()
    if (!wasReady) {
      this.#startAfter = this.#now() + RESTART_MS
      this.#isReplaced(otherRelease())
    }
    const requestIds = jobs.map(({ request }) => request.requestId)
    said.then(said => {
      if (requestIds.length > 0) this.#log.warn({ requestIds, said }, 'a reader was ended in the middle of its work')
      else if (said !== undefined) this.#log.warn({ said }, 'a reader has ended')
    })
    // What is light did not end it, beside others that may have.
    const isMixed = this.#standing.isMixed(reader)
    const mayBeWhy = jobs.filter(job => !isMixed || !isLightOne(this.#standing.shareOf(job, reader)))
    const isKnownWhy = jobs.some(({ mode }) => mode.now === 'over' || mode.now === 'put back')
    for (const job of jobs) {
      this.#left(reader, job)
      // If it is not known which request ended the reader, each is tried once more, alone.
      if (!isKnownWhy && mayBeWhy.includes(job)) job.ended += 1
      if (job.mode.now === 'over') job.settle(job.terms.gone.aborted ? hungUp() : overspent('timeMs'))
      else if (job.ended > 1 || (job.ended === 1 && jobs.length === 1 && !isKilled)) job.settle(outOfMemory())
      else this.#waitAgain(job)
    }
    this.#dispatch()
  }

  get #isReplacing(): boolean {
    const [ready, all] = [this.#ready.length, this.#readers.size]
    this.#hadTwo ||= ready > 1
    const mayStart = this.#fault === undefined && this.#now() >= this.#startAfter
    return this.#hadTwo && isReplacing({ ready, all, mayStart })
  }

  get #rules(): Rules {
    return { ...this.#limits, isReplacing: this.#isReplacing, isShared: this.#tenants.areSeveral }
  }

  get #ready(): Reader[] {
    return [...this.#readers].filter(({ process }) => process.isReady)
  }

  #running(readers: readonly Reader[]): Share[][] {
    return readers.map(reader => [...reader.running.values()].map(job => this.#standing.shareOf(job, reader)))
  }

  #dispatch(): void {
    if (this.#isStopping) return
    let hasBegun = true
    while (hasBegun) hasBegun = this.#beginOne()
    const ready = this.#ready
    if (this.#fault !== undefined) {
      if (ready.length === 0) for (const job of [...this.#waiting]) this.#giveUp(job, isRestarting())
      return
    }
    if (ready.length < this.#readers.size || this.#readers.size >= this.#limits.readers) return
    const [running, rules] = [this.#running(ready), this.#rules]
    const isLimited = (job: Job) => !mayHaveMore(this.#standing.shareOf(job), running, rules)
    const first = [...this.#waiting].filter(job => !isLimited(job)).sort((a, b) => a.askedAt - b.askedAt)[0]
    const isNoneLight = hasNoneLight(running)
    if (!first && (ready.length === 0 || !isNoneLight)) return
    const startAt = Math.max(this.#startAfter, first && !isNoneLight ? first.askedAt + WORTH_A_READER_MS : 0)
    if (this.#now() >= startAt) this.#startReader()
    else setTimeout(() => this.#dispatch(), Math.max(0, startAt - this.#now()) + 1).unref()
  }

  /**
   * Begins one waiting query: a light one in the reader with the most places, any other in the one that has begun the
   * fewest. One that has just started is slow, and is left to them. Returns whether it has.
   *
   * Rejected: light ones first, however long others wait. A crowd of tokens with small queries kept out for seconds a
   * small one that had been slow once, and new tokens until their time was up.
   */
  #beginOne(): boolean {
    const ready = this.#ready
    const rules = this.#rules
    if (this.#waiting.size === 0 || ready.every(({ running }) => running.size >= placesOf(rules))) return false
    const busiestLast = ready.sort((a, b) => a.running.size - b.running.size || b.begun - a.begun)
    const newestFirst = busiestLast.toSorted((a, b) => a.begun - b.begun)
    const placesIn = (readers: Reader[]) => ({ readers, running: this.#running(readers) })
    const [forLight, forOthers] = [placesIn(busiestLast), placesIn(newestFirst)]
    const shares = new Map<Job, Share>()
    const shareOf = (job: Job): Share => {
      const share = shares.get(job) ?? this.#standing.shareOf(job)
      shares.set(job, share)
      return share
    }
    let place: Reader | undefined
    // A crowd that has all that it may have waits in many lines: one of each kind is asked about.
    const refused = new Set<string>()
    const hasPlace = (job: Job): boolean => {
      const share = shareOf(job)
      const kind = Object.values(share).join()
      if (refused.has(kind)) return false
      const { readers, running } = isLightOne(share) ? forLight : forOthers
      place = readers.find((_, index) => mayBegin(share, index, running, rules))
      if (place === undefined) refused.add(kind)
      return place !== undefined
    }
    const late = this.#now() - BEHIND_MS
    const isBehind = (job: Job) => job.askedAt > late && !isLightOne(shareOf(job))
    const rankOf = (job: Job) => [Number(isBehind(job)), ...this.#turns.rankOf(job)]
    const job = this.#waiting.takeFirst(hasPlace, rankOf)
    if (!job) return false
    const light = this.#waiting.firsts.filter(first => isLightOne(shareOf(first)))
    this.#run(place!, job, light)
    return true
  }

  /** `light`: what is light and waits. What is not may wait for other reasons, and has no claim on the time of that. */
  #run(reader: Reader, job: Job, light: readonly Job[]): void {
    job.mode.enter('running')
    job.endTurn = this.#turns.begin(job, this.#standing.expectedMs(job), [job, ...light])
    this.#rest.refresh()
    job.waitsToMatch = false
    reader.begin(job)
    this.#endIfHeld(reader, job, this.#timeMs + HELD_MS)
    this.#watch(reader, job)
    const { id, request } = job
    const { now, giveUpAt } = job.terms
    reader.process.send({ kind: 'ask', id, request, now, patienceMs: giveUpAt - this.#now() })
  }

  #watch(reader: Reader, job: Job): void {
    if (job.isHeavy) return
    job.lookTimer = setTimeout(() => {
      if (this.#mayMove(reader, job)) this.#move(reader, job)
      else if (this.#standing.isLong(job, reader, this.#waiting.size > 0)) this.#becomesHeavy(reader, job)
      else if (this.#isInTheWay(reader, job)) this.#makeWay(reader, job)
      else this.#watch(reader, job)
    }, LOOK_MS)
  }

  /** Whether a small query waits, and no other reader is left to small ones. */
  #isInTheWay(reader: Reader, job: Job): boolean {
    if (!job.isLarge || job.hasMadeWay || job.mode.now !== 'running') return false
    if (!this.#waiting.firsts.some(first => isLightOne(this.#standing.shareOf(first)))) return false
    return hasNoneLight(this.#running(this.#ready.filter(other => other !== reader)))
  }

  /** It runs again, where what is not light runs; and then it stays, or it would never be done. */
  #makeWay(reader: Reader, job: Job): void {
    job.hasMadeWay = true
    this.#putBack(reader, job)
  }

  #mayMove(reader: Reader, job: Job): boolean {
    if (job.mode.now !== 'running' || job.hasMoved) return false
    const ready = this.#ready
    return mayMove(this.#standing.shareOf(job, reader), ready.indexOf(reader), this.#running(ready), this.#rules)
  }

  /** Under another id: its reader may hear of it late, and what that still answers is not wanted. */
  #move(reader: Reader, job: Job): void {
    job.hasMoved = true
    reader.process.send({ kind: 'gone', id: job.id })
    this.#leave(reader, job, reader.costOf(job))
    this.#lastId += 1
    job.id = this.#lastId
    this.#waitAgain(job)
    this.#dispatch()
  }

  /** Whether another query's patterns keep the reader of a query busy. */
  #isHeldUp(reader: Reader, job: Job): boolean {
    return [...reader.running.values()].some(other => other !== job && other.isMatching)
  }

  #endIfHeld(reader: Reader, job: Job, afterMs: number): void {
    clearTimeout(job.timer)
    job.timer = setTimeout(() => {
      if (job.mode.now === 'running') job.mode.enter('over')
      reader.process.kill()
    }, afterMs)
  }

  /** A query that has become one heavy query too many is put back: it runs again when another one has ended. */
  #becomesHeavy(reader: Reader, job: Job): void {
    if (job.isHeavy || job.mode.now !== 'running') return
    const running = this.#ready.flatMap(({ running }) => [...running.values()])
    const own = running.filter(other => other.isHeavy && this.#standing.partyOf(other) === this.#standing.partyOf(job))
    job.isHeavy = true
    if (own.length >= MOST_HEAVY_A_PARTY || !this.#mayStay(reader)) this.#putBack(reader, job)
    else this.#dispatch()
  }

  /** A query that is put back for its patterns has matched nothing yet, so that it was in nobody's way. */
  #wantsToMatch(reader: Reader, job: Job): void {
    job.isMatching = true
    if (job.mode.now !== 'running') return
    job.waitsToMatch = true
    if (!job.isHeavy) this.#becomesHeavy(reader, job)
    else if (!this.#mayStay(reader)) this.#putBack(reader, job)
    if (job.mode.now !== 'running') return
    job.waitsToMatch = false
    reader.process.send({ kind: 'match', id: job.id })
  }

  #mayStay(reader: Reader): boolean {
    const ready = this.#ready
    return mayStay(ready.indexOf(reader), this.#running(ready), this.#rules)
  }

  #putBack(reader: Reader, job: Job): void {
    job.mode.enter('put back')
    reader.process.send({ kind: 'gone', id: job.id })
    // On an embedded engine it may be a statement that holds the reader, which hears nothing meanwhile.
    const isMissed = this.#limits.places === 1 || hasNoneLight(this.#running(this.#ready))
    this.#endIfHeld(reader, job, isMissed && !this.#isHeldUp(reader, job) ? PUT_BACK_MS : HELD_MS)
  }

  /** Ends a waiting job; returns whether it was waiting. */
  #giveUp(job: Job, reason: Error): boolean {
    const wasWaiting = this.#waiting.delete(job.tokenId, job)
    if (wasWaiting) job.settle(reason)
    return wasWaiting
  }

  #forget(job: Job): void {
    if (this.#giveUp(job, hungUp())) return
    const reader = [...this.#readers].find(({ running }) => running.get(job.id) === job)
    if (!reader) return
    if (job.mode.now !== 'over') job.mode.enter('over')
    reader.process.send({ kind: 'gone', id: job.id })
    this.#endIfHeld(reader, job, HELD_MS)
  }

  #isTooMuch({ tokenId }: Job): boolean {
    const weight = (jobs: Iterable<Job>) => [...jobs].reduce((sum, { weight }) => sum + weight, 0)
    return weight(this.#waiting) > MOST_WAITING || weight(this.#waiting.of(tokenId)) > MOST_WAITING / 2
  }
}

const noPlace = (): TidingsError<'UNAVAILABLE'> =>
  new TidingsError(
    'UNAVAILABLE',
    `Too many queries are under way. Nothing was done. Try again in ${RETRY_AFTER_S} s.`,
    { retryAfterSeconds: RETRY_AFTER_S },
  )

const isRestarting = (): TidingsError<'UNAVAILABLE'> =>
  new TidingsError('UNAVAILABLE', `The server is restarting. Nothing was done. Try again in ${RETRY_AFTER_S} s.`, {
    retryAfterSeconds: RETRY_AFTER_S,
  })

const outOfMemory = (): TidingsError =>
  new TidingsError(
    'RESULT_TOO_LARGE',
    `The request takes more than ${HEAP_MB} MB of memory. Give its lists smaller limits, or ask for fewer fields.`,
    { limit: HEAP_MB, budget: 'memoryMb' },
  )
