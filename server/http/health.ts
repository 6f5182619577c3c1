import { setTimeout as sleep } from 'node:timers/promises'
import Router from '@koa/router'
import type { Context } from 'koa'
import { checkWritable, type Database } from '../database/connect.ts'
import { schemaFault } from '../database/migrate.ts'
import type { Keyring } from '../keys/signing-keys.ts'
import type { RequestState } from './request-id.ts'
import type { ServerState } from './state.ts'

/** The least time between two checks of the database, however often a client asks. */
const ASKED_EACH_MS = 1_000
/** A database that takes longer does not answer: probes give up after 2 s (deploy/kubernetes). */
const ANSWERS_WITHIN_MS = 1_500

const SILENT = 'the database does not answer'

/**
 * Serves health checks. Live: the process answers. Ready: the database can be written, its schema is current, and the
 * process is not shutting down.
 */
export const health = ({
  state,
  keyring,
  answersWithinMs = ANSWERS_WITHIN_MS,
}: {
  state: Pick<ServerState, 'database' | 'isOpen' | 'isStopping' | 'fault'>
  keyring: () => Keyring | undefined
  answersWithinMs?: number
}) => {
  const router = new Router<RequestState>()
  /** The last check; another begins only when it has ended, so that a silent database keeps one connection. */
  let check: { at: number; isDone: boolean; fault: Promise<string | undefined> } | undefined

  const begin = (connected: Database) => {
    const begun = { at: performance.now(), isDone: false, fault: databaseFault(connected) }
    begun.fault.finally(() => {
      begun.isDone = true
    })
    return begun
  }

  const faultOf = (connected: Database): Promise<string | undefined> => {
    if (!check || (check.isDone && performance.now() - check.at > ASKED_EACH_MS)) check = begin(connected)
    return Promise.race([check.fault, sleep(answersWithinMs, SILENT, { ref: false })])
  }

  router.get('/livez', ctx => {
    ctx.body = { status: 'live' }
  })

  router.get('/readyz', async ctx => {
    if (state.isStopping) return notReady(ctx, 'shutting down')
    const connected = state.database
    if (!connected) return notReady(ctx, SILENT)
    const fault = await faultOf(connected)
    if (fault) return notReady(ctx, fault)
    const unfit = state.fault?.() ?? keyring()?.fault()
    if (unfit) return notReady(ctx, unfit)
    if (!keyring()) return notReady(ctx, 'the signing keys are not loaded yet')
    if (!state.isOpen) return notReady(ctx, 'it does not listen yet')
    ctx.body = { status: 'ready' }
  })

  return router.routes()
}

const databaseFault = async (connected: Database): Promise<string | undefined> => {
  try {
    const fault = await schemaFault(connected)
    if (fault) return fault
  } catch {
    return SILENT
  }
  return checkWritable(connected).then(
    () => undefined,
    () => 'the database cannot be written',
  )
}

export const notReady = (ctx: Pick<Context, 'status' | 'body'>, reason: string): void => {
  ctx.status = 503
  ctx.body = { status: 'not ready', reason }
}
