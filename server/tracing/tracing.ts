import { AsyncLocalStorage } from 'node:async_hooks'

// Which trace what is done belongs to (W3C Trace Context). A caller's `traceparent` goes on to the events of its
// request and to the receivers of those, whether spans are made here or not; they are, by OpenTelemetry, where its
// variables ask for it.

/** Strings, numbers and booleans that a span tells of itself. */
export type Attributes = Record<string, string | number | boolean>

export type Span = {
  /** By which what is done within it names it. */
  traceparent: string
  tell(attributes: Attributes): void
  /** @param failure what went wrong, in few words */
  end(failure?: string): void
}

export type SpanKind = 'server' | 'internal' | 'producer' | 'client'

export type Tracer = {
  /**
   * @param given.parent a `traceparent`; without one it begins a trace
   * @param given.startedAt epoch milliseconds; now, unless given
   */
  start(name: string, given: { kind: SpanKind; attributes: Attributes; parent?: string; startedAt?: number }): Span
  /** Sends what has ended and has not been sent. */
  stop(): Promise<void>
}

/** Version 00, and ids that are not all zeros. */
const TRACEPARENT = /^00-(?!0{32})[\da-f]{32}-(?!0{16})[\da-f]{16}-[\da-f]{2}$/

/** What a caller has sent as its `traceparent`, if it is one. */
export const readTraceparent = (header: string): string | undefined => (TRACEPARENT.test(header) ? header : undefined)

const current = new AsyncLocalStorage<string | undefined>()

/** The `traceparent` of what is done here, if it belongs to a trace. */
export const currentTrace = (): string | undefined => current.getStore()

let tracer: Tracer | undefined

/** Has spans made from now on, by the whole process. */
export const traceWith = (given: Tracer | undefined): void => {
  tracer = given
}

/**
 * Begins a span, undefined where none are made.
 *
 * @param given.parent null begins a trace; that of what is done here, unless given
 */
export const startSpan = (
  name: string,
  kind: SpanKind,
  attributes: Attributes,
  { parent = currentTrace() ?? null, startedAt }: { parent?: string | null; startedAt?: number } = {},
): Span | undefined =>
  tracer?.start(name, { kind, attributes, ...(parent && { parent }), ...(startedAt !== undefined && { startedAt }) })

/** Does `work` as part of a trace; of none, where there is none. */
export const inTrace = <T>(traceparent: string | undefined, work: () => T): T =>
  traceparent === currentTrace() ? work() : current.run(traceparent, work)

/** Does `work` in a span of its own. */
export const inSpan = async <T>(
  name: string,
  kind: SpanKind,
  attributes: Attributes,
  work: () => Promise<T>,
): Promise<T> => {
  const span = startSpan(name, kind, attributes)
  if (!span) return work()
  try {
    const result = await current.run(span.traceparent, work)
    span.end()
    return result
  } catch (error) {
    span.end(error instanceof Error ? error.name : 'error')
    throw error
  }
}
