import cluster, { type Worker } from 'node:cluster'
import { realpathSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { AggregatorRegistry, type MetricObjectWithValues, type MetricValue, Registry } from 'prom-client'
import type { Log } from './log.ts'
import { otherRelease, release, untilItMayRun } from './release.ts'

// One parent and several processes of one server, which share its port. The parent handles no requests, so that it can
// always start another process.

type Metrics = MetricObjectWithValues<MetricValue<string>>[]

/** The messages between parent and processes. */
type Message =
  | { kind: 'ready'; release: string }
  /** From a process: asks for the metrics of all. */
  | { kind: 'metrics of all'; request: number }
  | { kind: 'metrics of all are'; request: number; text: string }
  /** From the parent: asks a process for its metrics, and one for the database's. */
  | { kind: 'metrics'; round: number; isAll: boolean }
  | { kind: 'metrics are'; round: number; metrics: Metrics }

const FIRST_REST_MS = 1_000
const LONGEST_REST_MS = 30_000
/** A process that served for this long before it ended is restarted without a longer delay. */
const WELL_MS = 60_000
/** A process ends within 28 s of SIGTERM by itself. */
const SHUTDOWN_LIMIT_MS = 29_000
/** A process that does not answer in this time is left out of the metrics. */
const METRICS_MS = 2_000

/**
 * Starts this program `count` times, and again whenever one ends: first after 1 s, later after up to 30 s. The first
 * starts alone until it is ready, because what prevents one prevents all. Passes SIGTERM, SIGINT and SIGHUP to all, and
 * resolves when all have ended: 'failed' if the first could not start, and 'replaced' if they were ended because
 * another release was installed in place of this one.
 */
export const runProcesses = async (count: number, log: Log): Promise<'stopped' | 'failed' | 'replaced'> => {
  const stopping = new AbortController()
  const stop = () => {
    if (!stopping.signal.aborted) log.info('shutting down')
    stopping.abort()
  }
  for (const signal of STOP_SIGNALS) process.on(signal, stop)
  // Not the link to a release, which may be changed: a process starts others of its own release.
  cluster.setupPrimary({ exec: realpathSync(process.argv[1]!) })
  answerForAll()
  const { signal } = stopping
  const { promise: firstIsReady, resolve: onReady } = Promise.withResolvers<true>()
  let isReplaced = false
  const heard = {
    onReady,
    onReplaced: () => {
      isReplaced = true
      stop()
    },
  }
  const first = keepRunning(log, signal, heard)
  const hasStarted = await Promise.race([firstIsReady, first])
  if (!hasStarted) return 'failed'
  await Promise.all([first, ...Array.from({ length: count - 1 }, () => keepRunning(log, signal, heard))])
  return isReplaced ? 'replaced' : 'stopped'
}

/**
 * Keeps one process running until `stopping`.
 *
 * @param onReady called when the process is ready
 * @param onReplaced called when another release was installed in place of this one, and can run
 * @returns false if it ended with an error and was never ready
 */
const keepRunning = async (
  log: Log,
  stopping: AbortSignal,
  { onReady, onReplaced }: { onReady: (isReady: true) => void; onReplaced: () => void },
): Promise<boolean> => {
  let wasReady = false
  for (let restMs = FIRST_REST_MS; !stopping.aborted; restMs = Math.min(2 * restMs, LONGEST_REST_MS)) {
    const other = otherRelease()
    if (other !== undefined) {
      log.error({ reason: other }, 'no process is started')
      await untilItMayRun(log, stopping)
      onReplaced()
      return true
    }
    const worker = cluster.fork()
    const startedAt = performance.now()
    worker.on('message', (message: Message) => {
      if (message.kind !== 'ready') return
      // Installed meanwhile: the next round finds it on the disk.
      if (message.release !== release) return worker.process.kill('SIGTERM')
      wasReady = true
      onReady(true)
    })
    const { code, signal } = await ended(worker, stopping)
    if (stopping.aborted) return true
    if (!wasReady && code !== null && code !== 0) return false
    if (performance.now() - startedAt > WELL_MS) restMs = FIRST_REST_MS
    log.error({ process: worker.id, pid: worker.process.pid, code, signal, restMs }, 'a process has ended')
    await sleep(restMs, undefined, { signal: stopping }).catch(() => {})
  }
  return true
}

/** Resolves to how a process ends; passes `stopping` on to it. */
const ended = async (worker: Worker, stopping: AbortSignal) => {
  let limit: NodeJS.Timeout | undefined
  const end = () => {
    worker.process.kill('SIGTERM')
    limit = setTimeout(() => worker.process.kill('SIGKILL'), SHUTDOWN_LIMIT_MS)
  }
  stopping.addEventListener('abort', end)
  const exit = await new Promise<{ code: number | null; signal: string | null }>(resolve =>
    worker.once('exit', (code, signal) => resolve({ code, signal })),
  )
  stopping.removeEventListener('abort', end)
  clearTimeout(limit)
  return exit
}

/** In the parent: answers each process that asks with the metrics of all. */
const answerForAll = (): void => {
  const rounds = new Map<number, { metrics: Metrics[]; awaited: Set<number>; done: () => void }>()
  let round = 0

  const gather = async (): Promise<string> => {
    const number = ++round
    const workers = Object.values(cluster.workers ?? {}).filter(worker => worker?.isConnected())
    const metrics: Metrics[] = []
    const { promise: all, resolve: done } = Promise.withResolvers<void>()
    rounds.set(number, { metrics, awaited: new Set(workers.map(worker => worker!.id)), done })
    // The database's metrics are the same for all, so one process queries them.
    for (const [n, worker] of workers.entries()) tell(worker!, { kind: 'metrics', round: number, isAll: n === 0 })
    const late = setTimeout(done, METRICS_MS)
    await all
    clearTimeout(late)
    rounds.delete(number)
    return AggregatorRegistry.aggregate(metrics).metrics()
  }

  cluster.on('message', (worker, message: Message) => {
    if (message.kind === 'metrics of all') {
      const { request } = message
      gather().then(text => tell(worker, { kind: 'metrics of all are', request, text }))
    }
    if (message.kind === 'metrics are') {
      const waiting = rounds.get(message.round)
      if (!waiting?.awaited.delete(worker.id)) return
      waiting.metrics.push(message.metrics)
      if (waiting.awaited.size === 0) waiting.done()
    }
  })
}

/** A process that is ending receives nothing. */
const tell = (to: Pick<Worker, 'send'>, message: Message): void => {
  to.send(message, () => {})
}

/** A closed terminal sends SIGHUP. */
export const STOP_SIGNALS = ['SIGTERM', 'SIGINT', 'SIGHUP'] as const

/** Whether this is one of several processes. */
export const isOneOfSeveral = cluster.isWorker

/** Whether this process starts before its siblings, which listen on the same port. */
export const isFirstProcess = (): boolean => !cluster.worker || cluster.worker.id === 1

/** The number of the process; its replacement has another. */
export const processNumber = (): number | undefined => cluster.worker?.id

/** Tells the parent that this process is ready. */
export const tellReady = (): void => {
  if (cluster.worker) tell(cluster.worker, { kind: 'ready', release })
}

/** Lets this process end when it has no more work. */
export const leaveParent = (): void => {
  cluster.worker?.disconnect()
}

/** The metrics of this process, or of all processes together, with the database's, in Prometheus' text format. */
export const createExposition = (registry: Registry, shared: Registry): (() => Promise<string>) => {
  const own = cluster.worker
  const all = (): Registry => Registry.merge([registry, shared])
  if (!own) return () => all().metrics()
  const asked = new Map<number, (text: string) => void>()
  let requests = 0
  process.on('message', async (message: Message) => {
    if (message.kind === 'metrics') {
      const asked = message.isAll ? all() : registry
      tell(own, { kind: 'metrics are', round: message.round, metrics: await asked.getMetricsAsJSON() })
    }
    if (message.kind === 'metrics of all are') {
      asked.get(message.request)?.(message.text)
      asked.delete(message.request)
    }
  })
  return () =>
    new Promise(resolve => {
      const request = ++requests
      asked.set(request, resolve)
      tell(own, { kind: 'metrics of all', request })
    })
}
