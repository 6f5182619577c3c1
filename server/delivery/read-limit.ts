import type { Socket } from 'node:net'
import type { buildConnector } from 'undici'

/** An answer has taken all that it may, and has not come to its end. */
export class TooLongAnswer extends Error {
  constructor(limit: number) {
    super(`The answer is longer than ${limit} bytes, whatever it is made of`)
  }
}

/**
 * Makes a connector whose connections end when they have read more than `limit` bytes since their last request began.
 * Counted on the connection, so that it holds for what a parser passes over too: extensions of chunks, blank lines, a
 * reason phrase, answers of 1XX one after the other.
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
    // One request at a time: what is read after something was written belongs to it.
    if (socket.bytesWritten > written) before = read
    written = socket.bytesWritten
    read = socket.bytesRead
    // What this very turn has read is parsed first: it counts if it has the head.
    if (read - before > limit) process.nextTick(() => socket.destroy(new TooLongAnswer(limit)))
  }
  socket.prependListener('readable', count)
}
