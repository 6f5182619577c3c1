import type { Socket } from 'node:net'

/** How a connection came about. Milliseconds; a phase that did not take place is missing. */
export type ConnectionFacts = {
  /** The address of the endpoint, not that of a proxy. */
  remoteAddress?: string
  lookupMs?: number
  connectMs?: number
  tlsMs?: number
  /** Whether a request has used it: its phases belong to the first one. */
  used?: true
}

/** Milliseconds with one decimal: less than that is noise. */
export const inTenths = (ms: number): number => Math.round(ms * 10) / 10

const facts = new WeakMap<object, ConnectionFacts>()

/** The facts about a connection that {@link timeConnection} has timed. */
export const factsOf = (socket: object): ConnectionFacts | undefined => facts.get(socket)

export const setFacts = (socket: object, known: ConnectionFacts): void => void facts.set(socket, known)

/**
 * Times the look-up, the connection and the TLS handshake of a socket that begins to connect. Its listeners come first:
 * undici sends a request from its own.
 */
export const timeConnection = (socket: Socket): void => {
  const known: ConnectionFacts = {}
  facts.set(socket, known)
  let since = performance.now()
  const lap = (): number => {
    const before = since
    since = performance.now()
    return inTenths(since - before)
  }
  socket.prependOnceListener('lookup', () => {
    known.lookupMs = lap()
  })
  socket.prependOnceListener('connect', () => {
    known.connectMs = lap()
    if (socket.remoteAddress !== undefined) known.remoteAddress = socket.remoteAddress
  })
  socket.prependOnceListener('secureConnect', () => {
    known.tlsMs = lap()
  })
}
