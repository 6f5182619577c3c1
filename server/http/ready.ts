import type { Middleware } from 'koa'
import { TidingsError } from '../../shared/errors.ts'
import { answerError, type RequestState } from './request-id.ts'

/**
 * Refuses requests with 503 until there is what serving them needs; from then on, goes through what `serve` makes of
 * it.
 */
export const whenReady = <Service>(
  service: () => Service | undefined,
  serve: (service: Service) => Middleware,
): Middleware<RequestState> => {
  let serving: Middleware | undefined
  return (ctx, next) => {
    const found = service()
    if (found) {
      serving ??= serve(found)
      return serving(ctx, next)
    }
    ctx.set('Retry-After', '1')
    const message = 'The server is not ready: GET /readyz says why.'
    answerError(ctx, 503, new TidingsError('INTERNAL_SERVER_ERROR', message))
    return undefined
  }
}
