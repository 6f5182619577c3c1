import type { Middleware } from 'koa'
import { TidingsError } from '../../shared/errors.ts'
import { answerUnavailable, type RequestState } from './request-id.ts'

/** Refuses requests with 503 until the server is ready; from then on, runs the middleware of `serve`. */
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
    const message = 'The server is not ready: GET /readyz says why. Nothing was done. Try again in 1 s.'
    answerUnavailable(ctx, new TidingsError('UNAVAILABLE', message, { retryAfterSeconds: 1 }))
    return undefined
  }
}
