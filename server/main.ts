import { setTimeout as sleep } from 'node:timers/promises'
import pRetry, { AbortError } from 'p-retry'
import { type Clock, databaseClock, watchMachineClock } from './clock.ts'
import type { Config } from './config.ts'
import { connect, type Database } from './database/connect.ts'
import { newerSchema, schemaState, sideBySideUntil } from './database/migrate.ts'
import { isPassing } from './database/patience.ts'
import type { AttemptTools } from './delivery/attempt.ts'
import { type DeliveryLoop, startDeliveryLoop } from './delivery/loop.ts'
import { createNetworkGuard } from './delivery/network-guard.ts'
import { pingOnce } from './delivery/ping.ts'
import { PullPings } from './delivery/pull/pings.ts'
import { recordClients } from './delivery/pull/presence.ts'
import { Waits } from './delivery/pull/waits.ts'
import { createSender } from './delivery/send.ts'
import { GROUPS_AT_ONCE } from './domain/group-commit.ts'
import { createSubmissions } from './domain/submissions.ts'
import type { Service } from './graphql/context.ts'
import { createApp, createOperationsApp } from './http/app.ts'
import { createDoor } from './http/listen.ts'
import type { ServerState } from './http/state.ts'
import { joinProcesses, KeyOrderError, type Membership } from './keys/master-keys.ts'
import { createSealer } from './keys/seal.ts'
import { openKeyring } from './keys/signing-keys.ts'
import { Live, type LiveTimes } from './live/live.ts'
import { type Log, logAllCounted, logSeldom } from './log.ts'
import { createMetrics, type Metrics } from './metrics/metrics.ts'
import { Readers, type ReaderTerms } from './readers/readers.ts'
import { createReadiness } from './readiness.ts'
import { untilItMayRun } from './release.ts'
import { startHealer } from './scheduler/healer.ts'
import { startScheduler } from './scheduler/scheduler.ts'
import { loadTracer } from './tracing/load.ts'
import { traceWith } from './tracing/tracing.ts'

export type RunningServer = {
  url: string
  /** Resolves when the database answers, its schema is current, and requests are served. */
  ready: Promise<void>
  /** Resolves when another release was installed in place of this one and can run: then this one should be ended. */
  replaced: Promise<void>
  /** Finishes requests and deliveries in flight, then releases everything. */
  stop(): Promise<void>
}

type Given = { clock?: Clock; liveTimes?: Partial<LiveTimes>; readerTerms?: ReaderTerms }
/** `onReplaced`: another release was installed in place of this one. */
type Heard = { onReplaced(): void }

/** The services that exist once the database has answered with a current schema. */
type Running = { service: Service; stop(answered: Promise<void>): Promise<void> }

/**
 * Starts a process with the configured roles. It waits for a database that is down or not migrated yet, and is ready
 * when the database is. It listens when it is ready, so that clients reach another server before. Health and metrics
 * with an address of their own listen at once; without one, the server listens as soon as it has to wait for something,
 * and says for what.
 *
 * @param given.clock replaces the database's clock
 */
export const startServer = async (config: Config, log: Log, given: Given = {}): Promise<RunningServer> => {
  const metrics = createMetrics()
  const tracer = await loadTracer(process.env, log)
  if (tracer) traceWith(tracer)
  const state: ServerState = { isOpen: false, isStopping: false, isClosed: false }
  const isStopping = () => state.isStopping
  let running: Running | undefined
  let membership: Membership | undefined
  const readiness = createReadiness({ state, log })
  const tools = { config, log, metrics, state, readiness }
  const door = createDoor(createApp(tools).callback(), config, log)
  const operations = config.operations && createDoor(createOperationsApp(tools).callback(), config.operations, log)
  await operations?.open()
  /** Called when there is something to wait for. */
  const waits = Promise.withResolvers<void>()
  const onWait = (): void => waits.resolve()

  const stopping = new AbortController()
  const replaced = Promise.withResolvers<void>()
  const onReplaced = (): void => void untilItMayRun(log, stopping.signal).then(replaced.resolve)

  const start = async (): Promise<void> => {
    const database = await connectPatiently(config, log, isStopping, onWait)
    state.database = database
    await schemaIsCurrent(database, log, isStopping, onWait)
    if (isStopping()) return
    membership = await joinPatiently(config, database, log, state, onWait)
    if (!membership) return
    const { id: processId, fault } = membership
    state.fault = () => fault() ?? running?.service.readers.fault()
    const roles = () => startRoles(config, database, log, metrics, { ...given, onReplaced, processId })
    running = await pRetry(roles, {
      ...PATIENCE,
      shouldRetry: ({ error }) => isPassing(error) && !isStopping(),
      onFailedAttempt: ({ error, attemptNumber }) => {
        onWait()
        if (!isPassing(error) || attemptNumber % 30 !== 1) return
        log.warn({ reason: error.message }, 'the database has gone away during the start; trying again')
      },
    })
    state.service = running.service
    await door.open()
    state.isOpen = true
    log.info({ roles: config.roles, engine: database.dialect.engine }, 'ready')
  }
  const ready = start()
  // A caller that awaits it sees the error; nobody has to await it.
  ready.catch(error => {
    // An address in use is no fault of the program: who started it says which.
    if (error.syscall !== 'listen') log.fatal({ err: error }, 'the server cannot start')
  })
  const stop = async (): Promise<void> => {
    state.isStopping = true
    stopping.abort()
    readiness.stop()
    const doorClosed = Promise.withResolvers<void>()
    const closed = door.close(config.behindProxy ? PROXY_IDLE_MS : 0, () => {
      state.isClosed = true
      doorClosed.resolve()
    })
    // A process that is busy with other work meanwhile accepts late, and resets what it has not accepted.
    await Promise.race([doorClosed.promise, closed])
    const answered = Promise.race([closed, sleep(REQUESTS_MS, undefined, { ref: false })])
    await ready.catch(() => {})
    await running?.stop(answered)
    await membership?.leave()
    door.end()
    await closed
    await state.database?.close()
    const unwatched = operations?.close(0)
    operations?.end()
    await unwatched
    metrics.stop()
    await Promise.race([tracer?.stop().catch(() => {}), sleep(TRACES_MS, undefined, { ref: false })])
    logAllCounted(log)
  }
  if (!operations) {
    const isUnderWay = await Promise.race([ready.then(isSo, isNotSo), waits.promise.then(isSo), afterSilence()])
    if (isUnderWay) await orElse(stop, door.open())
  }

  return { url: config.baseUrl, ready, replaced: replaced.promise, stop }
}

const isSo = () => true
const isNotSo = () => false
const afterSilence = () => sleep(SILENT_START_MS, true, { ref: false })

const startRoles = async (
  config: Config,
  database: Database,
  log: Log,
  metrics: Metrics,
  given: Given & Heard & { processId: string },
): Promise<Running> => {
  const base = await openBase(config, database, log, given.clock)
  const { sealer, own, grouped, clock, keyring } = base
  metrics.compareWith(clock)
  metrics.watchPool('api', database)
  if (own) metrics.watchPool('delivery', own)
  if (grouped) metrics.watchPool('group', grouped)
  metrics.askOf(database, clock, config.retentionDays)
  // Each webhook's share limits its connections, so that two webhooks on one host do not affect each other.
  const sender = createSender({
    guard: createNetworkGuard({ allow: config.allowNetworks }),
    maxConnectionsPerOrigin: 6 * config.concurrency,
    onInside: (error, host) => logSeldom(log, 'warn', error.name, { host, reason: error.message }, 'nothing was sent'),
  })
  const { issuerUrl, retryScheduleMs, requireHttps, webhooksPerToken, reportDueDays } = config
  const tools = { clock, keyring, sealer, sender, issuerUrl, retryScheduleMs }
  const live = new Live({ database, clock, log }, given.liveTimes)
  const ofDeliveries = { database: own ?? database, log, metrics, tools }
  const { waits, clients, pings, loop } = startDelivering(config, { ...ofDeliveries, live, processId: given.processId })
  const scheduled = config.roles.includes('scheduler')
    ? startScheduled(config, { ...ofDeliveries, loop, pings })
    : undefined
  const ofReaders = { onReplaced: given.onReplaced, onEnded: metrics.readerEnded }
  const readers = new Readers(config.databaseUrl, database, log, ofReaders, given.readerTerms)
  const submissions = createSubmissions({
    ...{ database: grouped ?? database, now: clock.now, dueDays: reportDueDays },
    ...{ afterCommitOf: loop.afterCommit, wake: () => loop.wake() },
  })
  return {
    service: {
      ...{ database, sealer, tools, loop, pull: { waits, pings }, readers, live, submissions },
      ...{ requireHttps, webhooksPerToken, reportDueDays, sideBySideUntil: base.besideUntil },
    },
    async stop(answered) {
      live.stop()
      waits.stop()
      await clients.stop()
      // A request may be in the middle of a ping or a transaction.
      await Promise.all([scheduled?.stop(), loop.stop(), answered])
      readers.stop()
      await sender.close()
      await base.close()
    },
  }
}

/**
 * Opens what the roles work with. What is read from the database comes before what starts: if the database goes away
 * meanwhile, all is repeated.
 */
const openBase = async (config: Config, database: Database, log: Log, givenClock: Clock | undefined) => {
  const sealer = createSealer(config.masterKeys)
  const besideUntil = await sideBySideUntil(database, '0011_audit_log')
  // Deliveries have connections of their own, whatever clients ask for.
  const own = database.dialect.isEmbedded ? undefined : await connect(config.databaseUrl, deliveryConnections(config))
  // One that waits for a lock would make all of a group wait.
  const grouped = own && (await orElse(() => own.close(), connect(config.databaseUrl, GROUP_CONNECTIONS)))
  const closeOwn = () => Promise.all([own?.close(), grouped?.close()])
  const ownClock = givenClock ? undefined : await orElse(closeOwn, databaseClock(database))
  const clock = givenClock ?? ownClock!
  const keyring = await orElse(() => Promise.all([closeOwn(), ownClock?.stop()]), openKeyring(database, sealer, clock))
  const clockWatch = ownClock && watchMachineClock(clock, log)
  const close = async (): Promise<void> => {
    keyring.stop()
    clockWatch?.stop()
    ownClock?.stop()
    await closeOwn()
  }
  return { sealer, besideUntil, own, grouped, clock, keyring, close }
}

/** What everything that sends or queues deliveries works with. */
type OfDeliveries = { database: Database; log: Log; metrics: Metrics; tools: AttemptTools }

/** Starts the delivery loop, and what serves clients that pull. */
const startDelivering = ({ concurrency, roles }: Config, given: OfDeliveries & { live: Live; processId: string }) => {
  const { database, log, metrics, tools, live, processId } = given
  const { clock } = tools
  const waits = new Waits({ database, clock, log })
  metrics.watchWaits(() => waits.byClient())
  const clients = recordClients({ database, log, processId, clients: () => waits.byWebhook() })
  const pings = new PullPings({ database, clock, look: id => waits.look(id) })
  const loop = startDeliveryLoop({
    ...tools,
    ...{ database, log, concurrency, waits },
    claims: roles.includes('delivery'),
    watch: {
      ...metrics.delivery,
      attempted(settlement) {
        metrics.delivery.attempted(settlement)
        live.hurry(settlement.job.deliveryId)
      },
    },
  })
  return { waits, clients, pings, loop }
}

/** Starts what falls due, and the healing of webhooks. */
const startScheduled = (
  { reportDueDays, retentionDays, auditDays }: Config,
  given: OfDeliveries & { loop: DeliveryLoop; pings: PullPings },
) => {
  const { database, log, metrics, tools, loop, pings } = given
  const { clock } = tools
  const onEvents = () => loop.wake()
  const scheduler = startScheduler({
    ...{ database, clock, log, reportDueDays, retentionDays, auditDays, onEvents },
    onStep: metrics.stepDone,
  })
  const healer = startHealer({
    ...{ database, clock, log },
    ping: webhook => pingOnce(tools, pings, webhook),
    onQueued: onEvents,
    onHealing: metrics.healing,
  })
  return { stop: () => Promise.all([scheduler.stop(), healer.stop()]) }
}

/** Awaits a promise; on an error, first runs `undo`. */
const orElse = async <T>(undo: () => unknown, work: Promise<T>): Promise<T> => {
  try {
    return await work
  } catch (error) {
    await undo()
    throw error
  }
}

/** A start that takes longer counts as waiting. */
const SILENT_START_MS = 5_000
/**
 * How long idle connections stay open during shutdown: longer than a proxy keeps them by `deploy/nginx.conf` and
 * `deploy/Caddyfile`.
 */
const PROXY_IDLE_MS = 6_000
/** The time for the last spans to be sent during shutdown. */
const TRACES_MS = 2_000
/** The time for requests to be answered during shutdown. */
const REQUESTS_MS = 20_000

const PATIENCE = { retries: Number.POSITIVE_INFINITY, minTimeout: 1_000, factor: 1 }

/** Longer than any statement of the server takes. */
const SILENCE_MS = 30_000
/**
 * The default suffices for a claim, a settle, an extension of leases, a recheck, a change of a webhook and the
 * scheduler at once. Lock waits are short, because a waiting transaction blocks others.
 */
const deliveryConnections = ({ connections }: Config) => ({
  poolSize: connections.delivery,
  silenceMs: SILENCE_MS,
  lockWaitS: 1,
  isPacking: true,
})

/** For requests; on SQLite, which has one connection, for everything. */
const apiConnections = ({ connections }: Config) => ({
  poolSize: connections.api,
  silenceMs: SILENCE_MS,
  isServing: true,
})

/** For changes that share transactions. */
const GROUP_CONNECTIONS = { poolSize: GROUPS_AT_ONCE, silenceMs: SILENCE_MS, lockWaitS: 1, isPacking: true }

/** Waits until this process matches the others; `state.fault` says what prevents it. */
const joinPatiently = (
  config: Config,
  database: Database,
  log: Log,
  state: ServerState,
  onWait: () => void,
): Promise<Membership | undefined> => {
  const join = async (): Promise<Membership | undefined> =>
    state.isStopping ? undefined : joinProcesses(database, { ...config, log })
  return pRetry(join, {
    ...PATIENCE,
    shouldRetry: ({ error }) => (error instanceof KeyOrderError ? error.mayPass : isPassing(error)),
    onFailedAttempt: ({ error, attemptNumber }) => {
      onWait()
      state.fault = () => error.message
      const [mayPass, hint] = error instanceof KeyOrderError ? [error.mayPass, error.hint] : [isPassing(error)]
      if (!mayPass || attemptNumber % 30 !== 1) return
      log.error({ reason: error.message, hint }, 'not let in among the other processes; trying again')
    },
  })
}

const connectPatiently = (config: Config, log: Log, isStopping: () => boolean, onWait: () => void): Promise<Database> =>
  pRetry(() => connect(config.databaseUrl, apiConnections(config)), {
    ...PATIENCE,
    shouldRetry: () => !isStopping(),
    onFailedAttempt: ({ error, attemptNumber }) => {
      onWait()
      if (attemptNumber % 30 === 1) log.warn({ reason: error.message }, 'the database does not answer; trying again')
    },
  })

const schemaIsCurrent = (database: Database, log: Log, isStopping: () => boolean, onWait: () => void): Promise<void> =>
  pRetry(
    async () => {
      const { pending, tooNew } = await schemaState(database)
      if (tooNew.length > 0) throw new AbortError(newerSchema(tooNew))
      if (pending.length > 0) throw new Error(`the schema lacks ${pending.join(', ')}`)
    },
    {
      ...PATIENCE,
      shouldRetry: () => !isStopping(),
      onFailedAttempt: ({ error, attemptNumber }) => {
        onWait()
        if (attemptNumber % 30 !== 1) return
        const isAway = isPassing(error)
        log.warn(
          { reason: error.message },
          isAway ? 'the database has gone away; trying again' : 'waiting for the schema: run `tidings server migrate`',
        )
      },
    },
  )
