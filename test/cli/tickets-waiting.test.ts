import assert from 'node:assert/strict'
import { after, before, describe, it } from 'node:test'
import { LEASE_MS } from '../../server/delivery/leases.ts'
import type { TakenDelivery } from '../../server/delivery/pull/pull.ts'
import { createLog } from '../../server/log.ts'
import { purge } from '../../server/scheduler/purge.ts'
import { masterKey, type ServerProcess, startServerProcess } from '../delivery/server-process.ts'
import { type TestClock, testClock } from '../support/clock.ts'
import { engines, enginesHere } from '../support/databases.ts'
import type { Answer } from '../support/receiver.ts'
import { APPROVED, Desk, type Place, play, type Ticket } from './ticket-desk.ts'

// What waits, for whom, and what never happened.

/** All of them together must stay below the five minutes by which a request may be off. */
const WAIT_MS = 40_000
const passes = (at: Place): void => (at.desk.server.clock as TestClock).advance(WAIT_MS + 1_000)
const releases = new WeakMap<Place, () => void>()

const taken = new WeakMap<Place, TakenDelivery[]>()
/** The client answers what `deliveries take` has printed. */
const answersWhatIsTaken = (at: Place, printed: string) => at.puller().answer(JSON.parse(printed))

const SLOW: Ticket[] = [
  {
    cause: 'its endpoint asked to wait',
    async make(at) {
      const webhookId = await at.webhook()
      at.answer({ status: 429, headers: { 'retry-after': String(WAIT_MS / 1000) } })
      const eventId = await at.happens()
      await at.explainedAs('throttled', { webhookId, eventId })
      return { webhookId, eventId }
    },
    codes: ['throttled', 'failing'],
    says: /asked to wait \(429\): until then nothing is sent to this webhook, and nothing is lost/,
    mended: ({ answer }) => answer({ status: 204 }),
    passes,
  },
  {
    cause: 'its next retry has not come yet',
    async make(at) {
      const webhookId = await at.webhook()
      at.answer({ status: 500 })
      const eventId = await at.happens()
      await at.explainedAs('failing', { webhookId, eventId })
      return { webhookId, eventId }
    },
    codes: ['failing', 'waits_for_retry'],
    says: /Attempt 2 follows at this time by itself/,
    mended: ({ answer }) => answer({ status: 204 }),
    passes,
  },
  {
    cause: 'its endpoint has moved, and its next retry would be redirected again',
    async make(at) {
      const webhookId = await at.webhook()
      at.answer({ status: 308, headers: { location: `${at.url}/moved` } })
      const eventId = await at.happens()
      await at.explainedAs('failing', { webhookId, eventId })
      return { webhookId, eventId }
    },
    codes: ['failing', 'redirected', 'waits_for_retry'],
    passes,
  },
  {
    cause: 'it waits for an earlier one of its project, whose endpoint fails',
    async make(at) {
      const webhookId = await at.webhook({ ordering: 'project' })
      at.answer({ status: 503 })
      const first = await at.happens('2026-2')
      await at.explainedAs('failing', { webhookId, eventId: first })
      return { webhookId, eventId: await at.happens() }
    },
    codes: ['waits_for_turn'],
    mended: ({ answer }) => answer({ status: 204 }),
    passes,
  },
  {
    cause: 'its endpoint has not answered yet',
    async make(at) {
      const webhookId = await at.webhook()
      const { promise, resolve } = Promise.withResolvers<Answer>()
      releases.set(at, () => resolve({ status: 204 }))
      at.answer(() => promise)
      const eventId = await at.happens()
      await at.arrives('2026-3')
      return { webhookId, eventId }
    },
    codes: ['under_way'],
    mended: at => releases.get(at)!(),
  },
  {
    cause: 'nobody pulls',
    async make(at) {
      const { id: webhookId } = await at.puller().register()
      return { webhookId, eventId: await at.happens() }
    },
    codes: ['waits_for_puller'],
    passes: answersWhatIsTaken,
  },
  {
    cause: 'the access token of the client that pulls was revoked',
    async make(at) {
      const worker = await at.desk.server.token({ name: 'worker', permissions: ['webhooks', 'read'] })
      const { id: webhookId } = await at.puller(worker).register()
      await at.desk.asked('mutation ($id: UUID!) { revokeAccessToken(id: $id) { id } }', { id: worker.id })
      const eventId = await at.happens()
      await assert.rejects(at.puller(worker).take(webhookId), /revoked/)
      return { webhookId, eventId }
    },
    codes: ['waits_for_puller'],
    passes: answersWhatIsTaken,
  },
  {
    cause: 'a client has taken it, and has not answered',
    async make(at) {
      const { id: webhookId } = await at.puller().register()
      const eventId = await at.happens()
      taken.set(at, await at.puller().take(webhookId))
      return { webhookId, eventId }
    },
    codes: ['taken'],
    passes: at => at.puller().answer(taken.get(at)!),
  },
]

for (const engine of enginesHere()) {
  const env = { TIDINGS_RETRY_SCHEDULE: `${WAIT_MS / 1000},${WAIT_MS / 1000}` }
  play('tickets about what waits that why solves', engine, SLOW, { env, clock: testClock(), concurrency: 1 })

  describe(`tickets of organisations that why solves (${engine})`, () => {
    const desk = new Desk()
    before(() => desk.open(engine, { env: { TIDINGS_RATE_LIMIT: '10000' } }))
    after(() => desk.close())

    const asked = async (line: string) => {
      const { code, stdout, stderr } = await desk.run(line)
      assert.equal(code, 0, stderr)
      const { reasons, next } = JSON.parse(stdout)
      const codes = reasons?.map(({ code }: { code: string }) => code) as string[]
      return { codes, next: next as string, says: reasons?.[0]?.message as string }
    }

    it('another organisation was asked for than the project has: project_elsewhere', async () => {
      const at = await desk.place()
      const webhookId = await at.webhook({ events: [APPROVED] })
      await at.happens()
      const { codes, next } = await asked(`tidings why ${at.other.organisationId} --project ${at.projectId}`)
      assert.deepEqual(codes, ['project_elsewhere'])
      // By way of the organisation and the event to the filter, and after it was changed to the recovery.
      await desk.follow(next)
      await desk.follow(next)
      await at.arrives('2026-3')
      assert.ok(webhookId)
    })

    it('the event has not happened: the report is submitted, and nobody has approved it', async () => {
      const at = await desk.place()
      await at.webhook()
      await at.happens()
      const { codes, next } = await asked(
        `tidings why ${at.organisationId} --type ${APPROVED} --project ${at.projectId}`,
      )
      assert.deepEqual(codes, ['not_happened'])
      const [{ id, status }] = JSON.parse(await desk.follow(next))
      assert.equal(status, 'submitted')
      await desk.asked('mutation ($id: UUID!, $u: UUID!) { approveProjectReport(id: $id, approverId: $u) { id } }', {
        ...{ id, u: at.userId },
      })
      await desk.receiver.waitFor(all => all.some(({ path, body }) => path === at.path && body.eventType === APPROVED))
    })

    it('the request was refused, because too many were sent: no_trace', async () => {
      const at = await desk.place()
      await at.webhook()
      const sender = await desk.server.token({ permissions: ['reports', 'read'] })
      const minute = 60_000 * Math.floor(Date.now() / 60_000)
      // Two of them, as the minute may end.
      const spent = { access_token_id: sender.id, window_start: minute + 60_000, taken: 1_000_000 }
      await desk.server.database.knex('rate_limits').insert(spent)
      await assert.rejects(at.happens('2026-3', sender), /RATE_LIMITED/)
      const { codes, next } = await asked(
        `tidings why ${at.organisationId} --type project_report_quarterly_submitted --project ${at.projectId}`,
      )
      assert.deepEqual([codes, next], [['no_trace'], `tidings events list --organisation ${at.organisationId}`])
      await at.happens()
      await at.arrives('2026-3')
    })

    it('the access token of the sender was revoked: no_trace', async () => {
      const at = await desk.place()
      await at.webhook()
      const sender = await desk.server.token({ permissions: ['reports', 'read'] })
      await desk.asked(`mutation { revokeAccessToken(id: "${sender.id}") { id } }`)
      await assert.rejects(at.happens('2026-3', sender), /UNAUTHENTICATED/)
      const { codes, next, says } = await asked(
        `tidings why ${at.organisationId} --type project_report_quarterly_submitted --project ${at.projectId}`,
      )
      assert.deepEqual(codes, ['no_trace'])
      assert.match(says, /revoked or expired access token, UNAUTHENTICATED/)
      await desk.follow(next)
      await at.happens()
      await at.arrives('2026-3')
    })

    it('the event was purged: why says of when it is, how long events are kept, and the next one arrives', async () => {
      const at = await desk.place()
      const webhookId = await at.webhook()
      const eventId = await at.happens()
      await at.settles(webhookId, eventId)
      const { database } = desk.server
      const [retentionDays, reportDueDays] = [30, 30]
      const clock = testClock(Date.now() + (retentionDays + 1) * 24 * 3_600_000)
      const onEvents = () => {}
      const batch = purge.begin({ database, clock, log: createLog('silent'), reportDueDays, retentionDays, onEvents })
      while (await batch());
      await at.happens('2027-1')
      await at.arrives('2027-1')
      const { code, stderr } = await desk.run(`tidings why ${webhookId} ${eventId}`)
      assert.equal(code, 3)
      const { message, hint } = JSON.parse(stderr).error
      assert.match(message, /The id is of 20\S+, and the oldest event that is kept is of 20/)
      assert.match(hint, /TIDINGS_RETENTION_DAYS/)
    })
  })
}

// On SQLite the one process that there is answers and sends.
for (const engine of engines.filter(name => name !== 'sqlite')) {
  describe(`tickets about servers that why solves (${engine})`, () => {
    const desk = new Desk()
    const senders: ServerProcess[] = []
    const start = async (): Promise<ServerProcess> => {
      const { databaseUrl } = desk.server.config
      const sender = await startServerProcess(databaseUrl, { TIDINGS_ROLES: 'delivery' })
      senders.push(sender)
      return sender
    }
    before(() => desk.open(engine, { env: { TIDINGS_ROLES: 'api', TIDINGS_MASTER_KEY: masterKey } }))
    after(async () => {
      for (const sender of senders) await sender.end('SIGKILL')
      await desk.close()
    })

    it('no server sends: no_sender', async () => {
      const at = await desk.place()
      const [webhookId, eventId] = [await at.webhook(), await at.happens()]
      const { reasons, next } = await desk.explained(webhookId, eventId)
      assert.deepEqual([reasons.map(({ code }) => code), next], [['no_sender'], 'tidings server start'])
      const sender = await start()
      await at.arrives('2026-3')
      await sender.end('SIGTERM')
    })

    it('the process that sent it was killed before the answer: under_way', async () => {
      const at = await desk.place()
      const webhookId = await at.webhook()
      const sender = await start()
      let requests = 0
      at.answer(() => (++requests === 1 ? 'hang' : { status: 204 }))
      const eventId = await at.happens()
      await at.arrives('2026-3')
      await sender.end('SIGKILL')
      const found = await desk.explained(webhookId, eventId)
      assert.deepEqual(
        found.reasons.map(({ code }) => code),
        ['under_way'],
      )
      assert.match(found.reasons[0]!.message, /If the process that sends it has died, another sends it at this time/)
      assert.equal(found.next, null)
      // The end of the lease.
      await desk.server.database.knex('delivery_queue').decrement('due_at', LEASE_MS)
      await start()
      const ended = await at.settles(webhookId, eventId)
      assert.equal(ended.verdict, 'delivered')
      assert.equal(ended.delivery!.id, found.delivery!.id)
    })
  })
}
