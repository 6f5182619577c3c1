import Router from '@koa/router'
import type { Context } from 'koa'
import type { Database } from '../database/connect.ts'
import { pendingMigrations } from '../database/migrate.ts'
import type { Keyring } from '../keys/signing-keys.ts'
import type { RequestState } from './request-id.ts'

/**
 * Live: the process answers. Ready: the database answers, its schema is current, and the process is not shutting down.
 */
export const health = ({
  database,
  keyring,
  isStopping,
}: {
  database: () => Database | undefined
  keyring: () => Keyring | undefined
  isStopping: () => boolean
}) => {
  const router = new Router<RequestState>()

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

  return router.routes()
}

export const notReady = (ctx: Pick<Context, 'status' | 'body'>, reason: string): void => {
  ctx.status = 503
  ctx.body = { status: 'not ready', reason }
}
