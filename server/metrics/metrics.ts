import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'
import { timeOfId } from '../../shared/time.ts'
import { type Clock, machineAheadMs } from '../clock.ts'
import type { Database } from '../database/connect.ts'
import type { AttemptResult } from '../delivery/outcome.ts'
import type { Waits } from '../delivery/pull/waits.ts'
import type { DeliveryWatch } from '../delivery/watch.ts'
import { databaseFacts } from './database-facts.ts'
import { watchEventLoop } from './event-loop.ts'
import { watchPool } from './pools.ts'
import { worstWebhooks } from './worst-webhooks.ts'

export type Metrics = ReturnType<typeof createMetrics>

/** One request to the API, answered. */
export type AnsweredRequest = {
  /** The requested field, `several`, or `none` if the request did not get that far. */
  operation: string
  /** `OK`, or the code of the first error. */
  code: string
  /** The reason of a refusal; empty for none. */
  reason: string
  durationMs: number
}

/** The most labels of a metric about clients. */
const MOST_CLIENTS = 20
/** Buckets in seconds, for operations that normally take milliseconds. */
const SHORT = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10]
const ATTEMPT = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15]
const DELAY = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 15, 60, 300, 3600]

/**
 * The metrics of a process in `registry`, and those of the database in `shared`. The latter are the same for every
 * process, so one of several that share a port reports them.
 */
export const createMetrics = () => {
  const registry = new Registry()
  const shared = new Registry()
  collectDefaultMetrics({ register: registry, eventLoopMonitoringPrecision: 500 })
  // prom-client samples this with a timer that would need to fire every few milliseconds; ours replaces it.
  for (const name of registry.getMetricsAsArray().map(metric => metric.name)) {
    if (/^nodejs_eventloop_lag_/.test(name)) registry.removeSingleMetric(name)
  }
  const readersEnded = new Counter({
    name: 'tidings_readers_ended_total',
    help: 'Processes that answer queries and ended or had to be ended in the middle of one.',
    registers: [registry],
  })
  const eventLoop = watchEventLoop(registry)
  const read = (name: string, help: string, value: () => number, aggregator: 'sum' | 'average' = 'sum'): void => {
    const collect = function (this: Gauge): void {
      this.set(value())
    }
    new Gauge({ name, help, registers: [registry], aggregator, collect })
  }
  return {
    registry,
    shared,
    /** Compares the machine's clock with this one from now on. */
    compareWith(clock: Clock): void {
      const help = "How far this machine's clock is ahead of the database's, which Tidings uses."
      read('tidings_clock_offset_seconds', help, () => machineAheadMs(clock) / 1000, 'average')
    },
    /** Counts the clients that wait for deliveries from now on. */
    watchWaits(byClient: () => ReturnType<Waits['byClient']>): void {
      new Gauge({
        name: 'tidings_pull_clients_waiting',
        help:
          'Requests that wait in takeDeliveries at present, by access token and address: ' +
          'the twenty with the most, and the others together.',
        labelNames: ['access_token', 'address'],
        registers: [registry],
        collect() {
          this.reset()
          const clients = byClient().toSorted((a, b) => b.waiting - a.waiting)
          const others = clients.slice(MOST_CLIENTS).reduce((sum, { waiting }) => sum + waiting, 0)
          for (const { accessToken, address, waiting } of clients.slice(0, MOST_CLIENTS)) {
            this.inc({ access_token: accessToken, address }, waiting)
          }
          if (others > 0 || clients.length === 0) this.inc({ access_token: '', address: '' }, others)
        },
      })
    },
    /** The observer of deliveries. */
    delivery: deliveryMetrics(registry),
    answered: requestMetrics(registry),
    ...schedulerMetrics(registry),
    readerEnded: (): void => readersEnded.inc(),
    /** @param name the user of the connections: `api` or `delivery` */
    watchPool: (name: string, database: Database) => watchPool(registry, name, database),
    /** Adds the database's metrics, queried when they are scraped. */
    askOf: (database: Database, clock: Clock, retentionDays: number) =>
      databaseFacts(shared, { database, clock, retentionDays }),
    stop: () => eventLoop.stop(),
  }
}

const deliveryMetrics = (registry: Registry): DeliveryWatch => {
  const attempts = new Counter({
    name: 'tidings_attempts_total',
    help:
      "Delivery attempts, by the delivery's status afterwards (pending: it is retried) and by the attempt's result: " +
      '429, the class of another status code, or the reason of the failure.',
    labelNames: ['outcome', 'result'],
    registers: [registry],
  })
  const duration = new Histogram({
    name: 'tidings_attempt_duration_seconds',
    help: 'Time from sending a delivery to its answer: how long endpoints take.',
    buckets: ATTEMPT,
    registers: [registry],
  })
  const delay = new Histogram({
    name: 'tidings_delivery_delay_seconds',
    help: 'Time from the creation of a delivery to its first attempt, without recovered deliveries.',
    buckets: DELAY,
    registers: [registry],
  })
  const worst = worstWebhooks(registry)
  return {
    attempted({ job, startedAt, durationMs, result, outcome }) {
      attempts.inc({ outcome: outcome.status, result: kindOf(result) })
      duration.observe(durationMs / 1000)
      worst.attempted(job.webhookId, outcome.status === 'delivered')
      if (job.attempt === 1 && !job.recovered) delay.observe(Math.max(0, startedAt - timeOfId(job.deliveryId)) / 1000)
    },
    ...queueMetrics(registry),
  }
}

const queueMetrics = (registry: Registry): Pick<DeliveryWatch, 'claimed' | 'recorded'> => {
  const claims = new Histogram({
    name: 'tidings_claim_duration_seconds',
    help: 'Time that a claim of due deliveries takes in the database.',
    buckets: SHORT,
    registers: [registry],
  })
  const settles = new Histogram({
    name: 'tidings_settle_duration_seconds',
    help: 'Time to record a batch of attempts in the database, including retries.',
    buckets: SHORT,
    registers: [registry],
  })
  const takeovers = new Counter({
    name: 'tidings_lease_takeovers_total',
    help: 'Claimed deliveries whose lease had run out under another process, which died or lost its database.',
    registers: [registry],
  })
  return {
    claimed(seconds, takenOver) {
      claims.observe(seconds)
      takeovers.inc(takenOver)
    },
    recorded: seconds => settles.observe(seconds),
  }
}

const requestMetrics = (registry: Registry) => {
  const requests = new Counter({
    name: 'tidings_requests_total',
    help:
      'Requests to the API, by the requested field (or several, or none), the code of ' +
      'the first error (or OK), and the reason of a refusal.',
    labelNames: ['operation', 'code', 'reason'],
    registers: [registry],
  })
  const requestDuration = new Histogram({
    name: 'tidings_request_duration_seconds',
    help: 'Time from the head of a request to the API to its answer.',
    labelNames: ['operation'],
    buckets: ATTEMPT,
    registers: [registry],
  })
  return ({ operation, code, reason, durationMs }: AnsweredRequest): void => {
    requests.inc({ operation, code, reason })
    requestDuration.observe({ operation }, durationMs / 1000)
  }
}

const schedulerMetrics = (registry: Registry) => {
  const stepFailures = new Counter({
    name: 'tidings_scheduler_step_failures_total',
    help: 'Failed steps of the scheduler.',
    labelNames: ['step'],
    registers: [registry],
  })
  const healings = new Counter({
    name: 'tidings_webhook_healings_total',
    help: 'Of webhooks that heal themselves: pings answered with 200, pings not so answered, and webhooks recovered.',
    labelNames: ['what'],
    registers: [registry],
  })
  const doneAt = new Map<string, number>()
  new Gauge({
    name: 'tidings_scheduler_step_age_seconds',
    help: 'Time since a step of the scheduler was last completed, by the process that completed it last.',
    labelNames: ['step'],
    registers: [registry],
    aggregator: 'min',
    collect() {
      for (const [step, at] of doneAt) this.set({ step }, (performance.now() - at) / 1000)
    },
  })
  return {
    healing: (what: 'answered' | 'unanswered' | 'recovered'): void => healings.inc({ what }),
    stepDone(step: string, isDone: boolean): void {
      if (isDone) doneAt.set(step, performance.now())
      else stepFailures.inc({ step })
    },
  }
}

const kindOf = (result: AttemptResult): string => {
  if (result.kind === 'failure') return result.reason
  return result.statusCode === 429 ? '429' : `${Math.floor(result.statusCode / 100)}xx`
}
