import assert from 'node:assert/strict'
import { after, before, describe, it } from 'node:test'
import { REQUEST_MS } from '../../server/database/patience.ts'
import { newId } from '../../server/ids.ts'
import { engines } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { startReceiver } from '../support/receiver.ts'
import { addProject, type GraphqlAnswer } from '../support/server.ts'
import { startTwoServers, type TwoServers } from './two-servers.ts'

const SUBMIT = `mutation ($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
  submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) { id } }`

const READ_ONLY = 'The MySQL server is running with the --super-read-only option'

const assertUnavailable = ({ status, headers, errors }: GraphqlAnswer): void => {
  assert.equal(errors?.[0]?.extensions.code, 'UNAVAILABLE', JSON.stringify(errors))
  assert.deepEqual([status, headers.get('retry-after')], [503, '5'])
}

for (const engine of engines.filter(name => name !== 'sqlite')) {
  describe(`while the database cannot be had (${engine})`, () => {
    let two: TwoServers
    let acme: Awaited<ReturnType<typeof addProject>>
    before(async () => {
      two = await startTwoServers(engine)
      acme = await addProject(two.stopped.database)
    })
    after(() => two?.stop())
    const submitting = (quarter: string) => ({ projectId: acme.projectId, submitterId: acme.userId, quarter })
    const assertNotDone = async (quarter: string) => {
      const submit = () => two.byOther(SUBMIT, submitting(quarter))
      const isAvailable = ({ errors }: GraphqlAnswer) => errors?.[0]?.extensions.code !== 'UNAVAILABLE'
      // TiDB keeps what a statement had locked that waited for too long, for up to 20 s.
      const again = engine.startsWith('tidb')
        ? await eventually('the locks to be gone', submit, isAvailable, { timeoutMs: 30_000 })
        : await submit()
      assert.equal(again.errors, undefined, 'what was refused had not been done')
    }

    it('a mutation waits for a row that is held, is UNAVAILABLE after 10 s, and is not done', async () => {
      const startedMs = performance.now()
      const answer = await two.stopped.database.transaction(async trx => {
        await trx('projects').where('id', acme.projectId).update({ name: 'Held' })
        // A connection that is silent in the middle of a transaction is ended.
        const speaking = setInterval(() => void trx.raw('SELECT 1'), 1_000)
        try {
          return await two.byStopped(SUBMIT, submitting('2026-1'))
        } finally {
          clearInterval(speaking)
        }
      })
      assertUnavailable(answer)
      assert.ok(performance.now() - startedMs < 2 * REQUEST_MS)
      await assertNotDone('2026-1')
    })

    it('queries and mutations are UNAVAILABLE where it refuses connections, and are not done', async () => {
      two.proxy.refuse()
      try {
        const answers = await Promise.all([
          two.byStopped(SUBMIT, submitting('2026-2')),
          two.byStopped('{ projects { id } }'),
        ])
        for (const answer of answers) assertUnavailable(answer)
      } finally {
        two.proxy.mend()
      }
      await assertNotDone('2026-2')
    })

    it('a mutation is UNAVAILABLE where it can only be read, and is not done', async () => {
      const failing = two.proxy.fail(/^INSERT INTO events/, { errno: 1290, sqlState: 'HY000', message: READ_ONLY })
      assertUnavailable(await two.byStopped(SUBMIT, submitting('2026-3')))
      failing.end()
      await assertNotDone('2026-3')
    })

    it('a connection that breaks is not seen by a query, nor by a mutation that was not being committed', async () => {
      for (const [pattern, document, variables] of [
        [/from `projects`/i, '{ projects { id } }', {}],
        [/INSERT INTO events/, SUBMIT, submitting('2026-4')],
      ] as const) {
        const hold = two.proxy.hold(pattern)
        const asking = two.byStopped(document, variables)
        await hold.caught
        two.proxy.cut()
        hold.end()
        assert.equal((await asking).errors, undefined)
      }
    })

    it('nobody is told that nothing was done where a change before it was', async () => {
      const failing = two.proxy.fail(/^INSERT INTO events/, { errno: 1290, sqlState: 'HY000', message: READ_ONLY })
      const { status, errors } = await two.byStopped(
        `mutation ($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
          upsertUser(name: "Done") { id }
          submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) { id } }`,
        submitting('2025-2'),
      )
      failing.end()
      assert.equal(errors?.[0]?.extensions.code, 'UNAVAILABLE')
      assert.match(errors![0]!.message, /this was not done. The earlier parts of the request are done/)
      assert.equal(status, 200)
      assert.equal((await two.stopped.database.knex('users').where({ name: 'Done' })).length, 1)
      await assertNotDone('2025-2')
    })

    it('a recovery that the database goes away from says what it has queued, and where to go on', async () => {
      const receiver = await startReceiver()
      const { knex } = two.stopped.database
      const { data } = await two.byOther('mutation ($url: String!) { createWebhook(url: $url) { id } }', {
        url: receiver.url,
      })
      const webhookId = data.createWebhook.id
      const now = Date.now()
      await knex('webhooks')
        .where({ id: webhookId })
        .update({ created_at: now - 10_000 })
      const missed = Array.from({ length: 600 }, (_, n) => ({
        id: newId(now - 5_000 + n),
        created_at: now - 5_000 + n,
      }))
      const event = { type: 'token_expired', payload: '{}', all_organisations: 1 }
      await knex.batchInsert(
        'events',
        missed.map(one => ({ ...event, ...one })),
        200,
      )
      let pages = 0
      const isSecond = (text: string) => /^INSERT INTO deliveries/.test(text) && ++pages > 1
      const failing = two.proxy.fail(isSecond, { errno: 1290, sqlState: 'HY000', message: READ_ONLY })
      const { data: recovered, errors } = await two.byStopped(
        `mutation ($webhookId: UUID!, $since: DateTime!) {
          recoverDeliveries(webhookId: $webhookId, since: $since) { queued resumeSince } }`,
        { webhookId, since: new Date(now - 8_000).toISOString() },
      )
      failing.end()
      assert.equal(errors, undefined, JSON.stringify(errors))
      const { queued, resumeSince } = recovered.recoverDeliveries
      assert.deepEqual([queued, Date.parse(resumeSince)], [500, missed[499]!.created_at])
      assert.equal(Number((await knex('deliveries').where({ webhook_id: webhookId })).length), 501, 'and its ping')
      await receiver.close()
    })

    it('nobody is told that nothing was done where its answer cannot be read', async () => {
      const isAnswer = /^select .* from `?access_tokens`? .*where `?access_tokens`?\.`?id`? in/is
      const failing = two.proxy.fail(isAnswer, { errno: 1290, sqlState: 'HY000', message: READ_ONLY })
      const { status, errors } = await two.byStopped(
        'mutation { createAccessToken(name: "Untold", permissions: [read]) { accessToken { id } secret } }',
      )
      failing.end()
      const made = await two.stopped.database.knex('access_tokens').where({ name: 'Untold' })
      assert.deepEqual([made.length, failing.failed() > 0], [1, true])
      assert.equal(errors?.[0]?.extensions.code, 'INTERNAL_SERVER_ERROR')
      assert.match(errors![0]!.message, /Changes made by then are done/)
      assert.equal(status, 200)
    })

    for (const [where, answer, quarter] of [
      ['before the commit has arrived', false, '2024-1'],
      ['before the commit is answered', true, '2024-2'],
    ] as const) {
      it(`a mutation whose connection breaks ${where} is done once, and answered`, async () => {
        const hold = two.proxy.hold(/^COMMIT/i, { answer })
        const asking = two.byStopped(SUBMIT, submitting(quarter))
        await hold.caught
        two.proxy.cut()
        hold.end()
        const { data, errors } = await asking
        assert.equal(errors, undefined)
        const found = await two.stopped.database.knex('project_reports').where({ quarter })
        assert.deepEqual(
          found.map(({ id, status }) => ({ id, status })),
          [{ id: data.submitProjectReport.id, status: 'submitted' }],
        )
        assert.equal((await two.stopped.database.knex('events').where('payload', 'like', `%"${quarter}"%`)).length, 1)
      })
    }

    it('nobody is told that nothing was done where the connection breaks at the commit, for good', async () => {
      const hold = two.proxy.hold(/^COMMIT/i, { answer: true })
      const asking = two.byStopped(SUBMIT, submitting('2025-1'))
      await hold.caught
      two.proxy.refuse()
      two.proxy.cut()
      hold.end()
      const { status, errors } = await asking
      two.proxy.mend()
      assert.equal(errors?.[0]?.extensions.code, 'INTERNAL_SERVER_ERROR')
      assert.match(errors![0]!.message, /it is not known whether this was done/)
      assert.equal(status, 200)
    })
  })
}
