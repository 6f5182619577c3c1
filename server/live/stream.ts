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

  /** Sends one result in JSON, with the position from which to continue after a broken connection. */
  next(result: string, cursor: number): void {
    this.#write(`event: next\nid: ${cursor}\ndata: ${result}\n\n`)
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

  #write(text: string): void {
    if (this.#response.writableEnded || this.#response.destroyed) return
    if (this.keptBytes + text.length > MOST_KEPT_BYTES) this.drop()
    else this.#response.write(text)
  }
}
