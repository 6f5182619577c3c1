import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, describe, it, type TestContext } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import { connect } from '../../server/database/connect.ts'
import { createLog } from '../../server/log.ts'
import { runSchedule } from '../../server/scheduler/scheduler.ts'
import { engines } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, type GraphqlAnswer } from '../support/server.ts'
import { heldAt, startTwoServers, type TwoServers } from './two-servers.ts'

// The transaction of a mutation decides what it may do, on rows that it has locked: one server is held between two
// statements, while another does what would make that decision wrong.

const SUBMIT = `mutation ($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
  submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) { id } }`
const APPROVE =
  'mutation ($id: UUID!, $approverId: UUID!) { approveProjectReport(id: $id, approverId: $approverId) { id } }'
const UPSERT_PROJECT = `mutation ($id: UUID, $organisationId: UUID!, $name: String!) {
  upsertProject(id: $id, organisationId: $organisationId, name: $name) { id name } }`
const UPSERT_WEBHOOK = `mutation (
  $id: UUID, $url: String, $events: [EventType!], $organisationIds: [UUID!], $status: WebhookStatus
) {
  upsertWebhook(
    id: $id, url: $url, events: $events, organisationIds: $organisationIds, status: $status
  ) { id url status events } }`
const PING = 'mutation ($id: UUID!) { pingWebhook(id: $id) { id status } }'
const CREATE_WEBHOOK = 'mutation ($url: String!) { createWebhook(url: $url) { id } }'
const REVOKE = 'mutation ($id: UUID!) { revokeAccessToken(id: $id) { id } }'

const codeOf = ({ errors }: GraphqlAnswer): string | undefined => errors?.[0]?.extensions.code
const done = (answer: GraphqlAnswer) => {
  assert.equal(answer.errors, undefined, JSON.stringify(answer.errors))
  return answer.data
}

for (const engine of engines.filter(name => name !== 'sqlite')) {
  describe(`what is decided when it is done (${engine})`, () => {
    const waits = engine.startsWith('tidb') && 'TiDB has no shared locks: of two changes by one token, one waits'
    let two: TwoServers
    let receiver: Receiver
    before(async () => {
      two = await startTwoServers(engine, { TIDINGS_WEBHOOKS_PER_TOKEN: '25' })
      receiver = await startReceiver()
    })
    after(async () => {
      await receiver?.close()
      await two?.stop()
    })
    const sql = () => two.stopped.database.knex
    const held = <A, B>(pattern: RegExp, act: () => Promise<A>, meanwhile: () => Promise<B>, options = {}) =>
      heldAt(two.proxy, pattern, act, meanwhile, options)
    const webhook = async (input: object): Promise<string> =>
      done(await two.byOther(UPSERT_WEBHOOK, { url: receiver.url, ...input })).upsertWebhook.id

    for (const [where, pattern] of [
      ['before it begins', /INSERT INTO audit_log/],
      ['in the middle', /INSERT INTO project_reports/],
    ] as const) {
      it(`is nothing of a token that is revoked ${where}`, async () => {
        const { projectId, userId } = await addProject(two.stopped.database)
        const token = await two.stopped.token({ permissions: ['reports'] })
        const { acted, happened, hadHappened } = await held(
          pattern,
          () => two.byStopped(SUBMIT, { projectId, quarter: '2026-3', submitterId: userId }, token),
          () => two.byOther(REVOKE, { id: token.id }),
        )
        done(happened)
        // A revocation that was slow to be acknowledged may have come before, or after.
        if (hadHappened || acted.errors) assert.equal(acted.errors?.[0]?.extensions.reason, 'revoked')
      })
    }

    it('is which project a limited admin may change', async () => {
      const own = await addProject(two.stopped.database)
      const foreign = await addProject(two.stopped.database)
      const limited = await two.stopped.token({ organisationIds: [own.organisationId] })
      const id = own.projectId
      await held(
        /^update `?projects|FROM projects WHERE id = .* FOR UPDATE/i,
        () => two.byStopped(UPSERT_PROJECT, { id, organisationId: own.organisationId, name: 'Pulled' }, limited),
        async () =>
          done(await two.byOther(UPSERT_PROJECT, { id, organisationId: foreign.organisationId, name: 'Moved' })),
      )
      const project = await sql()('projects').where({ id }).first()
      assert.deepEqual([project.organisation_id, project.name], [foreign.organisationId, 'Moved'])
    })

    for (const [what, pattern, document] of [
      [
        'change',
        /FROM webhook_projects WHERE webhook_id/,
        `mutation ($id: UUID!) { upsertWebhook(id: $id, events: [token_expired]) { id } }`,
      ],
      ['ping', /INSERT INTO events/, PING],
    ] as const) {
      it(`is whether a limited token may ${what} a webhook, whose project may move out of its sight`, async () => {
        const own = await addProject(two.stopped.database)
        const foreign = await addProject(two.stopped.database)
        const { id } = done(
          await two.byOther(
            `mutation ($url: String!, $projectIds: [UUID!]) {
              createWebhook(url: $url, projectIds: $projectIds) { id } }`,
            { url: receiver.url, projectIds: [own.projectId] },
          ),
        ).createWebhook
        const limited = await two.stopped.token({ organisationIds: [own.organisationId] })
        const { acted, hadHappened } = await held(
          pattern,
          () => two.byStopped(document, { id }, limited),
          async () =>
            done(
              await two.byOther(UPSERT_PROJECT, {
                id: own.projectId,
                organisationId: foreign.organisationId,
                name: 'Moved',
              }),
            ),
        )
        if (hadHappened || acted.errors) assert.equal(codeOf(acted), 'NOT_FOUND')
        assert.ok(codeOf(await two.byStopped(document, { id }, limited)), 'it sees it no more')
      })
    }

    it('is whether there is room for another webhook of the token', async () => {
      // One whose webhooks get nothing of the other tests.
      const { organisationId } = await addProject(two.stopped.database)
      const token = await two.stopped.token({ organisationIds: [organisationId] })
      const create = (by: TwoServers['byStopped']) => by(CREATE_WEBHOOK, { url: receiver.url }, token)
      for (let n = 1; n < 25; n++) done(await create(two.byOther))
      const { acted, happened } = await held(
        /^insert into `webhooks`/i,
        () => create(two.byStopped),
        () => create(two.byOther),
      )
      assert.deepEqual([codeOf(acted), codeOf(happened)].toSorted(), ['CONFLICT', undefined])
      assert.equal((await sql()('webhooks').where({ access_token_id: token.id })).length, 25)
    })

    it('is whether a token may still ping when the turn of its ping has come', async () => {
      let isOpen = false
      const slow = await startReceiver({
        answer: async () => {
          await eventually('pings to be let through', () => isOpen, Boolean)
          return { status: 200 }
        },
      })
      const token = await two.stopped.token()
      const creates = Array.from({ length: 5 }, () => two.byStopped(CREATE_WEBHOOK, { url: slow.url }, token))
      await slow.waitFor(requests => requests.length === 4)
      done(await two.byOther(REVOKE, { id: token.id }))
      isOpen = true
      const answers = await Promise.all(creates)
      for (const { errors } of answers) assert.equal(errors?.[0]?.extensions.reason, 'revoked')
      assert.equal(slow.requests.length, 4)
      await slow.close()
    })

    it('is what a 429 means for a webhook that has another url by then: nothing', async () => {
      const next = await startReceiver()
      const old = await startReceiver({ answer: (_request, n) => ({ status: n === 1 ? 200 : 429 }) })
      const { organisationId } = await addProject(two.stopped.database)
      const id = await webhook({ url: old.url, organisationIds: [organisationId] })
      const { acted } = await held(
        /^SELECT id FROM webhooks WHERE id IN .* FOR UPDATE/,
        () => two.byStopped(PING, { id }),
        async () => done(await two.byOther(UPSERT_WEBHOOK, { id, url: next.url })),
      )
      const deliveryId = done(acted).pingWebhook.id
      const status = await eventually(
        'the ping to come to an end',
        () => sql()('deliveries').where({ id: deliveryId }).first(),
        found => found.status !== 'pending',
      )
      assert.equal(status.status, 'delivered')
      assert.equal((await sql()('webhooks').where({ id }).first()).status, 'active')
      assert.equal(next.requests.length, 2, 'its registration, and what the old url would not have')
      await old.close()
      await next.close()
    })

    it('is the time: nothing is finished before the database has let it be', async () => {
      const id = await webhook({})
      const { acted, happened } = await held(
        /FROM delivery_queue WHERE delivery_id IN .* FOR UPDATE/s,
        () => two.byStopped(PING, { id }),
        async () => {
          await wait(300)
          return Date.now()
        },
      )
      const delivery = await sql()('deliveries')
        .where({ id: done(acted).pingWebhook.id })
        .first()
      // The database's clock and this machine's are not read in one moment.
      assert.ok(delivery.finished_at >= happened - 100, `${delivery.finished_at} < ${happened}`)
    })

    const movedDuring = async (
      act: (from: Awaited<ReturnType<typeof addProject>>) => Promise<() => Promise<unknown>>,
    ) => {
      const from = await addProject(two.stopped.database)
      const to = await addProject(two.stopped.database)
      const acting = await act(from)
      const { hadHappened } = await held(/INSERT INTO events/, acting, async () =>
        done(
          await two.byOther(UPSERT_PROJECT, { id: from.projectId, organisationId: to.organisationId, name: 'Moved' }),
        ),
      )
      const event = await sql()('events').where('project_id', from.projectId).orderBy('id', 'desc').first()
      assert.equal(event.organisation_id, hadHappened ? to.organisationId : from.organisationId)
    }
    it('is the organisation that a submission belongs to', () =>
      movedDuring(async ({ projectId, userId }) => {
        const now = Date.now()
        const row = { quarter: '2026-3', due_date: '2026-10-30', status: 'open', created_at: now, updated_at: now }
        await sql()('project_reports').insert({ id: randomUUID(), project_id: projectId, ...row })
        return async () => done(await two.byStopped(SUBMIT, { projectId, quarter: '2026-3', submitterId: userId }))
      }))
    it('is the organisation that an approval belongs to', () =>
      movedDuring(async ({ projectId, userId }) => {
        const submitted = await two.byOther(SUBMIT, { projectId, quarter: '2026-3', submitterId: userId })
        const { id } = done(submitted).submitProjectReport
        return async () => done(await two.byStopped(APPROVE, { id, approverId: userId }))
      }))
    it('is the organisation that an overdue report belongs to', () =>
      movedDuring(async ({ projectId }) => {
        const now = Date.now()
        const row = { quarter: '2020-1', due_date: '2020-04-30', status: 'open', created_at: now, updated_at: now }
        await sql()('project_reports').insert({ id: randomUUID(), project_id: projectId, ...row })
        return () => schedule(two.proxy.url, { clockMs: Date.UTC(2020, 4, 15) })
      }))

    const schedule = async (url: string, { clockMs = Date.now(), retentionDays = 30 }) => {
      const database = await connect(url)
      const clock = { now: () => clockMs }
      const tools = { database, clock, log: createLog('silent'), reportDueDays: 30, retentionDays, onEvents: () => {} }
      await runSchedule(tools)
      await database.close()
    }

    const narrowed = async (test: TestContext) => {
      const kept = await addProject(two.stopped.database)
      const left = await addProject(two.stopped.database)
      const next = await startReceiver()
      test.after(() => next.close())
      const id = await webhook({ organisationIds: [kept.organisationId, left.organisationId] })
      const input = { id, url: next.url, organisationIds: [kept.organisationId] }
      const submission = { projectId: left.projectId, quarter: '2026-3', submitterId: left.userId }
      const owed = () => sql()('deliveries').where({ webhook_id: id }).whereNot('event_type', 'ping')
      return { input, submission, owed }
    }

    it('is which event a webhook gets that is narrowed and turned to another url', { skip: waits }, async test => {
      const { input, submission, owed } = await narrowed(test)
      const { acted, hadHappened } = await held(
        /FROM webhooks w .*LOCK IN SHARE MODE/s,
        () => two.byStopped(SUBMIT, submission),
        async () => done(await two.byOther(UPSERT_WEBHOOK, input)),
        { withinMs: 10_000 },
      )
      done(acted)
      assert.ok(hadHappened)
      assert.deepEqual(await owed(), [])
    })

    it('is which event a webhook gets that is being narrowed while the event waits for it', async test => {
      const { input, submission, owed } = await narrowed(test)
      const { acted, happened, hadHappened } = await held(
        /UPDATE webhooks SET\s+all_events = CASE/,
        () => two.byStopped(UPSERT_WEBHOOK, input),
        () => two.byOther(SUBMIT, submission),
      )
      done(acted)
      done(happened)
      assert.ok(!hadHappened)
      assert.deepEqual(await owed(), [])
    })

    const DAY_MS = 24 * 3_600_000
    const oldDelivery = async () => {
      const { organisationId, projectId, userId } = await addProject(two.stopped.database)
      const webhookId = await webhook({ organisationIds: [organisationId] })
      done(await two.byOther(SUBMIT, { projectId, quarter: '2026-3', submitterId: userId }))
      const delivery = await eventually(
        'the delivery to end',
        () => sql()('deliveries').where({ webhook_id: webhookId }).whereNot('event_type', 'ping').first(),
        found => found?.status === 'delivered',
      )
      await sql()('events')
        .where('id', delivery.event_id)
        .update({ created_at: Date.now() - 2 * DAY_MS })
      await sql()('webhooks')
        .where('id', webhookId)
        .update({ created_at: Date.now() - 3 * DAY_MS })
      return { webhookId, id: delivery.id as string }
    }
    const orphans = () =>
      sql()('deliveries').whereNotIn('event_id', sql()('events').select('id')).pluck<string[]>('event_type')
    const purge = () => schedule(two.other.config.databaseUrl, { retentionDays: 1 })

    it('is whether there is still an event to redeliver', async () => {
      const { id } = await oldDelivery()
      await held(
        /INSERT INTO deliveries/,
        () => two.byStopped('mutation ($id: UUID!) { redeliver(deliveryId: $id) { id } }', { id }),
        purge,
      )
      assert.deepEqual(await orphans(), [])
    })

    it('is whether there are still events to recover', async () => {
      const { id, webhookId } = await oldDelivery()
      await sql()('deliveries').where({ id }).update({ status: 'dropped' })
      const since = new Date(Date.now() - 3 * DAY_MS).toISOString()
      await held(
        /INSERT INTO deliveries/,
        () =>
          two.byStopped(
            'mutation ($id: UUID!, $since: DateTime!) { recoverDeliveries(webhookId: $id, since: $since) { queued } }',
            { id: webhookId, since },
          ),
        purge,
      )
      assert.deepEqual(await orphans(), [])
    })

    it('is what a recovery finds: nothing that was acknowledged and is being purged', async () => {
      const { id, webhookId } = await oldDelivery()
      const since = new Date(Date.now() - 3 * DAY_MS).toISOString()
      const { happened } = await held(
        /SELECT id, created_at FROM events .* FOR UPDATE/s,
        () => schedule(two.proxy.url, { retentionDays: 1 }),
        async () =>
          done(
            await two.byOther(
              `mutation ($id: UUID!, $since: DateTime!) {
                recoverDeliveries(webhookId: $id, since: $since) { queued }
              }`,
              { id: webhookId, since },
            ),
          ),
      )
      assert.equal(happened.recoverDeliveries.queued, 0)
      assert.equal(await sql()('deliveries').where({ id }).first(), undefined, 'it was purged')
    })

    it('is the time: nothing is finished before it was created', { skip: waits }, async () => {
      const { organisationId, projectId, userId } = await addProject(two.stopped.database)
      const hanging = await startReceiver({ answer: (_request, n) => (n === 1 ? { status: 200 } : 'hang') })
      const id = await webhook({ url: hanging.url, organisationIds: [organisationId] })
      await held(
        /FROM webhooks WHERE id = .* FOR UPDATE/,
        async () => done(await two.byStopped(UPSERT_WEBHOOK, { id, status: 'disabled' })),
        async () => {
          await hanging.waitFor(requests => requests.length === 1)
          done(await two.byOther(SUBMIT, { projectId, quarter: '2026-3', submitterId: userId }))
        },
      )
      const [delivery] = await sql()('deliveries').where({ webhook_id: id }).whereNot('event_type', 'ping')
      assert.equal(delivery.status, 'cancelled')
      assert.ok(delivery.finished_at >= delivery.created_at, `${delivery.finished_at} < ${delivery.created_at}`)
      await hanging.close()
    })

    const upserts: [what: string, insert: RegExp, document: string][] = [
      ['organisation', /^insert into `organisations`/i, 'upsertOrganisation(id: $id, name: $name)'],
      ['user', /^insert into `users`/i, 'upsertUser(id: $id, name: $name)'],
      ['project', /^insert into `projects`/i, 'upsertProject(id: $id, name: $name, organisationId: $organisationId)'],
    ]
    for (const [what, pattern, field] of upserts) {
      it(`is whether a new ${what} is there already, and each of two upserts is answered with its own`, async () => {
        const { organisationId } = await addProject(two.stopped.database)
        const id = randomUUID()
        const more = what === 'project' ? ', $organisationId: UUID!' : ''
        const document = `mutation ($id: UUID!, $name: String!${more}) { row: ${field} { name } }`
        const variables = { id, ...(more && { organisationId }) }
        const { acted, happened } = await held(
          pattern,
          () => two.byStopped(document, { ...variables, name: 'One' }),
          () => two.byOther(document, { ...variables, name: 'Two' }),
        )
        assert.deepEqual([done(acted).row.name, done(happened).row.name], ['One', 'Two'])
      })
    }

    for (const [where, pattern] of [
      ['as it is looked for', /SELECT access_token_id, deleted_at FROM webhooks/],
      ['as it is stored', /insert into `webhooks`/i],
    ] as const) {
      it(`is whether a new webhook is there already: it comes ${where}`, async () => {
        const { organisationId } = await addProject(two.stopped.database)
        // One that sees what it has made, and no more.
        const token = await two.stopped.token({ permissions: ['webhooks'], organisationIds: [organisationId] })
        const variables = { id: randomUUID(), url: receiver.url }
        const { acted, happened } = await held(
          pattern,
          () => two.byStopped(UPSERT_WEBHOOK, variables, token),
          () => two.byOther(UPSERT_WEBHOOK, variables, token),
        )
        assert.deepEqual([done(acted).upsertWebhook.id, done(happened).upsertWebhook.id], [variables.id, variables.id])
      })
    }

    it('is what of a webhook others have changed: what they do not touch is no conflict', { skip: waits }, async () => {
      const id = await webhook({})
      const { acted } = await held(
        /FROM webhooks WHERE id = .* FOR UPDATE/,
        () => two.byStopped(UPSERT_WEBHOOK, { id, events: ['token_expired'] }),
        async () => done(await two.byOther(UPSERT_WEBHOOK, { id, status: 'disabled' })),
      )
      const { status, events } = done(acted).upsertWebhook
      assert.deepEqual([status, events], ['disabled', ['token_expired']])
    })

    it('is a conflict where both turn a webhook to a url, and not where one disables it', { skip: waits }, async () => {
      const id = await webhook({})
      const [one, next] = [await startReceiver(), await startReceiver()]
      const pattern = /FROM webhooks WHERE id = .* FOR UPDATE/
      const turned = await held(
        pattern,
        () => two.byStopped(UPSERT_WEBHOOK, { id, url: one.url }),
        async () => done(await two.byOther(UPSERT_WEBHOOK, { id, url: next.url })),
      )
      assert.equal(codeOf(turned.acted), 'CONFLICT')
      const disabled = await held(
        pattern,
        () => two.byStopped(UPSERT_WEBHOOK, { id, status: 'disabled' }),
        async () => done(await two.byOther(UPSERT_WEBHOOK, { id, url: one.url })),
      )
      assert.equal(done(disabled.acted).upsertWebhook.status, 'disabled')
      await one.close()
      await next.close()
    })

    it('is which url must answer before a webhook is active again', { skip: waits }, async () => {
      const id = await webhook({ status: 'disabled' })
      const next = await startReceiver()
      done(await two.byOther(UPSERT_WEBHOOK, { id, status: 'disabled' }))
      const { acted } = await held(
        /FROM webhooks WHERE id = .* FOR UPDATE/,
        () => two.byStopped(UPSERT_WEBHOOK, { id, status: 'active' }),
        async () => done(await two.byOther(UPSERT_WEBHOOK, { id, url: next.url })),
      )
      const { status, url } = done(acted).upsertWebhook
      assert.deepEqual([status, url], ['active', next.url])
      assert.equal(next.requests.length, 2, 'once for the change of the url, once for the return to active')
      await next.close()
    })

    it('is what an answer tells: a webhook as this change has left it', async () => {
      const id = await webhook({})
      const { acted, happened } = await held(
        /FROM webhook_events\s+WHERE/i,
        () => two.byStopped(UPSERT_WEBHOOK, { id, events: ['token_expired'] }),
        () => two.byOther(UPSERT_WEBHOOK, { id, events: ['project_report_quarterly_overdue'] }),
      )
      assert.deepEqual(done(acted).upsertWebhook.events, ['token_expired'])
      assert.deepEqual(done(happened).upsertWebhook.events, ['project_report_quarterly_overdue'])
    })

    it('takes no statement for an Idempotency-Key that is not given', async () => {
      const statements: string[] = []
      const end = two.proxy.watch(text => void statements.push(text))
      done(await two.byStopped('mutation { upsertUser(name: "Keyless") { id } }'))
      end()
      assert.ok(statements.some(text => /insert into `users`/i.test(text)))
      assert.deepEqual(
        statements.filter(text => /idempotency/i.test(text)),
        [],
      )
    })

    it('is not held up by noting when a token was last used', { skip: waits }, async () => {
      const token = await two.stopped.token({ permissions: ['read'] })
      const answer = await two.stopped.database.transaction(async trx => {
        await trx.raw('SELECT id FROM access_tokens WHERE id = ? LOCK IN SHARE MODE', [token.id])
        return two.byOther('{ viewer { lastUsedAt } }', {}, token)
      })
      assert.equal(done(answer).viewer.lastUsedAt, null)
      await eventually(
        'its use to be noted',
        async () => done(await two.byOther('{ viewer { lastUsedAt } }', {}, token)).viewer.lastUsedAt,
        noted => noted !== null,
      )
    })
  })
}
