import { randomBytes, randomUUID } from 'node:crypto'
import type { Clock } from '../../server/clock.ts'
import { type Database, rows } from '../../server/database/connect.ts'
import { type DeliveryLoop, startDeliveryLoop } from '../../server/delivery/loop.ts'
import { createNetworkGuard } from '../../server/delivery/network-guard.ts'
import type { Waits } from '../../server/delivery/pull/waits.ts'
import type { Settlement } from '../../server/delivery/queue.ts'
import { createSender } from '../../server/delivery/send.ts'
import { type Credentials, createAccessToken } from '../../server/domain/access-tokens.ts'
import { recordEvent } from '../../server/domain/events.ts'
import type { AttemptRow, DeliveryRow, WebhookRow } from '../../server/domain/resources.ts'
import { createSealer, type Sealer } from '../../server/keys/seal.ts'
import { type Keyring, openKeyring } from '../../server/keys/signing-keys.ts'
import { createLog, type Log } from '../../server/log.ts'
import { RETRY_SCHEDULE_MS } from '../../shared/retry-schedule.ts'
import type { WebhookOrdering, WebhookRecovery, WebhookTransport } from '../../shared/vocabulary.ts'
import { migratedDatabase, type TestDatabase } from '../support/databases.ts'
import { addProject } from '../support/server.ts'
import { addWebhook } from '../support/webhooks.ts'

export type Fixture = {
  keyring: Keyring
  sealer: Sealer
  given: TestDatabase
  database: Database
  /** Starts a delivery loop on the database; `stop` ends it. */
  startLoop(options?: LoopOptions): Promise<DeliveryLoop>
  /** Makes an access token that may do everything. */
  token(): Promise<Credentials>
  /** Stores an active webhook for all events. */
  webhook(url: string, given?: PartOfWebhook): Promise<string>
  /** Stores another project of the organisation that events are of. */
  project(): Promise<string>
  /**
   * Emits events, each in a transaction with its deliveries, and returns the ids of their project reports.
   *
   * @param options.through the loop that sends deliveries it has places for, after the commit
   * @param options.beforeCommit awaited in each transaction
   * @param options.projectId the project; by default the first
   */
  emit(count?: number, options?: EmitOptions): Promise<string[]>
  delivery(webhookId: string): Promise<DeliveryRow>
  deliveries(webhookId?: string): Promise<DeliveryRow[]>
  attempts(deliveryId: string): Promise<AttemptRow[]>
  webhookRow(id: string): Promise<WebhookRow>
  count(table: string): Promise<number>
  countWhere(where: Partial<DeliveryRow>): Promise<number>
  /** Milliseconds from the end of the first attempt to the start of the second, of each delivery of a webhook. */
  waits(webhookId: string): Promise<number[]>
  /** Multiplies each pending delivery of a webhook. */
  multiplyQueue(webhookId: string, times: number): Promise<void>
  /** Ends the loops, and removes webhooks, events and deliveries. */
  reset(): Promise<void>
  stop(): Promise<void>
}

type EmitOptions = {
  through?: Pick<DeliveryLoop, 'afterCommit'>
  beforeCommit?: () => Promise<void>
  projectId?: string
}

type PartOfWebhook = { recovery?: WebhookRecovery; ordering?: WebhookOrdering; transport?: WebhookTransport }

type LoopOptions = {
  database?: Database
  concurrency?: number
  attemptTimeoutMs?: number
  retryScheduleMs?: readonly number[]
  log?: Log
  onSettled?: (settlement: Settlement) => void
  waits?: Waits
}

const LINES = ['delivery_lines', 'ordered_deliveries']

/** A database with everything that deliveries need, and delivery loops like a server's, on the test's clock. */
export const startFixture = async (
  engine: string,
  clock: Clock,
  { masterKey = randomBytes(32).toString('base64') } = {},
): Promise<Fixture> => {
  const given = await migratedDatabase(engine)
  const { database } = given
  const sealer = createSealer([Buffer.from(masterKey, 'base64')])
  const keyring = await openKeyring(database, sealer, clock)
  const token = () =>
    database.transaction(trx =>
      createAccessToken(trx, sealer, { name: 'fixture', permissions: ['admin'] }, clock.now()),
    )
  const { id: accessTokenId } = await token()
  const { organisationId, projectId: first } = await addProject(database)
  const running: DeliveryLoop[] = []
  const deliveries = (webhookId?: string): Promise<DeliveryRow[]> =>
    database
      .knex('deliveries')
      .where(webhookId === undefined ? {} : { webhook_id: webhookId })
      .orderBy('id')

  return {
    keyring,
    sealer,
    given,
    database,
    async startLoop(options = {}) {
      const { concurrency = 512, attemptTimeoutMs = 15_000, retryScheduleMs = RETRY_SCHEDULE_MS } = options
      const sender = createSender({
        guard: createNetworkGuard({ allow: ['127.0.0.0/8'] }),
        maxConnectionsPerOrigin: 6 * concurrency,
        attemptTimeoutMs,
      })
      const loop = startDeliveryLoop({
        clock,
        keyring,
        sealer,
        sender,
        issuerUrl: 'https://tidings.example',
        retryScheduleMs,
        database: options.database ?? database,
        log: options.log ?? createLog('silent'),
        concurrency,
        claims: true,
        ...(options.waits && { waits: options.waits }),
        ...(options.onSettled && {
          watch: { attempted: options.onSettled, claimed: () => {}, recorded: () => {} },
        }),
      })
      let stopped: Promise<void> | undefined
      const stop = loop.stop.bind(loop)
      loop.stop = () => (stopped ??= stop().then(() => sender.close()))
      running.push(loop)
      return loop
    },
    token,
    webhook: (url, given) => addWebhook(database.knex, { ...given, accessTokenId, url, createdAt: clock.now() }),
    async project() {
      const id = randomUUID()
      const times = { created_at: clock.now(), updated_at: clock.now() }
      await database.knex('projects').insert({ id, organisation_id: organisationId, name: 'Springs', ...times })
      return id
    },
    async emit(count = 1, { through, beforeCommit, projectId = first } = {}) {
      const emitOne = async () => {
        const id = randomUUID()
        await database.transaction(async trx => {
          await recordEvent(
            trx,
            {
              type: 'project_report_quarterly_overdue',
              organisationIds: [organisationId],
              projectId,
              payload: { projectReport: { id, projectId, quarter: '2026-3' } },
            },
            clock.now,
            through?.afterCommit(trx),
          )
          await beforeCommit?.()
        })
        return id
      }
      const ids: string[] = []
      for (let left = count; left > 0; left -= 8) {
        ids.push(...(await Promise.all(Array.from({ length: Math.min(8, left) }, emitOne))))
      }
      return ids
    },
    async delivery(webhookId) {
      const [only, ...others] = await deliveries(webhookId)
      if (!only || others.length > 0) throw new Error(`${others.length + (only ? 1 : 0)} deliveries, not one`)
      return only
    },
    deliveries,
    attempts: deliveryId => database.knex('attempts').where({ delivery_id: deliveryId }).orderBy('number'),
    webhookRow: id => database.knex('webhooks').where({ id }).first(),
    async count(table) {
      const [found] = await rows<{ n: number }>(database.knex, `SELECT COUNT(*) AS n FROM ${table}`)
      return Number(found!.n)
    },
    async countWhere(where) {
      const [found] = await database.knex('deliveries').where(where).count({ n: '*' })
      return Number(found!.n)
    },
    async waits(webhookId) {
      const found = await rows<{ wait: number }>(
        database.knex,
        `SELECT b.started_at - a.started_at - a.duration_ms AS wait FROM deliveries d
         JOIN attempts a ON a.delivery_id = d.id AND a.number = 1
         JOIN attempts b ON b.delivery_id = d.id AND b.number = 2
         WHERE d.webhook_id = ?`,
        [webhookId],
      )
      return found.map(({ wait }) => Number(wait))
    },
    async multiplyQueue(webhookId, times) {
      const owed = await deliveries(webhookId)
      for (let n = 1; n < times; n++) {
        for (let from = 0; from < owed.length; from += 500) {
          const copies = owed.slice(from, from + 500).map(delivery => ({ ...delivery, id: randomUUID() }))
          await database.knex('deliveries').insert(copies)
          await database.knex('delivery_queue').insert(
            copies.map(({ id, event_id, created_at }) => ({
              delivery_id: id,
              event_id,
              webhook_id: webhookId,
              due_at: created_at,
            })),
          )
        }
      }
    },
    async reset() {
      for (const loop of running.splice(0)) await loop.stop()
      for (const table of [...LINES, 'delivery_queue', 'attempts', 'deliveries', 'events', 'webhooks']) {
        await database.knex(table).delete()
      }
    },
    async stop() {
      for (const loop of running) await loop.stop()
      keyring.stop()
      await given.drop()
    },
  }
}
