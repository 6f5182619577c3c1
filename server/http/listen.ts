import { createServer, type RequestListener, type Server, STATUS_CODES } from 'node:http'
import { Server as NetServer, type Socket } from 'node:net'
import { setTimeout as sleep, setImmediate as whenAccepted } from 'node:timers/promises'
import { v7 as uuid } from 'uuid'
import { type Log, logSeldom } from '../log.ts'
import { SHARED_PORT } from '../processes.ts'
import { unlessClosing } from './unread.ts'

/** The head of a request has so long to arrive, and all of it so long, body included. */
const HEAD_MS = 10_000
const REQUEST_MS = 30_000
const LOOK_EACH_MS = 5_000
/** Longer than a proxy keeps the connections that it has to us, so that it is not us who closes the one it sends on. */
const KEEP_ALIVE_MS = 75_000
/** Connections that the kernel takes while this process does something else; net.core.somaxconn may say less. */
const BACKLOG = 4_096
/** What is answered that is no HTTP goes on for so long, and is then cut off. */
const FAREWELL_MS = 2_000

const CLOSE_IDLE_EACH_MS = 50

export type Door = {
  /** Listens, unless it does already, or has been closed. */
  open(): Promise<void>
  /**
   * Listens no more, and resolves when the last connection has ended.
   *
   * @param idleMs connections on which nothing is asked stay so long: who has sent on one at this moment is answered
   */
  close(idleMs: number): Promise<void>
  /** Ends what connections are left. */
  end(): void
}

/** An address that is listened on from when it is opened until it is closed. */
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
      // Connections that have come by now have been taken: one that is not is reset with the socket.
      await whenAccepted()
      const closed = new Promise<void>(resolve => server.once('close', resolve))
      // Of a server of HTTP, `close` would end idle connections as well.
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
  /** Closes connections that wait for nothing: those that are kept, and those that have never sent a byte. */
  closeUnused(): void
}

type Address = { host: string; port: number }

const listen = (handler: RequestListener, { host, port }: Address, log: Log): Promise<Listening> => {
  const serve = unlessClosing(handler)
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
  // Whoever waits to be asked for the body is asked when the head has been judged.
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

/**
 * Answers what is no request, or does not become one in time. The bytes that came hang on the error; neither they nor
 * the error go any further.
 */
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
