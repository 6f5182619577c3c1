import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, it } from 'node:test'
import { decodeJwt } from 'jose'
import { describeEachEngine } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { type Puller, puller } from '../support/puller.ts'
import { startReceiver } from '../support/receiver.ts'
import { addProject, type GraphqlAnswer, startTestServer, type TestServer } from '../support/server.ts'
import { addWebhook } from '../support/webhooks.ts'

const SUBMIT = `mutation($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
  submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) { id } }`
const DISABLE = 'mutation($id: UUID) { upsertWebhook(id: $id, status: disabled) { status } }'
const PUSH = 'mutation($id: UUID, $url: String) { upsertWebhook(id: $id, transport: push, url: $url) { transport } }'
const STORY = `query($query: MangoQuery) { deliveries(query: $query) {
  status attemptCount nextAttemptAt
  attempts { number statusCode failure response retryAfter remoteAddress pulledBy } } }`

describeEachEngine('a pulled webhook', engine => {
  let server: TestServer
  let client: Puller
  before(async () => {
    server = await startTestServer(engine)
    client = puller(server)
  })
  after(() => server?.stop())

  const data = ({ data, errors }: GraphqlAnswer) => {
    assert.equal(errors, undefined, JSON.stringify(errors))
    return data
  }
  /** Makes events, and returns when they are committed. */
  const emit = async (quarters = ['2026-3']) => {
    const { projectId, userId } = await addProject(server.database)
    for (const quarter of quarters) data(await server.graphql(SUBMIT, { projectId, quarter, submitterId: userId }))
  }
  const story = async (id: string) => {
    return data(await server.graphql(STORY, { query: { selector: { id } } })).deliveries[0]
  }
  /** Takes what the webhook is due now, all of it events of one call of `emit`. */
  const drain = async (webhookId: string) => {
    for (let taken = await client.take(webhookId, { limit: 100 }); taken.length > 0; ) {
      await client.answer(taken)
      taken = await client.take(webhookId, { limit: 100 })
    }
  }

  const clientsOf = (id: string) => async () => {
    const document = `query($query: MangoQuery) {
      webhooks(query: $query) { clients { waiting accessTokenName remoteAddress } } }`
    return data(await server.graphql(document, { query: { selector: { id } } })).webhooks[0].clients
  }

  it('is stored once a client has pulled and answered its ping, and has a URL that names it', async () => {
    const webhook = await client.register()
    assert.equal(webhook.transport, 'pull')
    assert.equal(webhook.url, `${server.config.issuerUrl}/pull/${webhook.id}`)
    assert.equal(webhook.status, 'active')
  })

  it('wakes a client that has waited since before it was stored', async () => {
    const id = randomUUID()
    const early = [client.take(id, { waitSeconds: 20 }), client.take(id, { waitSeconds: 20 })]
    const stored = client.upsert({ id, transport: 'pull' })
    const pinged = await Promise.race(early.map(async (taking, n) => ({ taken: await taking, n })))
    assert.equal(JSON.parse(pinged.taken[0]!.body).eventType, 'ping')
    await client.answer(pinged.taken)
    await stored
    await emit()
    const [taken] = await early[1 - pinged.n]!
    assert.equal(JSON.parse(taken!.body).eventType, 'project_report_quarterly_submitted')
    await client.answer([taken!])
  })

  it('is not stored if the client answers its ping with anything but 200', async () => {
    const id = randomUUID()
    const pinged = client.take(id, { waitSeconds: 10 }).then(taken => client.answer(taken, { status: 500 }))
    await assert.rejects(client.upsert({ id, transport: 'pull' }), { code: 'PING_FAILED', statusCode: 500 })
    await pinged
    await assert.rejects(client.take(id), { code: 'NOT_FOUND' })
  })

  it('takes no url, and needs one to be pushed again', async () => {
    const { id } = await client.register()
    const given = 'mutation { createWebhook(transport: pull, url: "https://example.com/") { id } }'
    assert.equal((await server.graphql(given)).errors![0]!.extensions.argument, 'url')
    assert.equal((await server.graphql(PUSH, { id })).errors![0]!.extensions.argument, 'url')
  })

  it('gives a client what an endpoint would have received, and the client’s answer is the delivery’s', async () => {
    const { id, url } = await client.register()
    await emit()
    const [taken] = await client.take(id)
    const claims = JSON.parse(Buffer.from(taken!.headers.authorization!.split('.')[1]!, 'base64url').toString())
    assert.equal(claims.aud, url)
    assert.equal(claims.jti, taken!.deliveryId)
    assert.equal(JSON.parse(taken!.body).webhookId, id)
    assert.match(taken!.headers['content-digest']!, /^sha-256=:/)
    assert.deepEqual(await client.take(id), [])
    const [answered] = await client.answer([taken!], { status: 204, body: 'thanks' })
    assert.deepEqual([answered!.counted, answered!.delivery!.status], [true, 'delivered'])
    const { attempts } = await story(taken!.deliveryId)
    assert.deepEqual([attempts[0].statusCode, attempts[0].response], [204, 'thanks'])
    assert.equal(attempts[0].pulledBy.name, 'test')
    assert.match(attempts[0].remoteAddress, /127\.0\.0\.1|::1/)
  })

  for (const [status, headers, expected] of [
    [422, {}, 'rejected'],
    [500, {}, 'pending'],
    [302, {}, 'pending'],
    [429, { 'Retry-After': '60' }, 'pending'],
    [429, {}, 'cancelled'],
  ] as const) {
    const what = Object.keys(headers).length > 0 ? `${status} with Retry-After` : status
    it(`treats ${what} as an endpoint’s answer`, async () => {
      const { id } = await client.register()
      await emit()
      const taken = await client.take(id)
      const [answered] = await client.answer(taken, { status, headers })
      assert.equal(answered!.counted, true)
      const statusNow = async () => (await story(taken[0]!.deliveryId)).status
      await eventually(`the delivery to be ${expected}`, statusNow, is => is === expected)
      if (status === 500) {
        const again = await client.take(id, { waitSeconds: 5 })
        assert.deepEqual([again[0]!.deliveryId, again[0]!.attempt], [taken[0]!.deliveryId, 2])
        // Both may be of one second: then a new token is the same.
        const [first, second] = [taken, again].map(([one]) => decodeJwt(one!.headers.authorization!.slice(7)).iat!)
        assert.ok(second! >= first!)
      }
      if (expected === 'cancelled') {
        await assert.rejects(client.take(id), { code: 'CONFLICT', status: 'inactive' })
      }
      if (status === 429 && expected === 'pending') {
        const { nextAttemptAt, attempts } = await story(taken[0]!.deliveryId)
        const inMs = Date.parse(nextAttemptAt) - Date.now()
        assert.ok(inMs > 50_000 && inMs <= 60_000, nextAttemptAt)
        assert.equal(attempts[0].retryAfter, nextAttemptAt)
        await emit()
        assert.deepEqual(await client.take(id), [])
        const explain = `query($id: UUID!, $eventId: UUID!) {
          explainDelivery(webhookId: $id, eventId: $eventId) { reasons { code message } } }`
        const [{ event_id: eventId }] = await server.database.knex('deliveries').where({ id: taken[0]!.deliveryId })
        const { reasons } = data(await server.graphql(explain, { id, eventId })).explainDelivery
        assert.equal(reasons[0].code, 'throttled')
        assert.match(reasons[0].message, /^A client asked to wait/)
      }
    })
  }

  it('gives a waiting client nothing until the time that was asked for by 429, though more is committed', async () => {
    const { id } = await client.register()
    await emit(['2026-1', '2026-2'])
    await client.answer(await client.take(id, { limit: 1 }), { status: 429, headers: { 'Retry-After': '60' } })
    const waiting = client.take(id, { waitSeconds: 3 })
    await emit()
    assert.deepEqual(await waiting, [])
  })

  it('gives a waiting client a delivery as soon as it is committed', async () => {
    const { id } = await client.register()
    const waitSeconds = 20
    const waiting = client.take(id, { waitSeconds })
    await emit()
    const beganAt = performance.now()
    const taken = await waiting
    assert.equal(taken.length, 1)
    assert.ok(performance.now() - beganAt < (1000 * waitSeconds) / 4, 'which is not the end of the wait')
    await client.answer(taken)
  })

  it('counts the first answer to an attempt, and the same one again', async () => {
    const { id } = await client.register()
    await emit()
    const taken = await client.take(id)
    await client.answer(taken, { status: 500 })
    const [same] = await client.answer(taken, { status: 500 })
    assert.equal(same!.counted, true)
    const [other] = await client.answer(taken, { status: 200 })
    assert.equal(other!.counted, false)
    assert.match(other!.reason!, /500/)
    assert.equal((await story(taken[0]!.deliveryId)).status, 'pending')
    await drain(id)
  })

  it('does not count the answer to an attempt that nobody took', async () => {
    const { id } = await client.register()
    await emit()
    const [taken] = await client.take(id)
    const [answered] = await client.answer([{ ...taken!, attempt: 2 }])
    assert.equal(answered!.counted, false)
    const [unknown] = await client.answer([{ ...taken!, deliveryId: randomUUID() }])
    assert.deepEqual([unknown!.counted, unknown!.delivery], [false, null])
    await client.answer([taken!])
  })

  it('ends the wait with the reason when it is disabled, and takes the answer of what a client holds', async () => {
    const { id } = await client.register()
    await emit()
    const taken = await client.take(id)
    const waiting = client.take(id, { waitSeconds: 20 })
    waiting.catch(() => {})
    data(await server.graphql(DISABLE, { id }))
    await assert.rejects(waiting, { code: 'CONFLICT', status: 'disabled' })
    const [answered] = await client.answer(taken)
    assert.deepEqual([answered!.counted, answered!.delivery!.status], [true, 'delivered'])
    assert.equal((await client.register({ id, status: 'active' })).status, 'active')
  })

  it('is asked for 1 delivery at least and 100 at most', async () => {
    const { id } = await client.register()
    const rest = { code: 'BAD_USER_INPUT', argument: 'limit' }
    for (const limit of [0, 101]) await assert.rejects(client.take(id, { limit }), rest)
    for (const limit of [1, 100]) assert.deepEqual(await client.take(id, { limit }), [])
  })

  it('says, where nothing can be taken from it, whether it is disabled or pushed', async () => {
    const { id } = await client.register()
    data(await server.graphql(DISABLE, { id }))
    await assert.rejects(client.take(id), { message: /^The webhook is disabled\. Set its status to active/ })
    const pushed = await addWebhook(server.database.knex, { accessTokenId: (await server.token()).id })
    await assert.rejects(client.take(pushed), { message: /its transport is push\.$/ })
  })

  it('ends the wait when the token is revoked', async () => {
    const { id } = await client.register()
    const other = await server.token()
    const waiting = puller(server, other).take(id, { waitSeconds: 20 })
    waiting.catch(() => {})
    data(await server.graphql('mutation($id: UUID!) { revokeAccessToken(id: $id) { id } }', { id: other.id }))
    await assert.rejects(waiting, { code: 'UNAUTHENTICATED', reason: 'revoked' })
  })

  it('ends the wait when the token expires, also at a time that was set meanwhile', async () => {
    const { id } = await client.register()
    const other = await server.token()
    const waiting = puller(server, other).take(id, { waitSeconds: 20 })
    waiting.catch(() => {})
    await eventually('it to wait', clientsOf(id), ({ waiting }) => waiting === 1)
    const expires_at = Date.now() - 1
    await server.database.knex('access_tokens').where({ id: other.id }).update({ expires_at })
    await assert.rejects(waiting, { code: 'UNAUTHENTICATED', reason: 'expired' })
  })

  it('says how many clients wait for it, and who came last', async () => {
    const { id } = await client.register()
    // The one that registered it may have waited for so long that it has been told of.
    await eventually('it to wait for nobody', clientsOf(id), ({ waiting }) => waiting === 0)
    const waiting = [1, 2].map(() => client.take(id, { limit: 1, waitSeconds: 30 }))
    const told = await eventually('them to be told', clientsOf(id), ({ waiting }) => waiting === 2)
    assert.equal(told.accessTokenName, 'test')
    assert.match(told.remoteAddress, /127\.0\.0\.1|::1/)
    await emit(['2026-1', '2026-2'])
    await Promise.all(waiting)
  })

  it('gives nothing to a token that does not see it, which learns nothing from its id', async () => {
    const { id } = await client.register()
    const { organisationId } = await addProject(server.database)
    const stranger = puller(
      server,
      await server.token({ permissions: ['webhooks'], organisationIds: [organisationId] }),
    )
    await emit()
    await assert.rejects(stranger.take(id), { code: 'NOT_FOUND' })
    const [taken] = await client.take(id)
    const [answered] = await stranger.answer([taken!])
    assert.equal(answered!.counted, false)
    const [extended] = await stranger.extend([taken!], 60)
    assert.equal(extended!.leaseUntil, null)
    await client.answer([taken!])
    const reader = puller(server, await server.token({ permissions: ['read'] }))
    await assert.rejects(reader.take(id), { code: 'FORBIDDEN' })
  })

  it('gives a client what the client’s token sees, and leaves the rest to others', async () => {
    const [seen, unseen] = [await addProject(server.database), await addProject(server.database)]
    const { id } = await client.register()
    const name = 'mutation($id: UUID, $to: [UUID!]) { upsertWebhook(id: $id, organisationIds: $to) { id } }'
    data(await server.graphql(name, { id, to: [seen.organisationId, unseen.organisationId] }))
    for (const { projectId, userId } of [unseen, seen]) {
      data(await server.graphql(SUBMIT, { projectId, quarter: '2026-3', submitterId: userId }))
    }
    // What it named before is still due, and out of the sight of those who see the webhook only now.
    data(await server.graphql(name, { id, to: [seen.organisationId] }))
    const of = { permissions: ['webhooks' as const], organisationIds: [seen.organisationId] }
    const projectsTaken = async (client: Puller) =>
      (await client.take(id, { limit: 100 })).map(({ body }) => JSON.parse(body).payload.projectReport.projectId)
    assert.deepEqual(await projectsTaken(puller(server, await server.token(of))), [seen.projectId])
    assert.deepEqual(await projectsTaken(client), [unseen.projectId])
  })

  it('takes the answer of a client whose token has lost sight of it meanwhile: what it took was handled', async () => {
    const project = await addProject(server.database)
    const { id } = await client.register()
    const name = 'mutation($id: UUID, $to: [UUID!]) { upsertWebhook(id: $id, organisationIds: $to) { id } }'
    data(await server.graphql(name, { id, to: [project.organisationId] }))
    const of = { permissions: ['webhooks' as const], organisationIds: [project.organisationId] }
    const limited = puller(server, await server.token(of))
    data(await server.graphql(SUBMIT, { ...project, quarter: '2026-3', submitterId: project.userId }))
    const taken = await limited.take(id, { waitSeconds: 5 })
    assert.equal(taken.length, 1)
    data(await server.graphql(name, { id, to: [(await addProject(server.database)).organisationId] }))
    const [answered] = await limited.answer(taken)
    assert.deepEqual([answered!.counted, answered!.delivery], [true, null])
    await assert.rejects(limited.take(id), { code: 'NOT_FOUND' })
  })

  it('is let in by no client that does not see it, and that gets nothing of its ping', async () => {
    const { organisationId } = await addProject(server.database)
    const id = randomUUID()
    const of = { permissions: ['webhooks' as const], organisationIds: [organisationId] }
    const stored = client.upsert({ id, transport: 'pull' })
    stored.catch(() => {})
    const pings = () => server.database.knex('pull_pings').where({ webhook_id: id })
    await eventually('the ping', pings, ({ length }) => length === 1)
    const stranger = puller(server, await server.token(of))
    await assert.rejects(stranger.take(id, { waitSeconds: 1 }), { code: 'NOT_FOUND' })
    await client.answer(await client.take(id, { waitSeconds: 10 }))
    assert.equal((await stored).status, 'active')
  })

  it('gives nobody what its own token has lost sight of', async () => {
    const { organisationId, projectId, userId } = await addProject(server.database)
    const owner = await server.token({ permissions: ['webhooks'], organisationIds: [organisationId] })
    const { id } = await puller(server, owner).register()
    for (const quarter of ['2026-1', '2026-2']) {
      data(await server.graphql(SUBMIT, { projectId, quarter, submitterId: userId }))
    }
    assert.equal((await client.take(id, { limit: 1 })).length, 1)
    await server.database.knex('access_token_organisations').where('access_token_id', owner.id).delete()
    assert.deepEqual(await client.take(id), [])
  })

  it('is not let in by the answer of a client that has not taken the ping', async () => {
    const id = randomUUID()
    const pinged = client.take(id, { waitSeconds: 10 })
    const stored = client.upsert({ id, transport: 'pull' })
    stored.catch(() => {})
    const [taken] = await pinged
    const [answered] = await puller(server, await server.token()).answer([taken!])
    assert.deepEqual([answered!.counted, answered!.delivery], [false, null])
    await client.answer([taken!], { status: 500 })
    await assert.rejects(stored, { code: 'PING_FAILED', statusCode: 500 })
  })

  it('gives clients more time while they work, 15 minutes at most', async () => {
    const { id } = await client.register()
    await emit()
    const taken = await client.take(id)
    const [extended] = await client.extend(taken, 900)
    const inMs = Date.parse(extended!.leaseUntil!) - Date.now()
    assert.ok(inMs > 880_000 && inMs <= 900_000, String(inMs))
    await client.answer(taken)
    assert.equal((await client.extend(taken, 60))[0]!.leaseUntil, null)
  })

  it('ends an attempt as a timeout when the client does not answer in time, and takes a late answer', async () => {
    const { id } = await client.register()
    await emit()
    const taken = await client.take(id)
    // As if the lease were over.
    await server.database
      .knex('delivery_queue')
      .where({ delivery_id: taken[0]!.deliveryId })
      .decrement('due_at', 30_000)
    const again = await client.take(id, { waitSeconds: 10 })
    assert.deepEqual([again[0]!.deliveryId, again[0]!.attempt], [taken[0]!.deliveryId, 2])
    const { attempts } = await story(taken[0]!.deliveryId)
    assert.deepEqual([attempts[0].failure, attempts[0].pulledBy.name], ['timeout', 'test'])
    await client.answer(taken, { status: 500 })
    const late = await story(taken[0]!.deliveryId)
    assert.deepEqual([late.status, late.attempts[0].statusCode], ['pending', 500])
    const [answered] = await client.answer(again)
    assert.equal(answered!.delivery!.status, 'delivered')
  })

  it('is sent to its URL again when it becomes a pushed one, and what is queued goes there', async t => {
    const receiver = await startReceiver()
    t.after(() => receiver.close())
    const { id } = await client.register()
    await emit()
    data(await server.graphql(PUSH, { id, url: receiver.url }))
    await eventually(
      'both requests',
      () => receiver.requests.length,
      length => length === 2,
    )
    await assert.rejects(client.take(id), { code: 'CONFLICT' })
  })

  it('keeps the order of its projects', async () => {
    const { id } = await client.register({ ordering: 'project' })
    await emit(['2026-1', '2026-2', '2026-3'])
    const quarters: string[] = []
    for (let n = 0; n < 3; n++) {
      const taken = await client.take(id, { limit: 100, waitSeconds: 5 })
      assert.equal(taken.length, 1)
      quarters.push(JSON.parse(taken[0]!.body).payload.projectReport.quarter)
      await client.answer(taken)
    }
    assert.deepEqual(quarters, ['2026-1', '2026-2', '2026-3'])
  })

  it('that heals itself is pinged once a client has refused an event at the last retry', async () => {
    const { id } = await client.register({ recovery: 'automatic' })
    await emit()
    await server.database.knex('delivery_queue').where({ webhook_id: id }).update({ failure_count: 10 })
    await client.answer(await client.take(id), { status: 503 })
    const document = `query($query: MangoQuery) { webhooks(query: $query) { missedSince nextPingAt } }`
    const [webhook] = data(await server.graphql(document, { query: { selector: { id } } })).webhooks
    assert.ok(webhook.missedSince !== null && webhook.nextPingAt !== null, JSON.stringify(webhook))
  })

  it('is pinged on demand by whoever pulls', async () => {
    const { id } = await client.register()
    const pinged = server.graphql('mutation($id: UUID!) { pingWebhook(id: $id) { id status } }', { id })
    await client.answer(await client.take(id, { waitSeconds: 5 }))
    assert.equal(data(await pinged).pingWebhook.status, 'delivered')
  })
})
