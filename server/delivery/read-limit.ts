import type { Socket } from 'node:net'
import type { buildConnector } from 'undici'

/** An answer has reached the limit before its end. */
export class TooLongAnswer extends Error {
  constructor(limit: number) {
    super(`The answer is longer than ${limit} bytes, whatever it is made of`)
  }
}

/** The most TLS sessions that a server may offer on a connection; most offer two. */
const MOST_SESSIONS = 16

/**
 * Makes a connector whose connections end after they have read more than `limit` bytes since their last request began.
 * Counts on the connection, so that parts which a parser skips count too: chunk extensions, blank lines, a reason
 * phrase, repeated 1XX answers. TLS sessions, which are no data of the connection, are counted by themselves.
 */
export const limitReading =
  (connect: buildConnector.connector, limit: number): buildConnector.connector =>
  (options, callback) =>
    connect(options, (...given) => {
      const [error, socket] = given
      if (error === null) countReading(socket, limit)
      callback(...given)
    })

const countReading = (socket: Socket, limit: number): void => {
  let written = socket.bytesWritten
  let read = socket.bytesRead
  let before = read
  const count = (): void => {
    // A connection carries one request at a time, so bytes read after a write belong to that request.
    if (socket.bytesWritten > written) before = read
    written = socket.bytesWritten
    read = socket.bytesRead
    // The bytes of this turn are parsed first, and count if they contain the head.
    if (read - before > limit) process.nextTick(() => socket.destroy(new TooLongAnswer(limit)))
  }
  socket.prependListener('readable', count)
  let sessions = 0
  socket.on('session', () => {
    sessions += 1
    if (sessions === MOST_SESSIONS) socket.destroy(new TooLongAnswer(limit))
  })
}
