import type { TidingsEvent } from './event.ts'
import type { Fault } from './fault.ts'
import type { CheckedOptions } from './options.ts'
import type { DeliveryToken } from './verify.ts'

/** What a handler is given besides the event. */
export interface HandlerContext<Native = unknown> {
  /** The framework's own: Koa's context, Express's or Fastify's request, the Fetch API's Request, Lambda's event. */
  request: Native
  /**
   * Aborted when the request has been answered 503 for want of time;
   * what the handler does then still counts when it ends well.
   */
  signal: AbortSignal
  /** How often this process has been given this delivery, this time included. */
  attempt: number
  /** The token that the delivery came with, verified. */
  token: DeliveryToken
  /** For what need not be done before the answer; what it rejects with goes to `onError`. */
  waitUntil(promise: Promise<unknown>): void
}

/**
 * Handles an event. When it returns (or its promise resolves), the event counts as handled, is answered 200 and does
 * not come again; when it throws, it does.
 */
export type Handler<Native = unknown, Event = TidingsEvent> = (event: Event, context: HandlerContext<Native>) => unknown

/** How far a request has come, for those who wait for it. */
export interface Progress {
  waitingFor: string
  /** Aborted once the request has been answered for want of time. */
  signal: AbortSignal
  told: Reports
}

/** What the receiver's owner is told. What its functions throw, or reject with, goes no further than the log. */
export interface Reports {
  eventId: string | undefined
  failed(error: unknown): void
  refused(fault: Fault): void
  handled(handled: Parameters<CheckedOptions['onHandled']>[0]): void
}
