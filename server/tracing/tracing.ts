import { AsyncLocalStorage } from 'node:async_hooks'

// Trace propagation (W3C Trace Context). A caller's `traceparent` is passed on to the events of its request and to
// their receivers, whether or not spans are made here. OpenTelemetry makes spans if its variables request it.

/** The attributes of a span: strings, numbers and booleans. */
export type Attributes = Record<string, string | number | boolean>

export type Span = {
  /** The value by which work within the span refers to it. */
  traceparent: string
  tell(attributes: Attributes): void
  /** @param failure what went wrong, in a few words */
  end(failure?: string): void
}

export type SpanKind = 'server' | 'internal' | 'producer' | 'client'

export type Tracer = {
  /**
   * @param given.parent a `traceparent`; without one it begins a trace
   * @param given.startedAt epoch milliseconds; by default now
   */
  start(name: string, given: { kind: SpanKind; attributes: Attributes; parent?: string; startedAt?: number }): Span
  /** Sends the ended spans that are not sent yet. */
  stop(): Promise<void>
}

/** Version 00, and ids that are not all zeros. */
const TRACEPARENT = /^00-(?!0{32})[\da-f]{32}-(?!0{16})[\da-f]{16}-[\da-f]{2}$/

/** A caller's `traceparent`, if it is valid. */
export const readTraceparent = (header: string): string | undefined => (TRACEPARENT.test(header) ? header : undefined)

const current = new AsyncLocalStorage<string | undefined>()

/** The `traceparent` of the present work, if it belongs to a trace. */
export const currentTrace = (): string | undefined => current.getStore()

let tracer: Tracer | undefined

/** Switches spans on for the whole process. */
export const traceWith = (given: Tracer | undefined): void => {
  tracer = given
}

/**
 * Begins a span; undefined if tracing is off.
 *
 * @param given.parent null begins a trace; by default the present span
 */
export const startSpan = (
  name: string,
  kind: SpanKind,
  attributes: Attributes,
  { parent = currentTrace() ?? null, startedAt }: { parent?: string | null; startedAt?: number } = {},
): Span | undefined =>
  tracer?.start(name, { kind, attributes, ...(parent && { parent }), ...(startedAt !== undefined && { startedAt }) })

/** Runs `work` as part of a trace, or of none. */
export const inTrace = <T>(traceparent: string | undefined, work: () => T): T =>
  traceparent === currentTrace() ? work() : current.run(traceparent, work)

/** Runs `work` in a span of its own. */
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
