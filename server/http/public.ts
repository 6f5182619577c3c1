import Router from '@koa/router'
import { Counter, collectDefaultMetrics, Histogram, Registry } from 'prom-client'
import type { Database } from '../database/connect.ts'
import { pendingMigrations } from '../database/migrate.ts'
import type { Settlement } from '../delivery/queue.ts'
import type { Keyring } from '../keys/signing-keys.ts'
import type { RequestState } from './request-id.ts'

/** What anybody may ask, unsigned: keys, health and metrics. */
export const publicRoutes = ({
  database,
  keyring,
  metrics,
  isStopping,
}: {
  database: () => Database | undefined
  keyring: () => Keyring | undefined
  metrics: Metrics
  isStopping: () => boolean
}) => {
  const router = new Router<RequestState>()

  router.get('/.well-known/jwks.json', ctx => {
    const keys = keyring()
    if (!keys) return notReady(ctx, 'the signing keys are not loaded yet')
    ctx.set('Cache-Control', 'public, max-age=300')
    ctx.body = keys.jwks()
  })

  router.get('/livez', ctx => {
    ctx.body = { status: 'live' }
  })

  router.get('/readyz', async ctx => {
    if (isStopping()) return notReady(ctx, 'shutting down')
    const connected = database()
    if (!connected) return notReady(ctx, 'the database does not answer')
    try {
      const pending = await pendingMigrations(connected)
      if (pending.length > 0)
        return notReady(ctx, `the schema is not current: run \`tidings server migrate\` (${pending.join(', ')})`)
    } catch {
      return notReady(ctx, 'the database does not answer')
    }
    if (!keyring()) return notReady(ctx, 'the signing keys are not loaded yet')
    ctx.body = { status: 'ready' }
  })

  router.get('/metrics', async ctx => {
    ctx.type = metrics.registry.contentType
    ctx.body = await metrics.registry.metrics()
  })

  return router.routes()
}

const notReady = (ctx: { status: number; body: unknown }, reason: string): void => {
  ctx.status = 503
  ctx.body = { status: 'not ready', reason }
}

export type Metrics = ReturnType<typeof createMetrics>

export const createMetrics = () => {
  const registry = new Registry()
  // The event loop's delay is sampled by a timer: one that is due every 10 ms would keep an idle process awake.
  collectDefaultMetrics({ register: registry, eventLoopMonitoringPrecision: 500 })
  const attempts = new Counter({
    name: 'tidings_attempts_total',
    help: 'Delivery attempts, by what became of the delivery.',
    labelNames: ['outcome'],
    registers: [registry],
  })
  const duration = new Histogram({
    name: 'tidings_attempt_duration_seconds',
    help: 'Time from sending a delivery to its answer.',
    buckets: [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15],
    registers: [registry],
  })
  return {
    registry,
    settled({ outcome, durationMs }: Settlement): void {
      attempts.inc({ outcome: outcome.status })
      duration.observe(durationMs / 1000)
    },
  }
}
