import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import { Socket } from 'node:net'
import type { Middleware } from 'koa'
import type { Log } from '../log.ts'

/** An announced rest of a body up to this length is read and dropped, and the connection kept. */
const WORTH_READING_BYTES = 64 * 1024
/** How long a closing connection reads and drops data, so that a client that still sends can see the answer. */
const LINGER_MS = 30_000
const LINGER_SILENT_MS = 5_000
/** The most such connections at once; beyond it, the oldest is reset. In the kernel, each holds what has arrived. */
const MOST_LINGERING = 64
/**
 * Further data of closing connections is read in rounds: of a few connections at a time, until together they have sent
 * this much. Read as fast as it arrives, hundreds of refused bodies would hold the event loop.
 */
const ROUND = { eachMs: 10, connections: 2, bytes: 256 * 1024 }
/**
 * An answer is dropped if the client takes no byte of it for this long (up to twice that, the interval of Node's
 * check), or does not take all of it in time.
 */
const STALL_MS = 10_000
const SLOWEST_MS = 120_000
/** The most bytes of answers under way at once; beyond it, the oldest is dropped. */
const ANSWERS_BYTES = 128 * 1024 * 1024

/** Connections that will be closed; further data on them is no request. */
const closing = new WeakSet<Socket>()
/** Those of them whose answer is sent and that drop what still arrives, the oldest first. */
const lingering = new Set<Socket>()

/** Serves requests, except on a connection that is being closed. */
export const unlessClosing =
  (handler: RequestListener): RequestListener =>
  (request, response) => {
    if (closing.has(request.socket)) request.socket.destroy()
    else handler(request, response)
  }

/**
 * Closes the connection of a request that was answered before its body was read. First it drains what the client still
 * sends, because closing at once would discard the answer in transit.
 */
export const closeUnread = (): Middleware => async (ctx, next) => {
  await next()
  const { req: request } = ctx
  if (request.complete || request.destroyed) return
  const isUntouched = request.readableFlowing === null
  if (isUntouched && Number(request.headers['content-length']) <= WORTH_READING_BYTES && !request.headers.expect) return
  ctx.set('Connection', 'close')
  linger(request)
}

const linger = (request: IncomingMessage): void => {
  const { socket } = request
  closing.add(socket)
  // Otherwise Node reads and drops the rest by itself, as fast as it arrives. Where enough is kept, `read(0)` would not
  // count as reading.
  request.read()
  const close = () => Socket.prototype.destroySoon.call(socket)
  // Node calls this when the answer is handed over.
  socket.destroySoon = () => {
    socket.end()
    request.once('end', close).once('error', () => {})
    drain(request)
    const timer = setTimeout(() => socket.destroy(), LINGER_MS)
    socket.setTimeout(LINGER_SILENT_MS, () => socket.destroy())
    lingering.add(socket)
    socket.once('close', () => {
      clearTimeout(timer)
      lingering.delete(socket)
    })
    for (const oldest of lingering) {
      if (lingering.size <= MOST_LINGERING) break
      lingering.delete(oldest)
      oldest.resetAndDestroy()
    }
  }
}

/** Requests whose rest is to be dropped, in the order of their turns. */
const undrained = new Set<IncomingMessage>()
let isRoundDue = false
let roundBytes = 0

/** Reads and drops the rest of a request, in turns with others. */
const drain = (request: IncomingMessage): void => {
  const takeTurn = (): void => {
    undrained.add(request.pause())
    if (!isRoundDue) setTimeout(drainRound, ROUND.eachMs)
    isRoundDue = true
  }
  request
    .on('data', (chunk: Buffer) => {
      roundBytes += chunk.length
      if (roundBytes >= ROUND.bytes) takeTurn()
    })
    .once('close', () => undrained.delete(request))
  takeTurn()
}

const drainRound = (): void => {
  roundBytes = 0
  for (const request of [...undrained].slice(0, ROUND.connections)) {
    undrained.delete(request)
    request.resume()
  }
  isRoundDue = undrained.size > 0
  if (isRoundDue) setTimeout(drainRound, ROUND.eachMs)
}

/** Drops answers that nobody reads, and their connections, which would otherwise stay in memory. */
export const dropStalled = (log: Log): Middleware => {
  /** In the order of arrival. */
  const answers = new Map<ServerResponse, { socket: Socket; bytes: number }>()
  let kept = 0

  return async (ctx, next) => {
    await next()
    const { socket } = ctx.req
    const { res: response } = ctx
    if (socket.destroyed) return
    const drop = (): void => {
      log.debug({ requestId: ctx.state.requestId }, 'an answer was dropped, which nobody read')
      // Its data in the kernel is dropped too.
      socket.resetAndDestroy()
    }
    socket.setTimeout(STALL_MS).prependOnceListener('timeout', drop)
    response.once('close', () => {
      socket.off('timeout', drop)
      // Node sets its own timeout for a kept connection, but not if the next request has already arrived.
      if (socket.timeout === STALL_MS) socket.setTimeout(0)
    })
    const bytes = Number(response.getHeader('content-length') ?? 0)
    if (bytes <= WORTH_READING_BYTES) return

    const timer = setTimeout(drop, SLOWEST_MS)
    answers.set(response, { socket, bytes })
    kept += bytes
    response.once('close', () => {
      clearTimeout(timer)
      if (answers.delete(response)) kept -= bytes
    })
    for (const [oldest, { socket, bytes }] of answers) {
      if (kept <= ANSWERS_BYTES || oldest === response) break
      answers.delete(oldest)
      kept -= bytes
      socket.resetAndDestroy()
    }
  }
}
