import type { Middleware } from 'koa'
import { TidingsError } from '../../shared/errors.ts'
import { answerError, type RequestState } from './request-id.ts'

/** Whether it names the Host header, in a list in which each name has its value after it. */
const isHost = (text: string, index: number): boolean => index % 2 === 0 && /^host$/i.test(text)

/** Refuses requests that Node would otherwise refuse without a message or a request id. */
export const refuseMalformed: Middleware<RequestState> = (ctx, next) => {
  const { host, expect } = ctx.headers
  if (ctx.req.httpVersionMajor !== 1) {
    return answerError(ctx, 505, new TidingsError('BAD_USER_INPUT', 'This server speaks HTTP/1.1 and HTTP/1.0.'))
  }
  if (host === undefined && ctx.req.httpVersion === '1.1') {
    return answerError(ctx, 400, new TidingsError('BAD_USER_INPUT', 'A request in HTTP/1.1 needs a Host header.'))
  }
  // RFC 9112 section 3.2. Node keeps the first of them, a proxy may have gone by another.
  if (ctx.req.rawHeaders.filter(isHost).length > 1) {
    return answerError(ctx, 400, new TidingsError('BAD_USER_INPUT', 'A request has one Host header, not several.'))
  }
  if (expect !== undefined && !/^100-continue$/i.test(expect)) {
    return answerError(ctx, 417, new TidingsError('BAD_USER_INPUT', 'Expect must be 100-continue.'))
  }
  return next()
}
