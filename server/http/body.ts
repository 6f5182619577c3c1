import { isUtf8 } from 'node:buffer'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { TidingsError } from '../../shared/errors.ts'
import { type Answerable, answerError, answerUnavailable, type RequestState } from './request-id.ts'

export const BODY_LIMIT_BYTES = 1024 * 1024
/** A body has so long to arrive. */
const BODY_MS = 10_000
/** What a process holds of bodies at most, and of those of one access token. */
const ROOM_BYTES = 64 * BODY_LIMIT_BYTES
const ROOM_A_TOKEN_BYTES = 16 * BODY_LIMIT_BYTES

export type WithBody = RequestState & { rawBody: Buffer }

/** Why a body is not read to its end: `gone` is the client. */
export type BodyFault = 'too large' | 'too slow' | 'no room' | 'gone'

/** Whether a body says of itself that it is larger than any may be. */
export const isTooLarge = ({ headers }: IncomingMessage): boolean =>
  Number(headers['content-length']) > BODY_LIMIT_BYTES

/** Holds the bodies of requests, no more of them at a time than there is room for. */
export class Bodies {
  #held = 0
  readonly #heldBy = new Map<string, number>()

  /**
   * Reads a raw body, as it was signed, and holds it while `work` is done with it; or answers why not, having read no
   * more than is allowed of it.
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
      return typeof body === 'string' ? body : await work(body)
    } finally {
      this.#take(tokenId, -bytes)
    }
  }

  #take(tokenId: string, bytes: number): boolean {
    const own = (this.#heldBy.get(tokenId) ?? 0) + bytes
    if (own === 0) this.#heldBy.delete(tokenId)
    else this.#heldBy.set(tokenId, own)
    this.#held += bytes
    return this.#held <= ROOM_BYTES && own <= ROOM_A_TOKEN_BYTES
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
    const message = 'Too many large requests are on their way at once. Nothing was done. Try again in 1 s.'
    answerUnavailable(ctx, new TidingsError('UNAVAILABLE', message, { retryAfterSeconds: 1 }))
  } else {
    const [status, message] = ANSWERS[fault]
    answerError(ctx, status, new TidingsError('BAD_USER_INPUT', message, { argument: 'body' }))
  }
}

const ANSWERS: Record<Exclude<BodyFault, 'no room'>, [status: number, message: string]> = {
  'too large': [413, `The body is larger than ${BODY_LIMIT_BYTES} bytes (1 MiB).`],
  'too slow': [408, `The body has not arrived within ${BODY_MS / 1000} s.`],
  gone: [400, 'The body was cut off.'],
}

/** A body as text; undefined where it is none, which is then answered: nothing is guessed, and nothing replaced. */
export const readText = (ctx: Answerable & { get(name: string): string }, body: Buffer): string | undefined => {
  const encoding = ctx.get('content-encoding')
  if (encoding !== '' && !/^identity$/i.test(encoding)) {
    ctx.set('Accept-Encoding', 'identity')
    const message = `A body that is compressed (Content-Encoding: ${encoding}) is not read: send it as it is.`
    answerError(ctx, 415, new TidingsError('BAD_USER_INPUT', message, { argument: 'body' }))
    return undefined
  }
  if (isUtf8(body)) return body.toString('utf8')
  answerError(ctx, 400, new TidingsError('BAD_USER_INPUT', 'The body is not UTF-8.', { argument: 'body' }))
  return undefined
}
