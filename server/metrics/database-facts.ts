import { statfsSync } from 'node:fs'
import { Gauge, type Registry } from 'prom-client'
import { webhookStatuses } from '../../shared/vocabulary.ts'
import type { Clock } from '../clock.ts'
import { checkWritable, type Database, rows } from '../database/connect.ts'
import { wasFull } from '../database/full-disk.ts'
import { headOfEach } from '../delivery/queue.ts'
import { NEVER } from '../domain/missed.ts'
import { ASIDE_TIME, PULL_TIME } from '../domain/pull-time.ts'
import { otherWork } from '../event-loop.ts'

// Metrics that only the database knows. However often they are scraped, a process queries the database rarely, and less
// often the longer it takes. Each statement reads the head of an index or a bounded part of one.

/** The age up to which values are reused. */
const FRESH_MS = 10_000
/** Asking takes this part of the time at most, but for where the rest between would be longer than this. */
const LARGEST_PART = 1 / 100
const LONGEST_REST_MS = 60_000
/** How long a scrape waits for the database before it gets the last values. */
const PATIENCE_MS = 1_000
/** The age up to which the last values are shown. */
const STALE_MS = 120_000
/** Queue rows counted at most; beyond it the engine estimates, if it can. */
const MOST_COUNTED = 50_000
/** A webhook is behind if a delivery has been due for longer than this. */
const BEHIND_MS = 60_000
const DAY_MS = 24 * 3600 * 1000

type Facts = {
  oldestDueMs: number
  due: number
  queued: number
  webhooksBehind: number
  purgeLagMs: number
  webhooks: { status: string; count: number }[]
  healing: number
  bytes: number
  /** Only on an embedded engine, whose disk is this machine's. */
  freeBytes: number | undefined
}

type Tools = { database: Database; clock: Clock; retentionDays: number; mostCounted?: number }

export const askFacts = async ({
  database,
  clock,
  retentionDays,
  mostCounted = MOST_COUNTED,
}: Tools): Promise<Facts> => {
  const { knex, dialect } = database
  const now = clock.now()
  const count = async (condition: string, bindings: number[]): Promise<number> => {
    const select = (hint: string) => `SELECT due_at FROM delivery_queue ${hint} ${condition}`
    const bounded = select(dialect.useIndex('delivery_queue_by_due_time'))
    const [counted] = await rows<{ n: number }>(
      knex,
      `SELECT COUNT(*) AS n FROM (${bounded} LIMIT ${mostCounted}) some`,
      bindings,
    )
    const found = Number(counted!.n)
    if (found < mostCounted || dialect.isEmbedded) return found
    // With a forced index MySQL estimates nothing.
    const explained = dialect.explain + select('')
    const [estimated] = await rows<{ rows?: number; estRows?: number }>(knex, explained, bindings)
    return Math.max(found, Math.round(Number(estimated?.rows ?? estimated?.estRows ?? 0)))
  }
  const late = await dueHeads(database, now)
  const [oldest] = await rows<{ created_at: number }>(knex, 'SELECT created_at FROM events ORDER BY created_at LIMIT 1')
  const webhooks = await rows<{ status: string; n: number }>(
    knex,
    'SELECT status, COUNT(*) AS n FROM webhooks GROUP BY status',
  )
  const [healing] = await rows<{ n: number }>(
    knex,
    `SELECT COUNT(*) AS n FROM webhook_recoveries WHERE due_at < ${NEVER}`,
  )
  const [size] = await rows<{ bytes: number | string | null }>(knex, dialect.size)
  const counts = new Map(webhooks.map(({ status, n }) => [status, Number(n)]))
  return {
    oldestDueMs: late.oldest ? now - Number(late.oldest) : 0,
    due: await count('WHERE due_at <= ?', [now]),
    queued: await count('', []),
    webhooksBehind: Number(late.behind ?? 0),
    purgeLagMs: oldest ? Math.max(0, now - retentionDays * DAY_MS - Number(oldest.created_at)) : 0,
    webhooks: webhookStatuses.map(status => ({ status, count: counts.get(status) ?? 0 })),
    healing: Number(healing!.n),
    bytes: Number(size?.bytes ?? 0),
    freeBytes: freeBytesOf(database),
  }
}

const freeBytesOf = ({ knex, dialect }: Database): number | undefined => {
  const { filename } = (knex.client.connectionSettings ?? {}) as { filename?: string }
  if (!dialect.isEmbedded || !filename || filename === ':memory:') return undefined
  const { bavail, bsize } = statfsSync(filename)
  return bavail * bsize
}

type Late = { oldest: number | null; behind: number | null }

/**
 * The first due delivery of each webhook, except deliveries that a receiver asked to delay and those that are being
 * cancelled.
 */
const dueHeads = async (database: Database, now: number): Promise<Late> => {
  const { knex, dialect } = database
  const heldUntil = `CASE WHEN w.held_until < ${PULL_TIME} THEN w.held_until % ${ASIDE_TIME} ELSE w.held_until END`
  const isSendable = `h.epoch = w.epoch AND (w.held_until IS NULL OR ${heldUntil} <= ?)`
  const asked = (heads: string) =>
    `SELECT MIN(h.due_at) AS oldest, COUNT(DISTINCT CASE WHEN h.due_at < ? THEN h.webhook_id END) AS behind
     FROM (${heads}) h JOIN webhooks w ON w.id = h.webhook_id WHERE h.due_at <= ? AND ${isSendable}`
  if (!dialect.isEmbedded) {
    const keys = ['webhook_id', 'epoch', 'recovered']
    const { sql, bindings } = dialect.leastOfEach('delivery_queue', keys, 'due_at', 'delivery_queue_by_webhook')
    const [late] = await rows<Late>(knex, asked(sql), [now - BEHIND_MS, ...(bindings as number[]), now, now])
    return late!
  }
  // Runs in parts, so that the process can do other work in between.
  const due = (await headOfEach(database)).filter(({ dueAt }) => dueAt <= now)
  const sum: Late = { oldest: null, behind: 0 }
  for (let from = 0; from < due.length; from += HEADS_AT_ONCE) {
    const part = due.slice(from, from + HEADS_AT_ONCE)
    const values = part.map(() => 'SELECT ? AS webhook_id, ? AS epoch, ? AS due_at').join(' UNION ALL ')
    const heads = part.flatMap(({ webhookId, epoch, dueAt }) => [webhookId, epoch, dueAt])
    const [late] = await rows<Late>(knex, asked(values), [now - BEHIND_MS, ...heads, now, now])
    sum.oldest = Math.min(sum.oldest ?? Infinity, late!.oldest ?? Infinity)
    sum.behind = (sum.behind ?? 0) + (late!.behind ?? 0)
    await otherWork()
  }
  return sum.oldest === Infinity ? { ...sum, oldest: null } : sum
}

const HEADS_AT_ONCE = 200

/** The latest values, asked for when somebody looks, and for no longer than the database is at rest between. */
class FactsLook {
  isUp = 1
  readonly #tools: Tools
  #latest: { at: number; facts: Facts } | undefined
  #asking: Promise<void> | undefined
  #askAgainAt = 0

  constructor(tools: Tools) {
    this.#tools = tools
  }

  /** The values known by now. */
  async now(): Promise<Facts | undefined> {
    if (performance.now() >= this.#askAgainAt) {
      this.#asking ??= this.#ask().finally(() => {
        this.#asking = undefined
      })
    }
    if (this.#asking) {
      await Promise.race([this.#asking, new Promise(resolve => setTimeout(resolve, PATIENCE_MS).unref())])
    }
    return this.#latest && performance.now() - this.#latest.at < STALE_MS ? this.#latest.facts : undefined
  }

  async #ask(): Promise<void> {
    const startedAt = performance.now()
    let restMs = FRESH_MS
    try {
      this.#latest = { facts: await askFacts(this.#tools), at: performance.now() }
      await checkWritable(this.#tools.database)
      this.isUp = 1
      restMs = Math.max(restMs, Math.min((this.#latest.at - startedAt) / LARGEST_PART, LONGEST_REST_MS))
    } catch {
      // Whoever cannot work logs the outage.
      this.isUp = 0
    }
    this.#askAgainAt = performance.now() + restMs
  }
}

const AT_MOST = `Counted up to ${MOST_COUNTED}, beyond that estimated if the engine can.`

/** Each a gauge: its name, its help and its value. */
const FIGURES: [name: string, help: string, figureOf: (facts: Facts) => number | undefined][] = [
  [
    'tidings_queue_oldest_due_seconds',
    'How long the oldest due delivery has been waiting, except deliveries that a receiver asked to delay.',
    facts => facts.oldestDueMs / 1000,
  ],
  ['tidings_queue_due', `Deliveries that are due now. ${AT_MOST}`, facts => facts.due],
  ['tidings_queue_depth', `Deliveries that are pending, due or not. ${AT_MOST}`, facts => facts.queued],
  [
    'tidings_queue_webhooks_behind',
    `Webhooks with a delivery due for more than ${BEHIND_MS / 1000} s: many if the servers are behind, ` +
      'few if endpoints are.',
    facts => facts.webhooksBehind,
  ],
  [
    'tidings_webhooks_healing',
    'Webhooks that heal themselves and have missed events: they are pinged, or what they missed is being queued.',
    facts => facts.healing,
  ],
  [
    'tidings_database_bytes',
    'The size of the database, with the free space in its files; without logs.',
    facts => facts.bytes,
  ],
  [
    'tidings_database_free_bytes',
    "Free space on the disk of SQLite's file. A database server's own monitoring tells its disk.",
    facts => facts.freeBytes,
  ],
  ['tidings_purge_lag_seconds', 'How far the oldest event is past its retention.', facts => facts.purgeLagMs / 1000],
]

/** Queries the database when `registry` is scraped. */
export const databaseFacts = (registry: Registry, tools: Tools): void => {
  const look = new FactsLook(tools)
  for (const [name, help, figureOf] of FIGURES) {
    new Gauge({
      name,
      help,
      registers: [registry],
      aggregator: 'first',
      async collect() {
        const facts = await look.now()
        const figure = facts && figureOf(facts)
        if (figure === undefined) this.remove()
        else this.set(figure)
      },
    })
  }
  new Gauge({
    name: 'tidings_webhooks',
    help: 'Webhooks by status.',
    labelNames: ['status'],
    registers: [registry],
    aggregator: 'first',
    async collect() {
      const webhooks = (await look.now())?.webhooks ?? []
      this.reset()
      for (const { status, count } of webhooks) this.set({ status }, count)
    },
  })
  new Gauge({
    name: 'tidings_database_up',
    help: 'Whether the database answered and took a write when it was last asked, 1 or 0.',
    registers: [registry],
    aggregator: 'min',
    async collect() {
      await look.now()
      this.set(wasFull(tools.database) ? 0 : look.isUp)
    },
  })
}
