import type { GraphqlAnswer, GraphqlRequest } from '../graphql/request.ts'
import { Mode } from '../mode.ts'
import type { Queries } from './child.ts'
import { SharedTime } from './shared-time.ts'

/** The characters that a waiting request weighs besides its body. */
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
 * `waiting`: for a place. `running`: in a reader. `put back`: its reader was asked to end it, and it will wait again.
 * `over`: its reader was asked to end it for good.
 */
type JobMode = 'waiting' | 'running' | 'put back' | 'over' | 'settled'

/** One request that a reader answers. */
export class Job {
  id: number
  readonly tenantId: string
  readonly request: GraphqlRequest
  readonly terms: Terms
  /** By the clock of the readers. */
  readonly askedAt: number
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
  isHeavy = false
  /** Whether it has spent more than a small one does. */
  isLarge = false
  hasMadeWay = false
  isMatching = false
  hasMoved = false
  /** Called when it has left its reader. */
  endTurn: (tookMs: number) => void = () => {}
  /** On its reader's clock. */
  begunAt = 0
  /** Whether it waits for leave to match, and does nothing. */
  waitsToMatch = false
  /** Ends its reader if that lets nothing else in. */
  timer: NodeJS.Timeout | undefined
  lookTimer: NodeJS.Timeout | undefined

  constructor(id: number, tenantId: string, request: GraphqlRequest, terms: Terms, askedAt: number) {
    this.id = id
    this.tenantId = tenantId
    this.request = request
    this.terms = terms
    this.askedAt = askedAt
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
    clearTimeout(this.lookTimer)
  }
}

/** A process with the queries that it runs. */
export class Reader {
  readonly running = new Map<number, Job>()
  readonly connectionIds = new Set<number>()
  readonly process: Queries
  /** How many queries it has begun. */
  begun = 0
  readonly #time: SharedTime

  constructor(start: (reader: Reader) => Queries, now: () => number) {
    this.process = start(this)
    // Where others have the processor, a small query is not long for that.
    this.#time = new SharedTime(() => now() - this.process.starvedMs)
  }

  begin(job: Job): void {
    this.begun += 1
    job.begunAt = this.#time.begin()
    this.running.set(job.id, job)
  }

  leave(job: Job): void {
    if (this.running.delete(job.id)) this.#time.end(job.begunAt)
  }

  /** What a query has cost it. */
  costOf(job: Job): number {
    return this.#time.since(job.begunAt)
  }
}
