import type { ServerResponse } from 'node:http'

/**
 * The most bytes buffered for a client that does not read. Beyond it the stream ends, and the client can reconnect for
 * what it missed.
 */
const MOST_KEPT_BYTES = 1024 * 1024

/** One client's stream of server-sent events, by the protocol of graphql-sse for distinct connections. */
export class Stream {
  readonly #response: ServerResponse

  constructor(response: ServerResponse) {
    this.#response = response
    response.writeHead(200, {
      'content-type': 'text/event-stream; charset=utf-8',
      'cache-control': 'no-store',
      'x-accel-buffering': 'no',
    })
    // Proxies in between would hold back an answer without a body.
    response.write(':\n\n')
  }

  onClose(ended: () => void): void {
    this.#response.once('close', ended)
    if (this.#response.destroyed) ended()
  }

  /** Bytes that the client has not read yet. */
  get keptBytes(): number {
    return this.#response.writableLength
  }

  /** Sends results: see `framesOf`. */
  next(frame: Buffer): void {
    this.#write(frame)
  }

  /** Sends a keep-alive; with a cursor, it also says that nothing was missed until then. */
  beat(cursor: number | undefined): void {
    this.#write(cursor === undefined ? ':\n\n' : `:\nid: ${cursor}\n\n`)
  }

  /** Completes the stream, with a last result if there is one. */
  complete(result?: string): void {
    this.#response.end(`${result === undefined ? '' : `event: next\ndata: ${result}\n\n`}event: complete\ndata:\n\n`)
  }

  /** Closes the stream so that the client reconnects. */
  breakOff(): void {
    this.#response.end()
  }

  drop(): void {
    this.#response.destroy()
  }

  #write(data: string | Buffer): void {
    if (this.#response.writableEnded || this.#response.destroyed) return
    if (this.keptBytes + data.length > MOST_KEPT_BYTES) this.drop()
    else this.#response.write(data)
  }
}

/** A frame ends after this many characters. */
const FRAME_CHARACTERS = 32 * 1024

/**
 * Results in JSON as server-sent events, in buffers that any number of streams can share. The last event has the id
 * from which to continue after a broken connection, if all until then has been sent with it.
 */
export function* framesOf(results: readonly string[], cursor: number | undefined): Generator<Buffer> {
  let text = ''
  for (const [n, result] of results.entries()) {
    const isLast = n === results.length - 1
    text += `event: next\n${isLast && cursor !== undefined ? `id: ${cursor}\n` : ''}data: ${result}\n\n`
    if (!isLast && text.length < FRAME_CHARACTERS) continue
    yield Buffer.from(text)
    text = ''
  }
}
