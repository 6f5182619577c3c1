import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, it } from 'node:test'
import { forgetSignatures } from '../../server/domain/used-signatures.ts'
import { createLog } from '../../server/log.ts'
import { rotateSigningKey } from '../../server/maintenance.ts'
import { runSchedule } from '../../server/scheduler/scheduler.ts'
import { signRequest } from '../../shared/hmac.ts'
import { describeEachEngine } from '../support/databases.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, type GraphqlAnswer, startTestServer, type TestServer } from '../support/server.ts'

const AUDIT = `query ($query: MangoQuery) { auditLog(query: $query) {
  id time accessTokenId accessToken { name } actor operation arguments subjectId requestId } }`
const SUBMIT = `mutation ($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
  submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) { id } }`
const ORGANISATION = 'mutation ($name: String!) { upsertOrganisation(name: $name) { id } }'

/** The clocks of a machine and of its database may differ by so much. */
const CLOCKS_MS = 5_000

const done = (answer: GraphqlAnswer) => {
  assert.equal(answer.errors, undefined, JSON.stringify(answer.errors))
  return answer.data
}

describeEachEngine('the audit log', engine => {
  let server: TestServer
  let receiver: Receiver
  before(async () => {
    server = await startTestServer(engine, { env: { TIDINGS_ROLES: 'api' } })
    receiver = await startReceiver()
  })
  after(async () => {
    await receiver?.close()
    await server?.stop()
  })

  const entries = async (selector: object, as?: Awaited<ReturnType<TestServer['token']>>) =>
    done(await server.graphql(AUDIT, { query: { selector, sort: [{ id: 'asc' }] } }, as)).auditLog

  it('tells who changed what, when, by which request', async () => {
    const { projectId, userId } = await addProject(server.database)
    const token = await server.token({ name: 'reporter', permissions: ['reports'] })
    const given = { projectId, quarter: '2026-3', submitterId: userId }
    const before = Date.now()
    const answer = await server.graphql(SUBMIT, given, token)
    const doneAt = Date.now()
    done(answer)
    const [entry, ...others] = await entries({ accessTokenId: token.id })
    assert.deepEqual(others, [])
    assert.equal(entry.operation, 'submitProjectReport')
    assert.deepEqual(entry.arguments, given)
    assert.deepEqual(entry.accessToken, { name: 'reporter' })
    assert.equal(entry.requestId, answer.headers.get('x-request-id'))
    const time = Date.parse(entry.time)
    assert.ok(time > before - CLOCKS_MS && time < doneAt + CLOCKS_MS, entry.time)
    assert.equal((await entries({ 'arguments.projectId': projectId })).length, 1, 'it is found by what was given')
  })

  it('names what was made, and keeps no secret', async () => {
    const made = done(
      await server.graphql(
        'mutation { createAccessToken(name: "made", permissions: [read]) { accessToken { id } secret } }',
      ),
    ).createAccessToken
    const [entry] = await entries({ subjectId: made.accessToken.id })
    assert.equal(entry.operation, 'createAccessToken')
    assert.deepEqual(entry.arguments, { name: 'made', permissions: ['read'] })
    assert.ok(!JSON.stringify(await server.database.knex('audit_log')).includes(made.secret))
  })

  it('has one entry for a change that took several transactions, and none for one that was refused', async () => {
    const token = await server.token({ permissions: ['webhooks', 'read'] })
    const create = 'mutation ($url: String!) { createWebhook(url: $url) { id } }'
    const { id } = done(await server.graphql(create, { url: receiver.url }, token)).createWebhook
    const refused = await server.graphql(create, { url: 'http://127.0.0.1:1/' }, token)
    assert.equal(refused.errors?.[0]?.extensions.code, 'PING_FAILED')
    const again = await server.graphql(
      'mutation ($id: UUID!) { redeliver(deliveryId: $id) { id } }',
      { id: randomUUID() },
      token,
    )
    assert.equal(again.errors?.[0]?.extensions.code, 'NOT_FOUND')
    const found = await entries({ accessTokenId: token.id })
    assert.deepEqual(
      found.map(({ operation, subjectId }: { operation: string; subjectId: string }) => [operation, subjectId]),
      [['createWebhook', id]],
    )
  })

  it('has an entry for each field of a mutation', async () => {
    const token = await server.token()
    const document = 'mutation { a: upsertUser(name: "A") { id } c: upsertUser(name: "C") { id } }'
    const answer = await server.graphql(document, {}, token)
    done(answer)
    const found = await entries({ accessTokenId: token.id })
    assert.deepEqual(
      found.map(({ arguments: given }: { arguments: object }) => given),
      [{ name: 'A' }, { name: 'C' }],
    )
    assert.deepEqual(
      found.map(({ subjectId }: { subjectId: string }) => subjectId),
      [answer.data.a.id, answer.data.c.id],
    )
  })

  it('has one entry for what was sent twice under an Idempotency-Key', async () => {
    const token = await server.token()
    const url = new URL('/graphql', server.url)
    const body = JSON.stringify({ query: ORGANISATION, variables: { name: 'Twice' } })
    for (const replayed of [null, 'true']) {
      const signed = signRequest({
        ...{ method: 'POST', url, body, credentials: token, at: new Date(server.clock.now()), nonce: randomUUID() },
        idempotencyKey: 'twice',
      })
      const headers = { ...signed, 'content-type': 'application/json' }
      const response = await fetch(url, { method: 'POST', headers, body })
      done((await response.json()) as GraphqlAnswer)
      assert.equal(response.headers.get('idempotency-replayed'), replayed)
    }
    const found = await entries({ accessTokenId: token.id })
    assert.equal(found.length, 1)
    assert.equal(found[0].operation, 'upsertOrganisation')
    assert.ok(found[0].subjectId)
  })

  it('is shown to an admin that sees all organisations, and to nobody else', async () => {
    const { organisationId } = await addProject(server.database)
    const limited = await server.token({ permissions: ['admin'], organisationIds: [organisationId] })
    const reader = await server.token({ permissions: ['read', 'webhooks', 'reports'] })
    assert.ok((await entries({})).length > 0)
    for (const token of [limited, reader]) {
      assert.deepEqual(await entries({}, token), [])
      const count = '{ counts(resource: auditLog) { count } }'
      assert.deepEqual(done(await server.graphql(count, {}, token)).counts, [{ count: 0 }])
    }
  })

  it('cuts what is long in what was given', async () => {
    const token = await server.token()
    await server.graphql(ORGANISATION, { name: 'x'.repeat(255) }, token)
    const ids = Array.from({ length: 500 }, () => randomUUID())
    const users = ids.map((id, n) => ({ id, name: `u${n}`, created_at: 1, updated_at: 1 }))
    await server.database.knex('organisations').insert(users.slice(0, 100))
    const document =
      'mutation ($ids: [UUID!]) { ' +
      'createAccessToken(name: "many", permissions: [read], organisationIds: $ids) { secret } }'
    done(await server.graphql(document, { ids: ids.slice(0, 100) }, token))
    const [, entry] = await entries({ accessTokenId: token.id })
    assert.equal(entry.arguments.organisationIds.length, 51)
    assert.equal(entry.arguments.organisationIds.at(-1), '… and 50 more')
  })

  it('names the operator who worked on the machine itself', async () => {
    await rotateSigningKey(server.database, server.config)
    const [entry] = await entries({ operation: 'server keys rotate' })
    assert.match(entry.actor, /.+ on .+/)
    assert.equal(entry.accessTokenId, null)
  })

  it('is kept when the signatures in it are forgotten, and goes after the days that are configured', async () => {
    const { database } = server
    const all = () => database.knex('audit_log').pluck('id')
    const shown = async () => (await entries({})).length
    const before = await shown()
    const later = Date.now() + 10 * 60_000 + 5_000
    while ((await forgetSignatures(database.knex, later, 3)) > 0);
    assert.equal(await shown(), before)
    assert.deepEqual(await database.knex('audit_log').whereNotNull('signature_hash'), [])
    assert.equal((await all()).length, before, 'what marked a signature and nothing else is gone')
    const tools = { database, log: createLog('silent'), reportDueDays: 30, retentionDays: 30, onEvents: () => {} }
    const at = (days: number) => ({ now: () => Date.now() + days * 24 * 3600_000 })
    await runSchedule({ ...tools, clock: at(9), auditDays: 10 })
    assert.ok((await all()).length >= before)
    await runSchedule({ ...tools, clock: at(11), auditDays: 10 })
    assert.deepEqual(await all(), [])
  })
})
