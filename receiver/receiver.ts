import { type HandledType, handledTypes, type KnownEvent, type TidingsEvent, type UnknownEvent } from './event.ts'
import { type Answer, Fault, type FaultCode } from './fault.ts'
import type { Handler, Progress, Reports } from './handler.ts'
import { handleOnce } from './handling.ts'
import { type CheckedOptions, checkOptions, type ReceiverOptions } from './options.ts'
import { type DeliveryRequest, verifier } from './verify.ts'

/** A receiver that has a handler for every event; every adapter takes one. */
export interface CompleteReceiver<Native = unknown> {
  receive(request: DeliveryRequest & { request?: Native }): Promise<Answer>
}

/** A receiver that still lacks handlers for the types `Rest` and for unknown events. */
export interface Receiver<Native = unknown, Rest extends HandledType = HandledType> {
  /** Sets the handler of one event type. */
  on<Type extends Rest>(type: Type, handler: Handler<Native, KnownEvent<Type>>): Receiver<Native, Exclude<Rest, Type>>
  /** Sets the handler of all other events, including types newer than this version. */
  otherwise(handler: Handler<Native, KnownEvent<Rest> | UnknownEvent>): CompleteReceiver<Native>
  /**
   * Verifies a delivery, passes its event to `handler` if it is new, and resolves to the answer to send. A delivery
   * that is being handled, or was handled, does not reach `handler` again. Never rejects.
   */
  receive(request: DeliveryRequest & { request?: Native }, handler: Handler<Native>): Promise<Answer>
}

/**
 * Creates a receiver without a framework; the adapters build on it.
 *
 * @throws TypeError when an option is wrong; the message says what would be right
 * @example
 *   const receiver = createReceiver({ issuer, audience })
 *     .on('token_expired', async event => warn(event.payload.accessTokenId))
 *     .otherwise(async event => queue.push(event))
 */
export const createReceiver = <Native = unknown>(options: ReceiverOptions): Receiver<Native> => {
  const receive = receiving(checkOptions(options))
  return routes(receive as Receive<Native>, {}) as unknown as Receiver<Native>
}

type Receive<Native> = (request: DeliveryRequest, handler: Handler<Native>) => Promise<Answer>
type Handlers<Native> = { [Type in HandledType]?: Handler<Native, never> }

const routes = <Native>(receive: Receive<Native>, handlers: Handlers<Native>) => ({
  on: (type: HandledType, handler: Handler<Native, never>) => {
    if (!handledTypes.includes(type))
      throw new TypeError(`${String(type)} is no type; these are: ${handledTypes.join(', ')}.`)
    if (Object.hasOwn(handlers, type)) throw new TypeError(`There is a handler for ${type} already.`)
    requireHandler(handler)
    return routes(receive, { ...handlers, [type]: handler })
  },
  otherwise: (fallback: Handler<Native, never>): CompleteReceiver<Native> => {
    requireHandler(fallback)
    const handlerOf = (event: TidingsEvent) =>
      (event.eventType === 'unknown' ? fallback : (handlers[event.eventType] ?? fallback)) as Handler<Native>
    return { receive: request => receive(request, (event, context) => handlerOf(event)(event, context)) }
  },
  receive: (request: DeliveryRequest, handler: Handler<Native>) => {
    requireHandler(handler)
    return receive(request, handler)
  },
})

/** The arguments of an adapter: options and one handler for all events, or a receiver. */
export type AdapterArguments<Native> =
  | [options: ReceiverOptions, handler: Handler<Native>]
  | [receiver: CompleteReceiver<Native>]

/** @throws TypeError when they are neither */
export const receiverOf = <Native>([first, handler]: AdapterArguments<Native>): CompleteReceiver<Native> => {
  if (handler === undefined && typeof (first as CompleteReceiver)?.receive === 'function') {
    if (!('on' in first)) return first as CompleteReceiver<Native>
    throw new TypeError('The receiver has no handler for the rest yet: end it with .otherwise(handler).')
  }
  requireHandler(handler)
  return createReceiver<Native>(first as ReceiverOptions).otherwise(handler as Handler<Native>)
}

const requireHandler = (handler: unknown): void => {
  if (typeof handler !== 'function') throw new TypeError(`The handler is a ${typeof handler}; it should be a function.`)
}

const receiving = (options: CheckedOptions) => {
  const report = reports(options)
  const verify = verifier(options)
  const handle = handleOnce(options)
  const { handlerTimeoutMs } = options

  return async (given: DeliveryRequest, handler: Handler<never>): Promise<Answer> => {
    const reports = report()
    const request = { ...given, waitUntil: withoutThrowing(given.waitUntil, reports) }
    const ending = new AbortController()
    const progress: Progress = { waitingFor: THE_BODY, signal: ending.signal, reports }
    const work = async () => {
      const verified = await verify({ ...request, body: track(progress, request.body) })
      reports.eventId = verified.event.eventId
      await handle(verified, handler, request, progress)
    }
    let timer: ReturnType<typeof setTimeout> | undefined
    const tooLate = new Promise<never>((_resolve, reject) => {
      timer = setTimeout(() => {
        const { eventId } = reports
        const code = progress.waitingFor === THE_BODY ? 'body_incomplete' : 'timeout'
        const message = `${progress.waitingFor} took longer than ${handlerTimeoutMs} ms.`
        const fault = new Fault(code, message, eventId === undefined ? {} : { details: { eventId } })
        reject(fault)
        ending.abort(fault)
      }, handlerTimeoutMs)
    })
    const working = work()
    try {
      await Promise.race([working, tooLate])
      noteLate(request, reports)
      return { status: 200, headers: {}, body: '' }
    } catch (error) {
      const fault =
        error instanceof Fault ? error : new Fault('handler_failed', 'The receiver failed.', { cause: error })
      if (ending.signal.aborted) outlive(working, request, reports)
      reports.refused(fault)
      noteLate(request, reports)
      return fault.answer
    } finally {
      clearTimeout(timer)
    }
  }
}

const THE_BODY = 'The body'

const track =
  (progress: Progress, body: DeliveryRequest['body']): DeliveryRequest['body'] =>
  async () => {
    const read = typeof body === 'function' ? await body() : body
    progress.waitingFor = 'Looking up keys and options'
    return read
  }

/** Makes the platform wait for work that continues after the answer. */
const outlive = (working: Promise<void>, { waitUntil }: DeliveryRequest, reports: Reports): void => {
  const ended = working.catch(error => reports.failed(error instanceof Fault ? (error.cause ?? error) : error))
  waitUntil?.(ended)
}

/** Reports a platform that will not wait; the answer stays the same. */
const withoutThrowing =
  (waitUntil: DeliveryRequest['waitUntil'], reports: Reports): ((promise: Promise<unknown>) => void) =>
  promise => {
    try {
      waitUntil?.(promise)
    } catch (error) {
      reports.failed(error)
    }
  }

const noteLate = ({ isAnswered }: DeliveryRequest, reports: Reports): void => {
  if (reports.eventId === undefined || isAnswered?.() !== true) return
  reports.failed(new Error('The answer came too late: the request had been answered, or its sender had hung up.'))
}

/** The least time between two reports of one fault of requests without a verified signature: strangers send those. */
const LEAST_BETWEEN_MS = 10_000

const reports = ({ onError, onRefused, onHandled }: CheckedOptions) => {
  const toldAtMs = new Map<FaultCode, number>()
  const isToldAlready = (code: FaultCode): boolean => {
    const sinceMs = performance.now() - (toldAtMs.get(code) ?? Number.NEGATIVE_INFINITY)
    if (sinceMs < LEAST_BETWEEN_MS) return true
    toldAtMs.set(code, performance.now())
    return false
  }
  return (): Reports => {
    const reports: Reports = {
      eventId: undefined,
      failed: error =>
        void guarded(() => onError(error, reports.eventId === undefined ? {} : { eventId: reports.eventId }), log),
      refused({ code, status, message, details, cause }) {
        const eventId = details.eventId ?? reports.eventId
        const refusal = { ...details, code, status, message, ...(eventId !== undefined && { eventId }) }
        void guarded(() => onRefused(refusal), reports.failed)
        const isOwn = status >= 500 && code !== 'in_progress' && code !== 'body_incomplete'
        if (!isOwn || (eventId === undefined && isToldAlready(code))) return
        reports.failed(cause ?? new Fault(code, message, { details }))
      },
      handled: handled => void guarded(() => onHandled(handled), reports.failed),
    }
    return reports
  }
}

const guarded = async (call: () => unknown, failed: (error: unknown) => void): Promise<void> => {
  try {
    await call()
  } catch (error) {
    failed(error)
  }
}

const log = (error: unknown): void => {
  try {
    console.error('tidings/receiver: onError failed:', error)
  } catch {
    // An error that cannot be printed must not end the process.
  }
}
