import type { IncomingMessage } from 'node:http'
import type { Middleware } from 'koa'
import { TidingsError } from '../../shared/errors.ts'
import { answerError, type RequestState } from './request-id.ts'

export const BODY_LIMIT_BYTES = 1024 * 1024

export type WithBody = RequestState & { rawBody: Buffer }

/** Reads the raw body, as it was signed. One beyond 1 MiB is refused with 413, having read no more than that of it. */
export const rawBody = (): Middleware<WithBody> => async (ctx, next) => {
  const body = await read(ctx.req)
  if (body) {
    ctx.state.rawBody = body
    return next()
  }
  ctx.set('Connection', 'close')
  const message = `The body is larger than ${BODY_LIMIT_BYTES} bytes (1 MiB).`
  answerError(ctx, 413, new TidingsError('BAD_USER_INPUT', message, { argument: 'body' }))
}

const read = async (request: IncomingMessage): Promise<Buffer | undefined> => {
  if (Number(request.headers['content-length']) > BODY_LIMIT_BYTES) return undefined
  const chunks: Buffer[] = []
  let length = 0
  return new Promise((resolve, reject) => {
    request.on('data', (chunk: Buffer) => {
      length += chunk.length
      if (length <= BODY_LIMIT_BYTES) return void chunks.push(chunk)
      request.removeAllListeners('data').pause()
      resolve(undefined)
    })
    request.on('end', () => resolve(Buffer.concat(chunks)))
    request.on('error', reject)
  })
}
