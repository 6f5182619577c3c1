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
/** Answers that end within this time are sent together. */
const GATHER_MS = 10
/** Leases are extended so often, and by so much. */
const EXTEND_EVERY_MS = 10_000
const EXTEND_SECONDS = 30
const FIRST_PAUSE_MS = 500
const LONGEST_PAUSE_MS = 15_000
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
  const answers: { taken: TakenDelivery; answer: PullAnswer; until: number; recorded: () => void }[] = []
  let onRoom = (): void => {}
  let isSending = false

  const pause = (ms: number): Promise<void> =>
    new Promise(resolve => {
      const timer = setTimeout(end, ms)
      function end() {
        clearTimeout(timer)
        stopping.signal.removeEventListener('abort', end)
        resolve()
      }
      stopping.signal.addEventListener('abort', end)
      if (stopping.signal.aborted) end()
    })

  const take = async (): Promise<void> => {
    for (let failures = 0; !stopping.signal.aborted; ) {
      while (held.size >= concurrency) await new Promise<void>(resolve => (onRoom = resolve))
      try {
        const limit = Math.min(MOST_AT_ONCE, concurrency - held.size)
        const variables = { webhookId, limit, waitSeconds: WAIT_SECONDS }
        const { taken } = (await ask(TAKE, variables, stopping.signal)) as { taken: TakenDelivery[] }
        failures = 0
        onReached()
        for (const one of taken) void handle(one)
      } catch (error) {
        if (stopping.signal.aborted) return
        if (FINAL.has(codeOf(error))) throw error
        onError(error)
        await pause(pauseOf(failures++))
      }
    }
  }

  const handle = async (taken: TakenDelivery): Promise<void> => {
    const key = `${taken.deliveryId} ${taken.attempt}`
    held.set(key, taken)
    const made = await answer(taken)
    if (made) {
      const until = Date.now() + ANSWERED_WITHIN_MS
      await new Promise<void>(recorded => {
        answers.push({ taken, answer: made, until, recorded })
        if (!isSending) void sendAnswers()
      })
    }
    held.delete(key)
    onRoom()
  }

  const sendAnswers = async (): Promise<void> => {
    isSending = true
    for (let failures = 0; answers.length > 0; ) {
      await new Promise(resolve => setTimeout(resolve, GATHER_MS))
      const some = answers.splice(0, MOST_AT_ONCE)
      try {
        await ask(ANSWER, { answers: some.map(({ taken, answer }) => ({ ...idOf(taken), ...answer })) }, never)
        failures = 0
        for (const { recorded } of some) recorded()
      } catch (error) {
        onError(error)
        // The same answer again is no second one.
        const isFinal = FINAL.has(codeOf(error))
        const again = some.filter(({ until }) => !isFinal && until > Date.now())
        for (const one of some) if (!again.includes(one)) one.recorded()
        answers.unshift(...again)
        await new Promise(resolve => setTimeout(resolve, pauseOf(failures++)))
      }
    }
    isSending = false
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

const codeOf = (error: unknown): string => String((error as { code?: unknown })?.code ?? '')

/** Doubles with each failure, and differs from client to client, so that they do not all come back at once. */
const pauseOf = (failures: number): number =>
  Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** failures) * (0.5 + Math.random() / 2)
