import { hash, timingSafeEqual } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import ipaddr from 'ipaddr.js'
import type { Context, Middleware } from 'koa'
import { TidingsError } from '../../shared/errors.ts'
import type { Metrics } from '../metrics/metrics.ts'
import { createExposition } from '../processes.ts'
import { answerError, type RequestState } from './request-id.ts'
import { Router } from './router.ts'

/** The shortest time from one exposition to the next, which is computed for all who wait for it. */
const PAUSE_MS = 100

/** Headers by which a proxy says that it speaks for another client. */
const FORWARDING =
  /^(forwarded|via|x-forwarded(-.*)?|x-(real|client|original|cluster-client)-ip|true-client-ip|(cf|fastly)-.*)$/

/** Machines of the operator's own network. */
const NEAR = ['loopback', 'private', 'uniqueLocal', 'linkLocal']

/**
 * Lets a request on the public port pass to the metrics: one from a loopback or private address that comes through no
 * proxy, or one with the token. Metrics name failing webhooks, so strangers do not get them.
 */
export const onlyOperators =
  (token: string | undefined): Middleware<RequestState> =>
  (ctx, next) => {
    if (ctx.path !== '/metrics' || isNear(ctx) || (token && hasToken(ctx, token))) return next()
    ctx.set('WWW-Authenticate', 'Bearer')
    const message =
      'Metrics are for loopback and private addresses that come through no proxy, ' +
      'or for a request with the bearer token TIDINGS_METRICS_TOKEN.'
    answerError(ctx, 401, new TidingsError('UNAUTHENTICATED', message, { reason: 'missing' }))
  }

const isNear = ({ req }: Context): boolean => {
  const { remoteAddress = '' } = req.socket
  if (Object.keys(req.headers).some(name => FORWARDING.test(name))) return false
  return ipaddr.isValid(remoteAddress) && NEAR.includes(ipaddr.process(remoteAddress).range())
}

const hasToken = (ctx: Context, token: string): boolean => {
  const [, given = ''] = /^Bearer +(\S+)$/i.exec(ctx.get('authorization')) ?? []
  const [left, right] = [given, token].map(text => hash('sha256', text, 'buffer'))
  return timingSafeEqual(left!, right!)
}

/** Serves the metrics of this process, or of all that share its port, in Prometheus' text format. */
export const metricsRoute = ({ registry, shared }: Metrics) => {
  const exposition = createExposition(registry, shared)
  let beganAt = Number.NEGATIVE_INFINITY
  let next: Promise<string> | undefined
  const begin = async (): Promise<string> => {
    await sleep(Math.max(0, beganAt + PAUSE_MS - performance.now()))
    next = undefined
    beganAt = performance.now()
    return exposition()
  }
  // Exactly this path: another spelling would pass by `onlyOperators`.
  const router = new Router<RequestState>({ strict: true, sensitive: true })
  router.get('/metrics', async ctx => {
    ctx.type = registry.contentType
    next ??= begin()
    ctx.body = await next
  })
  return router.routes()
}
