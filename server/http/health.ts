import Router from '@koa/router'
import type { Context } from 'koa'
import { checkWritable, type Database } from '../database/connect.ts'
import { schemaFault } from '../database/migrate.ts'
import type { Keyring } from '../keys/signing-keys.ts'
import type { RequestState } from './request-id.ts'
import type { ServerState } from './state.ts'

/** The least time between two write checks of the database, however often a client asks. */
const ASKED_EACH_MS = 1_000

/**
 * Serves health checks. Live: the process answers. Ready: the database can be written, its schema is current, and the
 * process is not shutting down.
 */
export const health = ({
  state,
  keyring,
}: {
  state: Pick<ServerState, 'database' | 'isOpen' | 'isStopping' | 'fault'>
  keyring: () => Keyring | undefined
}) => {
  const router = new Router<RequestState>()
  let asked: { at: number; isWritable: Promise<boolean> } | undefined

  const isWritable = (connected: Database): Promise<boolean> => {
    const now = performance.now()
    if (asked && now - asked.at <= ASKED_EACH_MS) return asked.isWritable
    const answer = checkWritable(connected).then(
      () => true,
      () => false,
    )
    asked = { at: now, isWritable: answer }
    return answer
  }

  router.get('/livez', ctx => {
    ctx.body = { status: 'live' }
  })

  router.get('/readyz', async ctx => {
    if (state.isStopping) return notReady(ctx, 'shutting down')
    const connected = state.database
    if (!connected) return notReady(ctx, 'the database does not answer')
    try {
      const fault = await schemaFault(connected)
      if (fault) return notReady(ctx, fault)
    } catch {
      return notReady(ctx, 'the database does not answer')
    }
    if (!(await isWritable(connected))) return notReady(ctx, 'the database cannot be written')
    const unfit = state.fault?.() ?? keyring()?.fault()
    if (unfit) return notReady(ctx, unfit)
    if (!keyring()) return notReady(ctx, 'the signing keys are not loaded yet')
    if (!state.isOpen) return notReady(ctx, 'it does not listen yet')
    ctx.body = { status: 'ready' }
  })

  return router.routes()
}

export const notReady = (ctx: Pick<Context, 'status' | 'body'>, reason: string): void => {
  ctx.status = 503
  ctx.body = { status: 'not ready', reason }
}
