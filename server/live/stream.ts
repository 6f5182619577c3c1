import type { ServerResponse } from 'node:http'

/** What is kept for a client that does not read; with more its stream ends, and it may come back for what it missed. */
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
    // What is between would hold back an answer that has no body yet.
    response.write(':\n\n')
  }

  onClose(ended: () => void): void {
    this.#response.once('close', ended)
    if (this.#response.destroyed) ended()
  }

  /** Bytes that the client has not taken yet. */
  get keptBytes(): number {
    return this.#response.writableLength
  }

  /** One result, in JSON, and where to go on from when the connection breaks after it. */
  next(result: string, cursor: number): void {
    this.#write(`event: next\nid: ${cursor}\ndata: ${result}\n\n`)
  }

  /** A sign of life; with a cursor, also that nothing was missed until then. */
  beat(cursor: number | undefined): void {
    this.#write(cursor === undefined ? ':\n\n' : `:\nid: ${cursor}\n\n`)
  }

  /** Ends it for good, with a last result if there is one. */
  complete(result?: string): void {
    this.#response.end(`${result === undefined ? '' : `event: next\ndata: ${result}\n\n`}event: complete\ndata:\n\n`)
  }

  /** Ends it so that the client comes back. */
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
