import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import { Socket } from 'node:net'
import type { Middleware } from 'koa'
import type { Log } from '../log.ts'

/** A rest of a body that is announced to be no longer than that is read away, and its connection kept. */
const WORTH_READING_BYTES = 64 * 1024
/** A connection that is closed reads for so long what comes, and keeps none of it: who still sends sees the answer. */
const LINGER_MS = 30_000
const LINGER_SILENT_MS = 5_000
/**
 * An answer of which nobody takes a byte for so long, or twice that, since Node looks only so often, is dropped; and so
 * is one that is not taken to its end in time.
 */
const STALL_MS = 10_000
const SLOWEST_MS = 120_000
/** Of answers that are on their way at once; beyond it, the one that has been for longest is dropped. */
const ANSWERS_BYTES = 128 * 1024 * 1024

/** Connections that will be closed: what comes on them is no request. */
const closing = new WeakSet<Socket>()

/** Serves requests, except what follows on a connection that is being closed. */
export const unlessClosing =
  (handler: RequestListener): RequestListener =>
  (request, response) => {
    if (closing.has(request.socket)) request.socket.destroy()
    else handler(request, response)
  }

/**
 * Closes the connection of a request that was answered before its body was read, having read away what the client needs
 * to get rid of before it sees the answer. Closed at once, a connection takes the answer back that is on its way.
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
  const close = () => Socket.prototype.destroySoon.call(socket)
  // Called by Node when the answer has been handed over.
  socket.destroySoon = () => {
    socket.end()
    request.once('end', close).once('error', () => {})
    request.resume()
    const timer = setTimeout(() => socket.destroy(), LINGER_MS)
    socket.setTimeout(LINGER_SILENT_MS, () => socket.destroy())
    socket.once('close', () => clearTimeout(timer))
  }
}

/** Drops answers that nobody reads, which would stay in memory for ever, and their connections. */
export const dropStalled = (log: Log): Middleware => {
  /** In the order they came. */
  const answers = new Map<ServerResponse, { socket: Socket; bytes: number }>()
  let held = 0

  return async (ctx, next) => {
    await next()
    const { socket } = ctx.req
    const { res: response, body } = ctx
    if (socket.destroyed) return
    const drop = (): void => {
      log.debug({ requestId: ctx.state.requestId }, 'an answer was dropped, which nobody read')
      // What the kernel has of it is dropped with it.
      socket.resetAndDestroy()
    }
    socket.setTimeout(STALL_MS).prependOnceListener('timeout', drop)
    response.once('close', () => {
      socket.off('timeout', drop)
      // Node sets a time of its own for a connection that is kept, but not where the next request has come already.
      if (socket.timeout === STALL_MS) socket.setTimeout(0)
    })
    const bytes = typeof body === 'string' || Buffer.isBuffer(body) ? body.length : 0
    if (bytes <= WORTH_READING_BYTES || isStream(body)) return

    const timer = setTimeout(drop, SLOWEST_MS)
    answers.set(response, { socket, bytes })
    held += bytes
    response.once('close', () => {
      clearTimeout(timer)
      if (answers.delete(response)) held -= bytes
    })
    for (const [oldest, { socket, bytes }] of answers) {
      if (held <= ANSWERS_BYTES || oldest === response) break
      answers.delete(oldest)
      held -= bytes
      socket.resetAndDestroy()
    }
  }
}

const isStream = (body: unknown): boolean => typeof (body as { pipe?: unknown } | null)?.pipe === 'function'
