import type { TidingsEvent } from './event.ts'
import type { Fault } from './fault.ts'
import type { CheckedOptions } from './options.ts'
import type { DeliveryToken } from './verify.ts'

/** The second argument of a handler. */
export interface HandlerContext<Native = unknown> {
  /** The framework's own: Koa's context, Express's or Fastify's request, the Fetch API's Request, Lambda's event. */
  request: Native
  /**
   * Aborts when the request was answered 503 because time was up. If the handler still ends well, the event counts as
   * handled.
   */
  signal: AbortSignal
  /** How often this process has received this delivery, this time included. */
  attempt: number
  /** The verified token of the delivery. */
  token: DeliveryToken
  /** Takes work that need not be done before the answer. A rejection goes to `onError`. */
  waitUntil(promise: Promise<unknown>): void
}

/**
 * Handles an event. If it returns (or its promise resolves), the event counts as handled and is answered 200. If it
 * throws, the answer is 500 and the event comes again; a RetryLater asks for a pause instead.
 */
export type Handler<Native = unknown, Event = TidingsEvent> = (event: Event, context: HandlerContext<Native>) => unknown

/** The progress of a request. */
export interface Progress {
  waitingFor: string
  /** Aborts once the request was answered because time was up. */
  signal: AbortSignal
  reports: Reports
}

/** Callbacks to the receiver's owner. If one throws or rejects, the error is logged and goes no further. */
export interface Reports {
  eventId: string | undefined
  failed(error: unknown): void
  refused(fault: Fault): void
  handled(handled: Parameters<CheckedOptions['onHandled']>[0]): void
}
