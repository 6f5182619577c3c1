import pRetry from 'p-retry'
import { codeOf } from '../shared/errors.ts'

/** A delivery that was taken: the request that an endpoint would have received. */
export interface TakenDelivery {
  deliveryId: string
  attempt: number
  /** By their names in lower case. */
  headers: Record<string, string>
  body: string
  /** ISO 8601. */
  leaseUntil: string
}

/** The answer to it, which means what an endpoint's means. */
export interface PullAnswer {
  status: number
  headers: Record<string, string>
  body: string
}

/** Sends a GraphQL request and resolves to its data; rejects with an error whose `code` is that of the API. */
export type AskServer = (document: string, variables: object, signal: AbortSignal) => Promise<unknown>

export interface PullingOptions {
  ask: AskServer
  webhookId: string
  /** The most deliveries that are answered at once. */
  concurrency: number
  /** Resolves to the answer; to undefined for none: then the attempt ends as a timeout. Must not reject. */
  answer: (taken: TakenDelivery) => Promise<PullAnswer | undefined>
  /** Called with an error after which pulling goes on. */
  onError: (error: unknown) => void
  /** Called when the server has answered, for the first time and after each error. */
  onReached?: () => void
}

export interface Pulling {
  /** Rejects with an error that no retry mends: the webhook or the token has ended. Resolves when it was stopped. */
  ended: Promise<void>
  /** Takes nothing more, and resolves when everything taken is answered. */
  stop(): Promise<void>
}

const TAKE = `mutation ($webhookId: UUID!, $limit: Int, $waitSeconds: Int) {
  taken: takeDeliveries(webhookId: $webhookId, limit: $limit, waitSeconds: $waitSeconds) {
    deliveryId attempt headers body leaseUntil
  }
}`
const ANSWER = `mutation ($answers: [DeliveryAnswer!]!) {
  answered: answerDeliveries(answers: $answers) { deliveryId }
}`
/** Answers, and then waits for more: one request in place of two. */
const ANSWER_AND_TAKE = `mutation (
  $answers: [DeliveryAnswer!]!, $webhookId: UUID!, $limit: Int, $waitSeconds: Int
) {
  answered: answerDeliveries(answers: $answers) { deliveryId }
  taken: takeDeliveries(webhookId: $webhookId, limit: $limit, waitSeconds: $waitSeconds) {
    deliveryId attempt headers body leaseUntil
  }
}`
const EXTEND = `mutation ($deliveries: [TakenAttempt!]!, $seconds: Int) {
  extended: extendDeliveries(deliveries: $deliveries, seconds: $seconds) { deliveryId leaseUntil }
}`

const WAIT_SECONDS = 25
/** A request that carries answers waits for less: only its end says that they are recorded. */
const CARRYING_WAIT_SECONDS = 5
const CARRYING_TIMEOUT_MS = 15_000
const MOST_AT_ONCE = 100
/** While deliveries come, so many more requests wait: one is there whenever something is committed. */
const MOST_BESIDE = 7
/** A request for more waits for so long, so that it carries the answers of handlers that are quick. */
const CARRY_MS = 5
/** Other answers that end within this time are sent together. */
const GATHER_MS = 25
/** Leases are extended so often, and by so much. */
const EXTEND_EVERY_MS = 10_000
const EXTEND_SECONDS = 30
/** Pauses differ from client to client, so that they do not all come back at once. */
const PATIENCE = { retries: Number.POSITIVE_INFINITY, minTimeout: 500, maxTimeout: 15_000, randomize: true }
/** Of an answer, in characters. */
const MOST_OF_A_BODY = 1024
const MOST_OF_A_HEADER = 512
const MOST_HEADERS = 16
/** Headers that decide what an answer means. */
const MEANT = new Set(['retry-after', 'www-authenticate'])
/** An answer is sent again for so long: afterwards nobody waits for it. */
const ANSWERED_WITHIN_MS = 15 * 60_000

/** An answer that comes later is to a request that a sleeping machine has held: its signature may have been too old. */
const LATE_MS = 60_000

/** Codes that a retry does not mend, unless the answer is late. */
const FINAL = new Set(['UNAUTHENTICATED', 'FORBIDDEN', 'NOT_FOUND', 'BAD_USER_INPUT'])

/** Takes deliveries until it is stopped, and gives each to `answer`. */
export const startPulling = (options: PullingOptions): Pulling => {
  const puller = new Puller(options)
  const ended = puller.run()
  return {
    ended,
    async stop() {
      puller.end()
      await ended.catch(() => {})
    },
  }
}

class Puller {
  readonly #options: PullingOptions
  readonly #stopping = new AbortController()
  readonly #never = new AbortController().signal
  /** Deliveries that were taken and whose answer is not recorded, by delivery and attempt. */
  readonly #leased = new Map<string, TakenDelivery>()
  /** Answers that no request carries yet. */
  readonly #answers: Made[] = []
  /** How many deliveries the requests that are under way ask for, and how many answers they carry. */
  #asked = 0
  #carried = 0
  readonly #besides = new Set<Promise<void>>()
  readonly #blocked: (() => void)[] = []
  #isSending = false

  constructor(options: PullingOptions) {
    this.#options = options
  }

  /** Resolves when it was ended and everything taken is answered; rejects with an error that no retry mends. */
  async run(): Promise<void> {
    const extending = setInterval(() => this.#extend(), EXTEND_EVERY_MS)
    try {
      await this.#take(false)
    } finally {
      this.end()
      await Promise.all(this.#besides)
      while (this.#leased.size > 0) await this.#changed()
      clearInterval(extending)
    }
  }

  /** Takes nothing more. */
  end(): void {
    this.#stopping.abort()
    this.#onChange()
  }

  /** Repeats a request until it is answered, or refused for good. */
  async #patiently(
    document: string,
    variables: object,
    { signal, maxRetryTime = Number.POSITIVE_INFINITY }: { signal?: AbortSignal; maxRetryTime?: number },
  ): Promise<Answered> {
    const { ask, onError } = this.#options
    let answered: Answered | undefined
    let askedAt = 0
    const asking = async () => {
      askedAt = Date.now()
      answered = (await ask(document, variables, signal ?? this.#never).catch(asRetried)) as Answered
    }
    const mayMend = (error: unknown): boolean => !isFinal(error) || Date.now() - askedAt > LATE_MS
    const options = {
      ...{ ...PATIENCE, maxRetryTime },
      ...(signal && { signal }),
      shouldRetry: ({ error }: { error: unknown }) => mayMend(error),
      onFailedAttempt({ error }: { error: unknown }) {
        if (mayMend(error)) onError(error)
      },
    }
    // An answer that came in the moment of a stop counts.
    await pRetry(asking, options).catch(error => {
      if (answered === undefined) throw error
    })
    return answered!
  }

  get #room(): number {
    return this.#options.concurrency - (this.#leased.size - this.#carried) - this.#asked
  }

  #changed(): Promise<void> {
    return new Promise(resolve => this.#blocked.push(resolve))
  }

  #onChange(): void {
    for (const resolve of this.#blocked.splice(0)) resolve()
  }

  /** Takes deliveries until it is stopped; beside another, only while there are some. */
  async #take(isBeside: boolean): Promise<void> {
    while (!this.#stopping.signal.aborted) {
      // Answers that a request carries make room for others.
      if (this.#room + this.#answers.length < 1) {
        await this.#changed()
        await sleep(CARRY_MS)
        continue
      }
      const taken = await this.#more()
      const made = taken.map(one => this.#handle(one))
      if (isBeside && taken.length === 0) return
      if (taken.length > 0 && this.#besides.size < MOST_BESIDE) this.#takeBeside()
      if (taken.length > 0) await Promise.race([Promise.all(made), sleep(CARRY_MS)])
    }
  }

  #takeBeside(): void {
    // What is wrong, the first one says.
    const beside: Promise<void> = this.#take(true)
      .catch(() => {})
      .finally(() => this.#besides.delete(beside))
    this.#besides.add(beside)
  }

  async #more(): Promise<TakenDelivery[]> {
    const some = this.#answers.splice(0, MOST_AT_ONCE)
    this.#carried += some.length
    const limit = Math.min(MOST_AT_ONCE, Math.ceil(this.#options.concurrency / (1 + MOST_BESIDE)), this.#room)
    this.#asked += limit
    try {
      const answered = await (some.length > 0 ? this.#answerAndTake(some, limit) : this.#takeAlone(limit))
      if (answered) this.#options.onReached?.()
      return answered?.taken ?? []
    } finally {
      this.#asked -= limit
      this.#carried -= some.length
      this.#onChange()
    }
  }

  async #takeAlone(limit: number): Promise<Answered | undefined> {
    const variables = { webhookId: this.#options.webhookId, limit, waitSeconds: WAIT_SECONDS }
    try {
      return await this.#patiently(TAKE, variables, this.#stopping)
    } catch (error) {
      if (!this.#stopping.signal.aborted) throw error
      return undefined
    }
  }

  /** If that fails, the answers are sent by themselves. */
  async #answerAndTake(some: Made[], limit: number): Promise<Answered | undefined> {
    const { ask, webhookId } = this.#options
    const given = some.map(({ answer }) => answer)
    const variables = { answers: given, webhookId, limit, waitSeconds: CARRYING_WAIT_SECONDS }
    const signal = AbortSignal.any([this.#stopping.signal, AbortSignal.timeout(CARRYING_TIMEOUT_MS)])
    try {
      const answered = (await ask(ANSWER_AND_TAKE, variables, signal)) as Answered
      this.#recorded(some)
      return answered
    } catch {
      void this.#sendTogether(given).then(() => this.#recorded(some))
      return undefined
    }
  }

  /** Resolves when the answer is there. It is recorded later. */
  async #handle(taken: TakenDelivery): Promise<void> {
    const key = `${taken.deliveryId} ${taken.attempt}`
    this.#leased.set(key, taken)
    const made = await this.#options.answer(taken)
    if (!made) return this.#recorded([{ key }])
    this.#answers.push({ key, answer: { ...idOf(taken), ...withinLimits(made) } })
    this.#onChange()
    if (!this.#isSending) void this.#sendAnswers()
  }

  #recorded(some: { key: string }[]): void {
    for (const { key } of some) this.#leased.delete(key)
    this.#onChange()
  }

  /** Sends the answers that no request for more carries. */
  async #sendAnswers(): Promise<void> {
    this.#isSending = true
    while (this.#answers.length > 0) {
      await sleep(GATHER_MS)
      const some = this.#answers.splice(0, MOST_AT_ONCE)
      if (some.length === 0) break
      await this.#sendTogether(some.map(one => one.answer))
      this.#recorded(some)
    }
    this.#isSending = false
  }

  /** The same answers again are no second ones. */
  async #sendTogether(some: object[]): Promise<void> {
    try {
      await this.#patiently(ANSWER, { answers: some }, { maxRetryTime: ANSWERED_WITHIN_MS })
    } catch (error) {
      // One that is refused takes no other with it.
      const isOneBad = codeOf(error) === 'BAD_USER_INPUT' && some.length > 1
      if (isOneBad) await Promise.all(some.map(one => this.#sendTogether([one])))
      else this.#options.onError(error)
    }
  }

  #extend(): void {
    const { ask, onError } = this.#options
    const old = Date.now() + EXTEND_SECONDS * 1000 - EXTEND_EVERY_MS / 2
    const deliveries = [...this.#leased.values()].filter(({ leaseUntil }) => Date.parse(leaseUntil) < old).map(idOf)
    for (let from = 0; from < deliveries.length; from += MOST_AT_ONCE) {
      const some = deliveries.slice(from, from + MOST_AT_ONCE)
      ask(EXTEND, { deliveries: some, seconds: EXTEND_SECONDS }, this.#never).catch(onError)
    }
  }
}

type Answered = { taken: TakenDelivery[] }

/** The answer to a delivery that is leased. */
type Made = { key: string; answer: object }

const sleep = (ms: number): Promise<void> => new Promise(resolve => setTimeout(resolve, ms))

const idOf = ({ deliveryId, attempt }: TakenDelivery) => ({ deliveryId, attempt })

const isFinal = (error: unknown): boolean => FINAL.has(String(codeOf(error)))

/** p-retry takes a TypeError for a fault of the program, such as that of an answer in another form. */
const asRetried = (error: unknown): never => {
  throw error instanceof TypeError ? new Error(error.message, { cause: error }) : error
}

/** What the server keeps of an answer: a longer one might be more than a request may have. */
const withinLimits = ({ status, headers, body }: PullAnswer): PullAnswer => {
  const short = Object.entries(headers).filter(([, value]) => value.length <= MOST_OF_A_HEADER)
  const meant = short.filter(([name]) => MEANT.has(name.toLowerCase()))
  const kept = [...meant, ...short].slice(0, MOST_HEADERS)
  return { status, headers: Object.fromEntries(kept), body: body.slice(0, MOST_OF_A_BODY) }
}
