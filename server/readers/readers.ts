import { TidingsError } from '../../shared/errors.ts'
import type { Database } from '../database/connect.ts'
import { RETRY_AFTER_S } from '../database/patience.ts'
import { BUDGET, overspent } from '../graphql/budget.ts'
import { type GraphqlAnswer, type GraphqlRequest, hungUp } from '../graphql/request.ts'
import type { Log } from '../log.ts'
import { Mode } from '../mode.ts'
import { otherRelease } from '../release.ts'
import { Turns } from '../turns.ts'
import { type Ending, HEAP_MB, ReaderProcess } from './child.ts'
import type { FromReader } from './messages.ts'
import { hasNoneLight, MOST_LONG_A_TOKEN, MOST_READERS, mayBegin, mayHaveMore, mayStay, type Share } from './shares.ts'

/** Requests that a reader runs at once: statements run in a database server, or in the reader itself on SQLite. */
const PLACES = { embedded: 1, server: 4 }
/** A reader that has not ended a request this long after its limit is blocked, and is killed. */
const HELD_MS = 2_000
/** The same for a query that is put back: others wait for the reader. */
const PUT_BACK_MS = 250
/** A query that has run for so long is long. */
const LONG_MS = 250
/** After one token had a long query, its queries count as heavy for so long; after more of them, as crowded. */
const HEAVY_MS = 10_000
/** How long a request waits for a busy reader before another reader is started. */
const WORTH_A_READER_MS = 100
/** The code of an answer that was not wanted any more. */
const HUNG_UP = hungUp().code
/** After so long without a query the readers end: at rest, a server is one process. */
const REST_MS = 5 * 60_000
/** The pause before a reader that ended before it was ready is started again. */
const RESTART_MS = 500
/** The most characters of waiting requests, in total; half of it for one token. */
const MOST_WAITING = 32_000_000
const BESIDE_BODY = 10_000

/** `body`: in parts, as it came, so that nobody holds a large one twice. */
export type ReaderAnswer = Omit<GraphqlAnswer, 'body'> & {
  body: Uint8Array[]
  codes: Set<unknown>
  operation?: string | undefined
}

type Result = ReaderAnswer | 'mutation' | Error

/** When a request was made, how long it may wait, and whether its client still waits. */
export type Terms = { now: number; giveUpAt: number; gone: AbortSignal }

/**
 * `waiting`: for a place. `running`: in a reader. `put back`: its reader was told to end it, and it will wait again.
 * `over`: its reader was told to end it for good.
 */
type JobMode = 'waiting' | 'running' | 'put back' | 'over' | 'settled'

/** One request that a reader answers. */
class Job {
  readonly id: number
  readonly request: GraphqlRequest
  readonly terms: Terms
  readonly askedAt = performance.now()
  readonly result = Promise.withResolvers<Result>()
  readonly mode = new Mode<JobMode>('waiting', {
    waiting: ['running', 'settled'],
    running: ['waiting', 'put back', 'over', 'settled'],
    'put back': ['waiting', 'over', 'settled'],
    over: ['settled'],
    settled: [],
  })
  /** How often its reader ended while it ran. */
  ended = 0
  isLong = false
  isMatching = false
  /** Whether it waits to be told that it may match, and does nothing. */
  waitsToMatch = false
  /** Ends its reader if that is held. */
  timer: NodeJS.Timeout | undefined
  longTimer: NodeJS.Timeout | undefined

  constructor(id: number, request: GraphqlRequest, terms: Terms) {
    this.id = id
    this.request = request
    this.terms = terms
  }

  get tokenId(): string {
    return this.request.token.id
  }

  get weight(): number {
    return this.request.body.length + BESIDE_BODY
  }

  settle(result: Result): void {
    this.mode.enter('settled')
    this.result.resolve(result)
  }

  leave(): void {
    clearTimeout(this.timer)
    clearTimeout(this.longTimer)
  }
}

/** `onReplaced`: another release was installed in place of this process's. `onEnded`: a reader ended in its work. */
type Heard = { onReplaced(): void; onEnded(): void }

type Reader = { process: ReaderProcess; running: Map<number, Job>; connectionIds: Set<number> }

/** How long readers stay that nothing is asked of; the default is the product's. */
export type ReaderTimes = { restMs?: number }

/** Starts processes that answer queries, as they are needed. */
export class Readers {
  readonly #databaseUrl: string
  readonly #database: Database
  readonly #log: Log
  readonly #places: number
  readonly #readers = new Set<Reader>()
  readonly #waiting = new Turns<Job>()
  /** By token. */
  readonly #heavyUntil = new Map<string, number>()
  readonly #crowdedUntil = new Map<string, number>()
  #lastId = 0
  #isStopping = false
  #startAfter = 0
  #fault: string | undefined
  readonly #heard: Heard
  readonly #rest: NodeJS.Timeout

  constructor(databaseUrl: string, database: Database, log: Log, heard: Heard, { restMs = REST_MS }: ReaderTimes = {}) {
    this.#heard = heard
    this.#rest = setTimeout(() => this.#endIdle(), restMs).unref()
    this.#databaseUrl = databaseUrl
    this.#database = database
    this.#log = log
    this.#places = database.dialect.isEmbedded ? PLACES.embedded : PLACES.server
  }

  /**
   * Answers a query in another process, so that it blocks nobody here. Resolves to 'mutation' for a valid mutation,
   * which has to be made here. Throws UNAVAILABLE if no reader had a place in time, or the error that ended the query.
   */
  async ask(request: GraphqlRequest, terms: Terms): Promise<ReaderAnswer | 'mutation'> {
    this.#lastId += 1
    const job = new Job(this.#lastId, request, terms)
    if (terms.gone.aborted) throw hungUp()
    if (this.#isTooMuch(job)) throw noPlace()
    terms.gone.addEventListener('abort', () => this.#forget(job), { once: true })
    this.#waiting.add(job.tokenId, job)
    this.#dispatch()
    const late = setTimeout(() => this.#giveUp(job, noPlace()), terms.giveUpAt - performance.now())
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
    for (const { process } of this.#readers) process.kill()
  }

  #startReader(): void {
    this.#isReplaced(otherRelease())
    if (this.#fault !== undefined) return
    const { dialect } = this.#database
    const given = { databaseUrl: this.#databaseUrl, engine: dialect.name, logLevel: this.#log.level }
    const reader: Reader = {
      process: new ReaderProcess(
        { ...given, places: this.#places },
        {
          ready: () => this.#dispatch(),
          isOther: fault => this.#isReplaced(fault),
          message: message => this.#told(reader, message),
          failed: error => this.#log.error({ err: error }, 'a reader failed'),
          ended: how => this.#ended(reader, how),
        },
      ),
      running: new Map(),
      connectionIds: new Set(),
    }
    this.#readers.add(reader)
  }

  #endIdle(): void {
    for (const reader of this.#readers) {
      if (!reader.process.isReady || reader.running.size > 0) continue
      this.#readers.delete(reader)
      reader.process.kill()
    }
    if (this.#readers.size > 0) this.#rest.refresh()
  }

  #isReplaced(fault: string | undefined): void {
    if (fault === undefined || this.#fault !== undefined) return
    this.#fault = fault
    this.#log.error({ reason: fault }, 'this process is not ready')
    this.#heard.onReplaced()
    this.#dispatch()
  }

  #told(reader: Reader, message: Exclude<FromReader, { kind: 'ready' }>): void {
    if (message.kind === 'connection') {
      if (message.before !== undefined) reader.connectionIds.delete(message.before)
      reader.connectionIds.add(message.connectionId)
    } else if (message.kind === 'end') {
      this.#endConnections(reader, [message.connectionId])
    } else if (message.kind === 'heavy') {
      const job = reader.running.get(message.id)
      if (job) this.#wantsToMatch(reader, job)
    } else if (message.kind === 'mutation') {
      const job = reader.running.get(message.id)!
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
    const { id, body, status, headers, codes, operation } = message
    const job = reader.running.get(id)!
    const whole = typeof body === 'number' ? await reader.process.receive(body) : [body]
    // The reader may have ended meanwhile, and another have the job.
    if (reader.running.get(id) !== job) return
    this.#left(reader, job)
    if (job.mode.now === 'put back' && codes.has(HUNG_UP)) this.#waitAgain(job)
    else job.settle({ status, headers, codes, operation, body: whole })
    this.#dispatch()
  }

  #left(reader: Reader, job: Job): void {
    reader.running.delete(job.id)
    job.leave()
    if (job.isLong) this.#isHeavyFor(job, this.#heavyUntil)
  }

  #waitAgain(job: Job): void {
    const { gone, giveUpAt } = job.terms
    if (gone.aborted) job.settle(hungUp())
    else if (performance.now() > giveUpAt) job.settle(noPlace())
    else {
      job.mode.enter('waiting')
      this.#waiting.add(job.tokenId, job)
    }
  }

  #ended(reader: Reader, { isKilled, wasReady, said }: Ending): void {
    this.#readers.delete(reader)
    if (this.#isStopping) return
    this.#endConnections(reader, reader.connectionIds)
    const jobs = [...reader.running.values()]
    if (jobs.length > 0) this.#heard.onEnded()
    if (!wasReady) {
      this.#startAfter = performance.now() + RESTART_MS
      this.#isReplaced(otherRelease())
    }
    const requestIds = jobs.map(({ request }) => request.requestId)
    said.then(said => {
      if (requestIds.length > 0) this.#log.warn({ requestIds, said }, 'a reader was ended in the middle of its work')
      else if (said !== undefined) this.#log.warn({ said }, 'a reader has ended')
    })
    const isKnownWhy = jobs.some(({ mode }) => mode.now === 'over' || mode.now === 'put back')
    for (const job of jobs) {
      this.#left(reader, job)
      // If it is not known which request ended the reader, each is tried once more, alone.
      if (!isKnownWhy) job.ended += 1
      if (job.mode.now === 'over') job.settle(job.terms.gone.aborted ? hungUp() : overspent('timeMs'))
      else if (job.ended > 1 || (job.ended === 1 && jobs.length === 1 && !isKilled)) job.settle(outOfMemory())
      else this.#waitAgain(job)
    }
    this.#dispatch()
  }

  #shareOf(job: Job): Share {
    const now = performance.now()
    const isSuspect = job.ended > 0
    return {
      tokenId: job.tokenId,
      isMatching: job.isMatching,
      isHeavy: job.isLong || isSuspect || now < (this.#heavyUntil.get(job.tokenId) ?? 0),
      isSuspect,
      isCrowded: now < (this.#crowdedUntil.get(job.tokenId) ?? 0),
    }
  }

  get #ready(): Reader[] {
    return [...this.#readers].filter(({ process }) => process.isReady)
  }

  #running(readers: readonly Reader[]): Share[][] {
    return readers.map(({ running }) => [...running.values()].map(job => this.#shareOf(job)))
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
    if (ready.length < this.#readers.size || this.#readers.size >= MOST_READERS) return
    const running = this.#running(ready)
    const isLimited = (job: Job) => !mayHaveMore(this.#shareOf(job), running, this.#places)
    const first = [...this.#waiting].filter(job => !isLimited(job)).sort((a, b) => a.askedAt - b.askedAt)[0]
    const isNoneLight = hasNoneLight(running)
    if (!first && (ready.length === 0 || !isNoneLight)) return
    const startAt = Math.max(this.#startAfter, first && !isNoneLight ? first.askedAt + WORTH_A_READER_MS : 0)
    if (performance.now() >= startAt) this.#startReader()
    else setTimeout(() => this.#dispatch(), startAt - performance.now() + 1).unref()
  }

  /** Begins one waiting query, in the reader with the most places. Returns whether it has. */
  #beginOne(): boolean {
    const ready = this.#ready.sort((a, b) => a.running.size - b.running.size)
    const running = this.#running(ready)
    for (const [index, reader] of ready.entries()) {
      const job = this.#waiting.take(job => mayBegin(this.#shareOf(job), index, running, this.#places))
      if (!job) continue
      this.#run(reader, job)
      return true
    }
    return false
  }

  #run(reader: Reader, job: Job): void {
    job.mode.enter('running')
    reader.running.set(job.id, job)
    this.#rest.refresh()
    this.#endIfHeld(reader, job, BUDGET.timeMs + HELD_MS)
    this.#watchLong(reader, job)
    const { id, request } = job
    const { now, giveUpAt } = job.terms
    reader.process.send({ kind: 'ask', id, request, now, patienceMs: giveUpAt - performance.now() })
  }

  /** A query is not long because another one keeps its reader busy. */
  #watchLong(reader: Reader, job: Job): void {
    if (job.isLong) return
    job.longTimer = setTimeout(() => {
      if (this.#isHeldUp(reader, job)) this.#watchLong(reader, job)
      else this.#becomesLong(reader, job)
    }, LONG_MS)
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

  /** A query that has become one long query too many is put back: it runs again when another one has ended. */
  #becomesLong(reader: Reader, job: Job): void {
    if (job.isLong || job.mode.now !== 'running') return
    const ready = this.#ready
    const own = ready.flatMap(({ running }) => [...running.values()]).filter(({ tokenId }) => tokenId === job.tokenId)
    const isTokensOwn = own.filter(({ isLong }) => isLong).length >= MOST_LONG_A_TOKEN
    job.isLong = true
    this.#isHeavyFor(job, this.#heavyUntil)
    if (isTokensOwn) this.#isHeavyFor(job, this.#crowdedUntil)
    if (isTokensOwn || !this.#mayStay(reader)) this.#putBack(reader, job)
    else this.#dispatch()
  }

  /** A query that is put back for its patterns has matched nothing yet, so that it was in nobody's way. */
  #wantsToMatch(reader: Reader, job: Job): void {
    job.isMatching = true
    if (job.mode.now !== 'running') return
    job.waitsToMatch = true
    if (!job.isLong) this.#becomesLong(reader, job)
    else if (!this.#mayStay(reader)) this.#putBack(reader, job)
    job.waitsToMatch = false
    if (job.mode.now === 'running') reader.process.send({ kind: 'match', id: job.id })
  }

  #mayStay(reader: Reader): boolean {
    const ready = this.#ready
    return mayStay(ready.indexOf(reader), this.#running(ready), this.#places)
  }

  #putBack(reader: Reader, job: Job): void {
    job.mode.enter('put back')
    reader.process.send({ kind: 'gone', id: job.id })
    const isInTheWay = !job.waitsToMatch && !this.#isHeldUp(reader, job)
    this.#endIfHeld(reader, job, isInTheWay ? PUT_BACK_MS : HELD_MS)
  }

  #isHeavyFor({ tokenId }: Job, until: Map<string, number>): void {
    const now = performance.now()
    for (const [id, then] of until) if (then < now) until.delete(id)
    until.set(tokenId, now + HEAVY_MS)
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
  new TidingsError('UNAVAILABLE', `The server is being upgraded. Nothing was done. Try again in ${RETRY_AFTER_S} s.`, {
    retryAfterSeconds: RETRY_AFTER_S,
  })

const outOfMemory = (): TidingsError =>
  new TidingsError(
    'RESULT_TOO_LARGE',
    `The request takes more than ${HEAP_MB} MB of memory. Give its lists smaller limits, or ask for fewer fields.`,
    { limit: HEAP_MB, budget: 'memoryMb' },
  )
