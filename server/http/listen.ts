import type { Server as HttpServer, RequestListener } from 'node:http'
import {
  type AddressInfo,
  connect,
  createServer as createListener,
  type ListenOptions,
  Server,
  type Socket,
} from 'node:net'
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises'
import { createServer, STATUS_CODES } from '../../shared/node-http.ts'
import { passingId } from '../ids.ts'
import { type Log, logSeldom } from '../log.ts'
import { isFirstProcess } from '../processes.ts'
import { inSlices } from './slices.ts'
import { unlessClosing } from './unread.ts'

/** The time limits for the head of a request and for all of it. */
const HEAD_MS = 10_000
const REQUEST_MS = 30_000
const LOOK_EACH_MS = 5_000
/** Longer than a proxy keeps idle connections, so that this server never closes one on which the proxy is sending. */
const KEEP_ALIVE_MS = 75_000
/** Of a body that nobody reads yet, Node reads until it holds this much: one read, of at most 64 KiB. */
const UNASKED_BYTES = 16 * 1024
/** The kernel's backlog of connections while this process is busy; net.core.somaxconn may be lower. */
const BACKLOG = 4_096
/** How long an answer to invalid HTTP may take before the connection is closed. */
const FAREWELL_MS = 2_000

/** How soon the kernel accepts a connection for a program of this machine, even one that stands still. */
const ACCEPTED_MS = 1_000

const CLOSE_IDLE_EACH_MS = 50
/** How long a server that stops goes on accepting, if connections come without a pause; twice so if turns are long. */
const ACCEPT_ALL_MS = 500
/** What comes in a turn of the event loop waits for its end, and would be reset by a close. */
const SHORT_TURN_MS = 1
/**
 * Sockets that listen on one port. Node accepts one connection of each in a turn of its event loop, since libuv 1.45:
 * under load, hundreds of new connections would wait for seconds before any handler saw them.
 */
const SOCKETS = 64

export type Door = {
  /** Begins to listen, unless it already does or was closed. */
  open(): Promise<void>
  /**
   * Stops listening, and resolves when the last connection has ended.
   *
   * @param idleMs how long idle connections stay open, so that a request just sent on one is answered
   * @param onClosed called when it has stopped to listen
   */
  close(idleMs: number, onClosed?: () => void): Promise<void>
  /** Ends what connections are left. */
  end(): void
}

/** A listening address, from `open` to `close`. */
export const createDoor = (handler: RequestListener, at: Address, log: Log): Door => {
  let opening: Promise<Listening> | undefined
  let opened: Listening | undefined
  let isClosed = false
  return {
    async open() {
      if (isClosed) return
      opening ??= listen(handler, at, log)
      opened = await opening
    },
    async close(idleMs, onClosed) {
      isClosed = true
      const listening = await opening?.catch(() => undefined)
      if (!listening) return
      const { server, listeners } = listening
      await listening.allAccepted()
      const closed = Promise.all(listeners.map(one => new Promise<void>(resolve => one.once('close', resolve))))
      // `close` of an HTTP server would also close idle connections.
      for (const listener of listeners) Server.prototype.close.call(listener)
      onClosed?.()
      await Promise.race([closed, sleep(idleMs, undefined, { ref: false })])
      server.close()
      const closing = setInterval(() => listening.closeUnused(), CLOSE_IDLE_EACH_MS)
      await closed
      clearInterval(closing)
    },
    end() {
      opened?.server.closeAllConnections()
    },
  }
}

type Listening = {
  /** It has all connections. */
  server: HttpServer
  /** It, and others that pass their connections on to it. */
  listeners: Server[]
  /** Accepts the connections that have arrived by the end of a short turn; closing the sockets would reset them. */
  allAccepted(): Promise<void>
  /** Closes idle connections: kept-alive ones, and those that have never sent a byte. */
  closeUnused(): void
}

type Address = { host: string; port: number }

const listen = async (handler: RequestListener, at: Address, log: Log): Promise<Listening> => {
  const serve = inSlices(unlessClosing(handler))
  const open = new Set<Socket>()
  let accepted = 0
  const server = createServer(
    {
      headersTimeout: HEAD_MS,
      requestTimeout: REQUEST_MS,
      connectionsCheckingInterval: LOOK_EACH_MS,
      keepAliveTimeout: KEEP_ALIVE_MS,
      highWaterMark: UNASKED_BYTES,
      // Refused further on, with a request id.
      requireHostHeader: false,
    },
    serve,
  )
  // A client that waits for 100 Continue is asked for the body after the head is checked.
  server.on('checkContinue', serve)
  server.on('checkExpectation', serve)
  server.on('clientError', refuseJunk(log))
  server.on('connection', (socket: Socket) => {
    accepted += 1
    open.add(socket)
    socket.once('close', () => open.delete(socket))
  })
  const listeners = await listenOn(at, server).catch(error => {
    // A machine without IPv6.
    if (at.host !== '::' || error.code !== 'EAFNOSUPPORT') throw error
    return listenOn({ ...at, host: '0.0.0.0' }, server)
  })
  return {
    server,
    listeners,
    async allAccepted() {
      // Sockets are looked at between two of these.
      await nextTurn()
      const since = performance.now()
      for (let [isQuiet, isShort] = [false, false]; !(isQuiet && isShort); ) {
        const [before, begunAt] = [accepted, performance.now()]
        await nextTurn()
        const now = performance.now()
        isQuiet = accepted === before || now - since > ACCEPT_ALL_MS
        isShort = now - begunAt < SHORT_TURN_MS || now - since > 2 * ACCEPT_ALL_MS
      }
    },
    closeUnused() {
      server.closeIdleConnections()
      for (const socket of open) if (socket.bytesRead === 0) socket.destroy()
    },
  }
}

/**
 * Listens with several sockets that share a port, where the system can. There the kernel distributes connections to
 * them, and to those of several processes of one server, and closes those of a dead process. Elsewhere the parent of
 * the processes distributes them, and a connection given to a dying process gets no answer.
 */
const listenOn = async ({ host, port }: Address, first: HttpServer): Promise<Server[]> => {
  if (process.platform !== 'linux') return [await listening(first, { host, port })]
  // Another server that shares its port would not be noticed.
  if (isFirstProcess()) await isFree({ host, port })
  const shared = { host, reusePort: true, exclusive: true }
  const listeners = [await listening(first, { ...shared, port })]
  const { port: own } = first.address() as AddressInfo
  // As an HTTP server listens by itself; each would look at its own connections every few seconds.
  const terms = { allowHalfOpen: true, noDelay: true, highWaterMark: UNASKED_BYTES }
  const passOn = (socket: Socket) => first.emit('connection', socket)
  while (listeners.length < SOCKETS) {
    listeners.push(await listening(createListener(terms, passOn), { ...shared, port: own }))
  }
  return listeners
}

const listening = (server: Server, options: ListenOptions): Promise<Server> =>
  new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen({ backlog: BACKLOG, ...options }, () => resolve(server))
  })

/**
 * Throws EADDRINUSE if a program of this machine accepts connections there. To listen there for a moment, without
 * sharing, would also tell; but that resets the connections which a proxy opens meanwhile.
 */
const isFree = async ({ host, port }: Address): Promise<void> => {
  const socket = connect({ host, port, timeout: ACCEPTED_MS })
  const isTaken = await new Promise<boolean>(resolve => {
    // An address of another machine cannot be listened on, for another reason.
    socket.once('connect', () => resolve(socket.localAddress === socket.remoteAddress))
    socket.once('timeout', () => resolve(false))
    socket.once('error', () => resolve(false))
  })
  socket.destroy()
  if (!isTaken) return
  const message = `listen EADDRINUSE: address already in use ${host}:${port}`
  throw Object.assign(new Error(message), { code: 'EADDRINUSE', syscall: 'listen', address: host, port })
}

const STATUSES: Record<string, number> = {
  HPE_HEADER_OVERFLOW: 431,
  HPE_CHUNK_EXTENSIONS_OVERFLOW: 413,
  ERR_HTTP_REQUEST_TIMEOUT: 408,
}

/** Answers invalid or incomplete HTTP. The error contains the received bytes, so it is not passed on. */
const refuseJunk = (log: Log) => {
  const answered = new WeakSet<object>()
  return (error: NodeJS.ErrnoException, stream: import('node:stream').Duplex): void => {
    const socket = stream as Socket
    const { code = 'unknown' } = error
    const requestId = passingId()
    if (code !== 'ECONNRESET' && code !== 'EPIPE') {
      logSeldom(log, 'warn', 'no request', { code, requestId }, 'what came on a connection is no request')
    }
    if (!socket.writable || answered.has(socket) || code === 'ECONNRESET') return void socket.destroy()
    answered.add(socket)
    const status = STATUSES[code] ?? 400
    const phrase = STATUS_CODES[status]!
    const extensions = { code: 'BAD_USER_INPUT', requestId }
    const body = JSON.stringify({ errors: [{ message: `${phrase}.`, extensions }] })
    socket.end(
      `HTTP/1.1 ${status} ${phrase}\r\nContent-Type: application/json; charset=utf-8\r\n` +
        `X-Request-Id: ${requestId}\r\n` +
        `Content-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`,
    )
    socket.setTimeout(FAREWELL_MS, () => socket.destroy())
  }
}
