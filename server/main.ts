import { setTimeout as sleep } from 'node:timers/promises'
import pRetry from 'p-retry'
import { type Clock, databaseClock, watchMachineClock } from './clock.ts'
import type { Config } from './config.ts'
import { connect, type Database, isOutage } from './database/connect.ts'
import { pendingMigrations } from './database/migrate.ts'
import { startDeliveryLoop } from './delivery/loop.ts'
import { createNetworkGuard } from './delivery/network-guard.ts'
import { createSender } from './delivery/send.ts'
import type { Service } from './graphql/context.ts'
import { createApp, type ServerState } from './http/app.ts'
import { listen } from './http/listen.ts'
import { createMetrics, type Metrics } from './http/metrics.ts'
import { createSealer } from './keys/seal.ts'
import { openKeyring } from './keys/signing-keys.ts'
import { createLive } from './live/live.ts'
import { type Log, logAllCounted, logSeldom } from './log.ts'
import { createReaders } from './readers/readers.ts'
import { startScheduler } from './scheduler/scheduler.ts'

export type RunningServer = {
  url: string
  /** Resolves when the database answers, its schema is current, and requests are served. */
  ready: Promise<void>
  /** Finishes what is in flight, then lets go of everything. */
  stop(): Promise<void>
}

/** What there is once the database has answered with a current schema. */
type Running = { service: Service; stop(answered: Promise<void>): Promise<void> }

/**
 * Starts a process with the roles that its configuration names. It listens at once, and becomes ready when the database
 * does: one that is down, or not migrated yet, is waited for.
 *
 * @param given.clock in place of the database's clock
 */
export const startServer = async (config: Config, log: Log, given: { clock?: Clock } = {}): Promise<RunningServer> => {
  const metrics = createMetrics()
  const state: ServerState = { isStopping: false }
  const isStopping = () => state.isStopping
  let running: Running | undefined
  const app = createApp({ config, log, metrics, state })
  const http = await listen(app.callback(), config, log)

  const start = async (): Promise<void> => {
    const database = await connectPatiently(config, log, isStopping)
    state.database = database
    await schemaIsCurrent(database, log, isStopping)
    if (isStopping()) return
    const roles = () => startRoles(config, database, log, metrics, given.clock)
    running = await pRetry(roles, {
      ...PATIENCE,
      shouldRetry: ({ error }) => isOutage(error) && !isStopping(),
      onFailedAttempt: ({ error, attemptNumber }) => {
        if (!isOutage(error) || attemptNumber % 30 !== 1) return
        log.warn({ reason: error.message }, 'the database has gone away during the start; trying again')
      },
    })
    state.service = running.service
    log.info({ roles: config.roles, engine: database.dialect.engine }, 'ready')
  }
  const ready = start()
  // Whoever awaits it is told; nobody has to.
  ready.catch(error => log.fatal({ err: error }, 'the server cannot start'))

  return {
    url: config.baseUrl,
    ready,
    async stop() {
      state.isStopping = true
      const closed = new Promise<void>(resolve => http.close(() => resolve()))
      const closing = setInterval(() => http.closeUnused(), 50)
      const answered = Promise.race([closed, sleep(REQUESTS_MS, undefined, { ref: false })])
      await ready.catch(() => {})
      await running?.stop(answered)
      http.closeAllConnections()
      await closed
      clearInterval(closing)
      await state.database?.close()
      logAllCounted(log)
    },
  }
}

const startRoles = async (
  config: Config,
  database: Database,
  log: Log,
  metrics: Metrics,
  givenClock: Clock | undefined,
): Promise<Running> => {
  const sealer = createSealer(config.masterKeys)
  // Whatever callers ask of theirs, deliveries have connections.
  const own = database.dialect.isEmbedded ? undefined : await connect(config.databaseUrl, deliveryConnections(config))
  const ownClock = givenClock ? undefined : await orElse(() => own?.close(), databaseClock(database))
  const clock = givenClock ?? ownClock!
  metrics.compareWith(clock)
  const keyring = await orElse(
    () => Promise.all([own?.close(), ownClock?.stop()]),
    openKeyring(database, sealer, clock),
  )
  const clockWatch = ownClock && watchMachineClock(clock, log)
  // What bounds connections is each webhook's share: two webhooks on one host do not share fate either.
  const sender = createSender({
    guard: createNetworkGuard({ allow: config.allowNetworks }),
    maxConnectionsPerOrigin: 6 * config.concurrency,
    onInside: (error, host) => logSeldom(log, 'warn', error.name, { host, reason: error.message }, 'nothing was sent'),
  })
  const { issuerUrl, retryScheduleMs, concurrency, requireHttps, webhooksPerToken, reportDueDays, retentionDays } =
    config
  const tools = { clock, keyring, sender, issuerUrl, retryScheduleMs }
  const live = createLive({ database, clock, log })
  const loop = startDeliveryLoop({
    ...tools,
    database: own ?? database,
    log,
    concurrency,
    claims: config.roles.includes('delivery'),
    onSettled: settlement => {
      metrics.settled(settlement)
      live.hurry(settlement.job.deliveryId)
    },
  })
  const scheduler = config.roles.includes('scheduler')
    ? startScheduler({ database: own ?? database, clock, log, reportDueDays, retentionDays, onEvents: loop.wake })
    : undefined
  const readers = createReaders(config.databaseUrl, database, log)
  if (config.roles.includes('api')) readers.warm()
  return {
    service: { database, sealer, tools, loop, readers, live, requireHttps, webhooksPerToken, reportDueDays },
    async stop(answered) {
      live.stop()
      // A request may be in the middle of a ping, or of its transaction.
      await Promise.all([scheduler?.stop(), loop.stop(), answered])
      readers.stop()
      await sender.close()
      keyring.stop()
      clockWatch?.stop()
      ownClock?.stop()
      await own?.close()
    },
  }
}

/** What is awaited, or its error when `undo` has been done. */
const orElse = async <T>(undo: () => unknown, work: Promise<T>): Promise<T> => {
  try {
    return await work
  } catch (error) {
    await undo()
    throw error
  }
}

/** Shutting down, requests get so long to be answered. */
const REQUESTS_MS = 20_000

const PATIENCE = { retries: Number.POSITIVE_INFINITY, minTimeout: 1_000, factor: 1 }

/** Longer than any statement takes that the server makes. */
const SILENCE_MS = 30_000
/**
 * By default a claim, a settle, an extension of leases, a look at what waits, a change of a webhook and the scheduler
 * at once. Who waits for a lock is in the way of others that come for it: not for long.
 */
const deliveryConnections = ({ connections }: Config) => ({
  poolSize: connections.delivery,
  silenceMs: SILENCE_MS,
  lockWaitS: 1,
})

const connectPatiently = (config: Config, log: Log, isStopping: () => boolean): Promise<Database> =>
  pRetry(() => connect(config.databaseUrl, { poolSize: config.connections.api, silenceMs: SILENCE_MS }), {
    ...PATIENCE,
    shouldRetry: () => !isStopping(),
    onFailedAttempt: ({ error, attemptNumber }) => {
      if (attemptNumber % 30 === 1) log.warn({ reason: error.message }, 'the database does not answer; trying again')
    },
  })

const schemaIsCurrent = (database: Database, log: Log, isStopping: () => boolean): Promise<void> =>
  pRetry(
    async () => {
      const pending = await pendingMigrations(database)
      if (pending.length > 0) throw new Error(`the schema lacks ${pending.join(', ')}`)
    },
    {
      ...PATIENCE,
      shouldRetry: () => !isStopping(),
      onFailedAttempt: ({ error, attemptNumber }) => {
        if (attemptNumber % 30 !== 1) return
        const isAway = isOutage(error)
        log.warn(
          { reason: error.message },
          isAway ? 'the database has gone away; trying again' : 'waiting for the schema: run `tidings server migrate`',
        )
      },
    },
  )
