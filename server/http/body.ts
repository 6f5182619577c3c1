import { isUtf8 } from 'node:buffer'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { TidingsError } from '../../shared/errors.ts'
import { partOfMany } from '../database/connect.ts'
import { Turns } from '../turns.ts'
import { type Answerable, answerError, answerUnavailable, type RequestState } from './request-id.ts'

export const BODY_LIMIT_BYTES = 1024 * 1024
/** The time limit for a body to arrive. */
const BODY_MS = 10_000
/** The most bytes of bodies that a process holds, in total and of one access token. */
const ROOM_BYTES = 64 * BODY_LIMIT_BYTES
const ROOM_A_TOKEN_BYTES = 16 * BODY_LIMIT_BYTES

/** From this size on, parsing and checking a body takes milliseconds. */
export const LARGE_BYTES = 64 * 1024

/** How long the next large body waits for one that waits for something else itself. */
const LONG_MS = 50

export type WithBody = RequestState & { rawBody: Buffer }

/** Why a body is not read to its end; `gone`: the client has left. */
export type BodyFault = 'too large' | 'too slow' | 'no room' | 'gone'

/** Whether Content-Length exceeds the limit. */
export const isTooLarge = ({ headers }: IncomingMessage): boolean =>
  Number(headers['content-length']) > BODY_LIMIT_BYTES

/** Holds the bodies of requests within the memory limits, and begins large ones in turns. */
export class Bodies {
  #bytes = 0
  readonly #bytesBy = new Map<string, number>()
  /** Large bodies that wait for their turn, by their access tokens. */
  readonly #large = new Turns<() => void>()
  #isLargeUnderWay = false

  /**
   * Reads the raw, signed body and holds it while `work` runs; or returns why it was not read, having read no more than
   * the limit.
   */
  async hold<T>(
    request: IncomingMessage,
    response: ServerResponse,
    tokenId: string,
    work: (body: Buffer) => Promise<T>,
  ): Promise<T | BodyFault> {
    if (/^100-continue$/i.test(request.headers.expect ?? '')) response.writeContinue()
    let bytes = 0
    const take = (more: number): boolean => {
      bytes += more
      return this.#take(tokenId, more)
    }
    try {
      const body = await read(request, take)
      if (typeof body === 'string') return body
      if (body.length <= LARGE_BYTES) return await work(body)
      await this.#turnOfLarge(tokenId)
      return await this.#doLarge(() => work(body))
    } finally {
      this.#take(tokenId, -bytes)
    }
  }

  #take(tokenId: string, bytes: number): boolean {
    const own = (this.#bytesBy.get(tokenId) ?? 0) + bytes
    if (own === 0) this.#bytesBy.delete(tokenId)
    else this.#bytesBy.set(tokenId, own)
    this.#bytes += bytes
    return this.#bytes <= ROOM_BYTES && own <= ROOM_A_TOKEN_BYTES
  }

  /** Resolves when it is this large body's turn. They are begun one at a time, of each access token in turn. */
  #turnOfLarge(tokenId: string): Promise<void> {
    return new Promise(resolve => {
      this.#large.add(tokenId, resolve)
      if (!this.#isLargeUnderWay) this.#beginLarge()
    })
  }

  #beginLarge(): void {
    const begin = this.#large.take()
    this.#isLargeUnderWay = begin !== undefined
    begin?.()
  }

  /** The next large body is begun when this one is done, or takes long, and others have had the process for as long. */
  #doLarge<T>(work: () => Promise<T>): Promise<T> {
    const worked = Promise.withResolvers<T>()
    const begin = async (): Promise<void> => {
      worked.resolve(work())
      await Promise.race([worked.promise.catch(() => {}), sleep(LONG_MS)])
    }
    partOfMany(begin).then(() => this.#beginLarge())
    return worked.promise
  }
}

const read = (request: IncomingMessage, take: (bytes: number) => boolean): Promise<Buffer | BodyFault> =>
  new Promise(resolve => {
    const chunks: Buffer[] = []
    let length = 0
    const end = (result: Buffer | BodyFault): void => {
      clearTimeout(timer)
      request.off('data', onData).pause()
      resolve(result)
    }
    const onData = (chunk: Buffer): void => {
      length += chunk.length
      if (length > BODY_LIMIT_BYTES) end('too large')
      else if (!take(chunk.length)) end('no room')
      else chunks.push(chunk)
    }
    const timer = setTimeout(end, BODY_MS, 'too slow')
    request
      .on('data', onData)
      .once('end', () => end(Buffer.concat(chunks)))
      .once('error', () => end('gone'))
      .once('close', () => end('gone'))
  })

/** Answers a request whose body was not read to its end. */
export const refuseBody = (ctx: Answerable, fault: BodyFault = 'too large'): void => {
  if (fault === 'no room') {
    const message = 'Too many large requests are arriving at once. Nothing was done. Try again in 1 s.'
    answerUnavailable(ctx, new TidingsError('UNAVAILABLE', message, { retryAfterSeconds: 1 }))
  } else {
    const [status, message] = ANSWERS[fault]
    answerError(ctx, status, new TidingsError('BAD_USER_INPUT', message, { argument: 'body' }))
  }
}

const ANSWERS: Record<Exclude<BodyFault, 'no room'>, [status: number, message: string]> = {
  'too large': [413, `The body is larger than ${BODY_LIMIT_BYTES} bytes (1 MiB).`],
  'too slow': [408, `The body did not arrive within ${BODY_MS / 1000} s.`],
  gone: [400, 'The body was cut off.'],
}

/**
 * The body as text; undefined after answering a body that is not valid UTF-8, of which nothing is guessed or replaced.
 */
export const readText = (ctx: Answerable & { get(name: string): string }, body: Buffer): string | undefined => {
  const encoding = ctx.get('content-encoding')
  if (encoding !== '' && !/^identity$/i.test(encoding)) {
    ctx.set('Accept-Encoding', 'identity')
    const message = `A compressed body (Content-Encoding: ${encoding}) is not accepted: send it uncompressed.`
    answerError(ctx, 415, new TidingsError('BAD_USER_INPUT', message, { argument: 'body' }))
    return undefined
  }
  if (isUtf8(body)) return body.toString('utf8')
  answerError(ctx, 400, new TidingsError('BAD_USER_INPUT', 'The body is not UTF-8.', { argument: 'body' }))
  return undefined
}
