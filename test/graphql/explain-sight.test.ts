import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, it } from 'node:test'
import { insertMany } from '../../server/database/connect.ts'
import { NEVER } from '../../server/domain/lines.ts'
import { newId } from '../../server/ids.ts'
import type { Credentials } from '../../shared/hmac.ts'
import { toIso } from '../../shared/time.ts'
import { describeEachEngine } from '../support/databases.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'
import { addWebhook, type GivenWebhook } from '../support/webhooks.ts'

// What an explanation must not tell a token that does not see it: whom, when, which delivery, which organisation.

const HOUR_MS = 3_600_000
const NOW = Date.now()
const LONG_AGO = NOW - 48 * HOUR_MS
const TYPE = 'project_report_quarterly_submitted'

describeEachEngine('an explanation', engine => {
  let server: TestServer
  let receiver: Receiver
  let ops: Credentials & { id: string }
  let limited: Credentials & { id: string }
  let acme: Awaited<ReturnType<typeof addProject>>
  let bolt: Awaited<ReturnType<typeof addProject>>

  before(async () => {
    receiver = await startReceiver()
    server = await startTestServer(engine, { env: { TIDINGS_ROLES: 'api' } })
    acme = await addProject(server.database, { organisation: 'Acme' })
    bolt = await addProject(server.database, { organisation: 'Bolt' })
    ops = await server.token({ name: 'ops-of-the-house', permissions: ['admin'] })
    limited = await server.token({ permissions: ['read', 'webhooks'], organisationIds: [acme.organisationId] })
  })
  after(() => Promise.all([server.stop(), receiver.close()]))

  const explained = async (webhookId: string, eventId: string, as: Credentials) => {
    const { data, errors } = await server.graphql(
      `{ explainDelivery(webhookId: "${webhookId}", eventId: "${eventId}") { reasons { code message at } next } }`,
      {},
      as,
    )
    assert.equal(errors, undefined, JSON.stringify(errors))
    const { reasons } = data.explainDelivery
    return { text: JSON.stringify(data), codes: reasons.map(({ code }: { code: string }) => code) as string[] }
  }
  const webhook = (given: Partial<GivenWebhook> = {}): Promise<string> =>
    addWebhook(server.database.knex, { accessTokenId: ops.id, url: receiver.url, createdAt: LONG_AGO, ...given })
  const event = async (given: object = {}): Promise<string> => {
    const row = { id: newId(NOW - HOUR_MS), type: TYPE, payload: '{}', created_at: NOW - HOUR_MS }
    const of = { organisation_id: acme.organisationId, project_id: acme.projectId }
    await insertMany(server.database.knex, 'events', [{ ...row, ...of, ...given }])
    return row.id
  }
  const ofBolt = () => ({ organisation_id: bolt.organisationId, project_id: bolt.projectId })
  const delivery = async (webhookId: string, eventId: string, given: object = {}): Promise<string> => {
    const row = { id: newId(NOW - HOUR_MS), event_id: eventId, webhook_id: webhookId, event_type: TYPE }
    await insertMany(server.database.knex, 'deliveries', [
      { ...row, status: 'delivered', created_at: NOW - HOUR_MS, finished_at: NOW - HOUR_MS, ...given },
    ])
    return row.id
  }
  const setStatus = async (id: string, status: string, as: Credentials): Promise<void> => {
    const { errors } = await server.graphql(
      'mutation ($id: UUID!, $status: WebhookStatus) { upsertWebhook(id: $id, status: $status) { id } }',
      { id, status },
      as,
    )
    assert.equal(errors, undefined, JSON.stringify(errors))
  }

  it('tells who changed a webhook to admins that see all organisations, and to whoever it was', async () => {
    const ofAcme = { organisationIds: [acme.organisationId] }
    const own = await server.token({
      ...{ name: 'keeper-of-acme', permissions: ['read', 'webhooks'] },
      organisationIds: [acme.organisationId],
    })
    const others = [
      limited,
      await server.token({ permissions: ['admin'], organisationIds: [acme.organisationId] }),
      await server.token({ permissions: ['read', 'webhooks', 'reports'] }),
    ]
    for (const [actor, name] of [
      [ops, 'ops-of-the-house'],
      [own, 'keeper-of-acme'],
    ] as const) {
      const webhookId = await webhook(ofAcme)
      const cancelled = await event()
      await delivery(webhookId, cancelled, { status: 'cancelled', finished_at: Date.now() + 500 })
      await setStatus(webhookId, 'disabled', actor)
      const [missed] = [await event({ created_at: Date.now() + 50 })]
      const told = { [cancelled]: ['cancelled', 'webhook_disabled'], [missed]: ['webhook_disabled'] }
      for (const [eventId, codes] of Object.entries(told)) {
        for (const as of [ops, actor]) {
          const found = await explained(webhookId, eventId, as)
          assert.deepEqual(found.codes, codes)
          assert.match(found.text, new RegExp(`disabled by “${name}”`))
        }
        for (const as of others) {
          const found = await explained(webhookId, eventId, as)
          assert.deepEqual(found.codes, codes)
          assert.doesNotMatch(found.text, /ops-of|keeper-of| by “/)
        }
      }
      await server.database
        .knex('webhook_versions')
        .where({ webhook_id: webhookId })
        .update({ until_at: NOW - 2 * HOUR_MS })
      await setStatus(webhookId, 'active', actor)
      const between = await event()
      assert.deepEqual((await explained(webhookId, between, actor)).codes, ['disabled_then'])
      for (const as of others)
        assert.doesNotMatch((await explained(webhookId, between, as)).text, /ops-of|keeper-of| by “/)
    }
  })

  it('tells no times of deliveries that the token does not see', async () => {
    const webhookId = await webhook({ accessTokenId: limited.id })
    const missed = await event()
    const [before, behind] = [NOW - 3 * HOUR_MS, NOW - HOUR_MS / 2]
    for (const created_at of [before, behind]) {
      await delivery(webhookId, await event({ ...ofBolt(), created_at }), { created_at })
    }
    const toOps = await explained(webhookId, missed, ops)
    assert.deepEqual(toOps.codes, ['not_active_then'])
    const around = `before the event: one at ${toIso(before)}, after it: one at ${toIso(behind)}.`
    assert.ok(toOps.text.includes(around), toOps.text)
    const toLimited = await explained(webhookId, missed, limited)
    assert.match(toLimited.text, /before the event: none, after it: none/)
  })

  it('names no delivery ahead in the line that the token does not see', async () => {
    const webhookId = await webhook({ accessTokenId: limited.id, ordering: 'project' })
    // The project was of another organisation when the first event happened.
    const first = await event({ organisation_id: bolt.organisationId })
    const second = await event()
    const pending = { status: 'pending', finished_at: null }
    const ahead = await delivery(webhookId, first, { ...pending, next_attempt_at: NOW + HOUR_MS })
    const waiting = await delivery(webhookId, second, pending)
    const line = randomUUID()
    await insertMany(server.database.knex, 'ordered_deliveries', [
      { line, event_at: 1, delivery_id: ahead, event_id: first, waits: 0 },
      { line, event_at: 2, delivery_id: waiting, event_id: second, waits: 1 },
    ])
    await insertMany(server.database.knex, 'delivery_queue', [
      { delivery_id: waiting, event_id: second, webhook_id: webhookId, due_at: NEVER, attempt: 0 },
    ])
    const toOps = await explained(webhookId, second, ops)
    assert.deepEqual(toOps.codes, ['waits_for_turn'])
    assert.ok(toOps.text.includes(ahead))
    const toLimited = await explained(webhookId, second, limited)
    assert.deepEqual(toLimited.codes, ['waits_for_turn'])
    assert.equal(toLimited.text.includes(ahead), false)
  })

  it('names no other organisation of a project that the token does not see', async () => {
    const [cobalt, own] = [await addProject(server.database), await addProject(server.database)]
    const seesTwo = await server.token({
      permissions: ['read', 'webhooks'],
      organisationIds: [cobalt.organisationId, own.organisationId],
    })
    const webhookId = await webhook({ organisationIds: [cobalt.organisationId] })
    const of = { organisation_id: own.organisationId, project_id: own.projectId }
    const eventId = await event(of)
    await event({ ...of, organisation_id: bolt.organisationId })
    assert.deepEqual((await explained(webhookId, eventId, ops)).codes, ['not_chosen', 'project_moved'])
    const toSeesTwo = await explained(webhookId, eventId, seesTwo)
    assert.deepEqual(toSeesTwo.codes, ['not_chosen'])
    assert.equal(toSeesTwo.text.includes(bolt.organisationId), false)
  })
})
