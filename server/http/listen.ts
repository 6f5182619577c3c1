import { createServer, type RequestListener, type Server, STATUS_CODES } from 'node:http'
import { Server as NetServer, type Socket } from 'node:net'
import { setTimeout as sleep, setImmediate as whenAccepted } from 'node:timers/promises'
import { v7 as uuid } from 'uuid'
import { type Log, logSeldom } from '../log.ts'
import { SHARED_PORT } from '../processes.ts'
import { inSlices } from './slices.ts'
import { unlessClosing } from './unread.ts'

/** The time limits for the head of a request and for all of it. */
const HEAD_MS = 10_000
const REQUEST_MS = 30_000
const LOOK_EACH_MS = 5_000
/** Longer than a proxy keeps idle connections, so that this server never closes one on which the proxy is sending. */
const KEEP_ALIVE_MS = 75_000
/** The kernel's backlog of connections while this process is busy; net.core.somaxconn may be lower. */
const BACKLOG = 4_096
/** How long an answer to invalid HTTP may take before the connection is closed. */
const FAREWELL_MS = 2_000

const CLOSE_IDLE_EACH_MS = 50

export type Door = {
  /** Begins to listen, unless it already does or was closed. */
  open(): Promise<void>
  /**
   * Stops listening, and resolves when the last connection has ended.
   *
   * @param idleMs how long idle connections stay open, so that a request just sent on one is answered
   */
  close(idleMs: number): Promise<void>
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
    async close(idleMs) {
      isClosed = true
      const server = await opening?.catch(() => undefined)
      if (!server) return
      // Accepts the connections that have arrived by now; closing the socket would reset them.
      await whenAccepted()
      const closed = new Promise<void>(resolve => server.once('close', resolve))
      // `close` of an HTTP server would also close idle connections.
      NetServer.prototype.close.call(server)
      await Promise.race([closed, sleep(idleMs, undefined, { ref: false })])
      server.close()
      const closing = setInterval(() => server.closeUnused(), CLOSE_IDLE_EACH_MS)
      await closed
      clearInterval(closing)
    },
    end: () => opened?.closeAllConnections(),
  }
}

type Listening = Server & {
  /** Closes idle connections: kept-alive ones, and those that have never sent a byte. */
  closeUnused(): void
}

type Address = { host: string; port: number }

const listen = (handler: RequestListener, { host, port }: Address, log: Log): Promise<Listening> => {
  const serve = inSlices(unlessClosing(handler))
  const server = createServer(
    {
      headersTimeout: HEAD_MS,
      requestTimeout: REQUEST_MS,
      connectionsCheckingInterval: LOOK_EACH_MS,
      keepAliveTimeout: KEEP_ALIVE_MS,
      // Refused further on, with a request id.
      requireHostHeader: false,
    },
    serve,
  )
  // A client that waits for 100 Continue is asked for the body after the head is checked.
  server.on('checkContinue', serve)
  server.on('checkExpectation', serve)
  server.on('clientError', refuseJunk(log))
  const open = new Set<Socket>()
  server.on('connection', (socket: Socket) => {
    open.add(socket)
    socket.once('close', () => open.delete(socket))
  })
  const closeUnused = (): void => {
    server.closeIdleConnections()
    for (const socket of open) if (socket.bytesRead === 0) socket.destroy()
  }
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen({ port, host, backlog: BACKLOG, ...SHARED_PORT }, () =>
      resolve(Object.assign(server, { closeUnused })),
    )
  })
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
    const requestId = uuid()
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
