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
  answered: answerDeliveries(answers: $answers) { deliveryId attempt counted reason }
}`
const EXTEND = `mutation ($deliveries: [TakenAttempt!]!, $seconds: Int) {
  extended: extendDeliveries(deliveries: $deliveries, seconds: $seconds) { deliveryId leaseUntil }
}`

const WAIT_SECONDS = 25
const MOST_AT_ONCE = 100
/** Answers that end within this time are sent together, unless half of what may be answered at once is there before. */
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

/** Codes that a retry does not mend. */
const FINAL = new Set(['UNAUTHENTICATED', 'FORBIDDEN', 'NOT_FOUND', 'BAD_USER_INPUT'])

/** Takes deliveries until it is stopped, and gives each to `answer`. */
export const startPulling = (options: PullingOptions): Pulling => {
  const { ask, webhookId, concurrency, answer, onError, onReached = () => {} } = options
  const stopping = new AbortController()
  const never = new AbortController().signal
  const held = new Map<string, TakenDelivery>()
  const answers: { given: object; recorded: () => void }[] = []
  let onRoom = (): void => {}
  let onMany = (): void => {}
  let isSending = false

  /** Repeats a request until it is answered, or refused for good. */
  const patiently = async (
    document: string,
    variables: object,
    { signal, maxRetryTime = Number.POSITIVE_INFINITY }: { signal?: AbortSignal; maxRetryTime?: number },
  ): Promise<unknown> => {
    let answered: unknown
    const asking = async () => {
      answered = await ask(document, variables, signal ?? never).catch(asRetried)
    }
    const options = {
      ...{ ...PATIENCE, maxRetryTime },
      ...(signal && { signal }),
      shouldRetry: ({ error }: { error: unknown }) => !isFinal(error),
      onFailedAttempt({ error }: { error: unknown }) {
        if (!isFinal(error)) onError(error)
      },
    }
    // An answer that came in the moment of a stop counts.
    await pRetry(asking, options).catch(error => {
      if (answered === undefined) throw error
    })
    return answered
  }

  const take = async (): Promise<void> => {
    while (!stopping.signal.aborted) {
      while (held.size >= concurrency) await new Promise<void>(resolve => (onRoom = resolve))
      const limit = Math.min(MOST_AT_ONCE, concurrency - held.size)
      const variables = { webhookId, limit, waitSeconds: WAIT_SECONDS }
      const asked = patiently(TAKE, variables, stopping).catch(error => {
        if (!stopping.signal.aborted) throw error
      })
      const answered = (await asked) as { taken: TakenDelivery[] } | undefined
      if (!answered) return
      onReached()
      for (const one of answered.taken) void handle(one)
    }
  }

  const handle = async (taken: TakenDelivery): Promise<void> => {
    const key = `${taken.deliveryId} ${taken.attempt}`
    held.set(key, taken)
    const made = await answer(taken)
    if (made) {
      await new Promise<void>(recorded => {
        answers.push({ given: { ...idOf(taken), ...withinLimits(made) }, recorded })
        if (areMany()) onMany()
        if (!isSending) void sendAnswers()
      })
    }
    held.delete(key)
    onRoom()
  }

  const areMany = (): boolean => answers.length >= Math.min(concurrency / 2, MOST_AT_ONCE)

  const gathered = (): Promise<void> =>
    new Promise(resolve => {
      const timer = setTimeout(resolve, GATHER_MS)
      onMany = () => {
        clearTimeout(timer)
        resolve()
      }
      if (areMany()) onMany()
    })

  const sendAnswers = async (): Promise<void> => {
    isSending = true
    while (answers.length > 0) {
      await gathered()
      const some = answers.splice(0, MOST_AT_ONCE)
      await sendTogether(some.map(({ given }) => given))
      for (const { recorded } of some) recorded()
    }
    isSending = false
  }

  /** The same answers again are no second ones. */
  const sendTogether = async (some: object[]): Promise<void> => {
    try {
      await patiently(ANSWER, { answers: some }, { maxRetryTime: ANSWERED_WITHIN_MS })
    } catch (error) {
      // One that is refused takes no other with it.
      const isOneBad = codeOf(error) === 'BAD_USER_INPUT' && some.length > 1
      if (isOneBad) await Promise.all(some.map(one => sendTogether([one])))
      else onError(error)
    }
  }

  const extending = setInterval(() => {
    const old = Date.now() + EXTEND_SECONDS * 1000 - EXTEND_EVERY_MS / 2
    const deliveries = [...held.values()].filter(({ leaseUntil }) => Date.parse(leaseUntil) < old).map(idOf)
    for (let from = 0; from < deliveries.length; from += MOST_AT_ONCE) {
      const some = deliveries.slice(from, from + MOST_AT_ONCE)
      ask(EXTEND, { deliveries: some, seconds: EXTEND_SECONDS }, never).catch(onError)
    }
  }, EXTEND_EVERY_MS)

  const ended = take().finally(async () => {
    while (held.size > 0) await new Promise<void>(resolve => (onRoom = resolve))
    clearInterval(extending)
  })
  return {
    ended,
    async stop() {
      stopping.abort()
      await ended.catch(() => {})
    },
  }
}

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
