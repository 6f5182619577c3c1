import assert from 'node:assert/strict'
import { after, before, it } from 'node:test'
import { describeEachEngine } from '../support/databases.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'

describeEachEngine('a mutation answers', engine => {
  let server: TestServer
  let receiver: Receiver
  let acme: Awaited<ReturnType<typeof addProject>>

  before(async () => {
    receiver = await startReceiver()
    server = await startTestServer(engine, { env: { TIDINGS_RATE_LIMIT: '0' } })
    acme = await addProject(server.database)
  })
  after(() => Promise.all([server.stop(), receiver.close()]))

  const make = async (document: string, variables: object = {}) => {
    const { data, errors } = await server.graphql(document, variables)
    assert.equal(errors, undefined, JSON.stringify(errors))
    return data
  }

  it('what a webhook is, with its filters and its health', async () => {
    const { a, b } = await make(
      `mutation($url: String!, $organisation: UUID!, $project: UUID!) {
        a: createWebhook(
          url: $url, organisationIds: [$organisation], projectIds: [$project], events: [token_expired]
        ) { ...w }
        b: createWebhook(url: $url, organisationIds: [$organisation]) { ...w }
      }
      fragment w on Webhook { id url status events organisationIds projectIds lastDeliveryAt health { delivered } }`,
      { url: receiver.url, organisation: acme.organisationId, project: acme.projectId },
    )
    assert.deepEqual(
      [a.events, a.organisationIds, a.projectIds],
      [['token_expired'], [acme.organisationId], [acme.projectId]],
    )
    assert.deepEqual(
      [b.status, b.projectIds, b.health, typeof b.lastDeliveryAt],
      ['active', [], { delivered: 1 }, 'string'],
    )
    const ping = `mutation($id: UUID!) { pingWebhook(id: $id) {
      id status webhook { url } event { type } waitsFor { id } attempts { number statusCode failure } } }`
    const { pingWebhook } = await make(ping, { id: a.id })
    assert.deepEqual(pingWebhook.attempts, [{ number: 1, statusCode: 200, failure: null }])
    assert.deepEqual([pingWebhook.webhook, pingWebhook.event], [{ url: receiver.url }, { type: 'ping' }])
    const { recoverDeliveries } = await make(
      'mutation($id: UUID!) { recoverDeliveries(webhookId: $id, since: "2026-01-01T00:00:00Z") { queued webhookId } }',
      { id: a.id },
    )
    assert.equal(recoverDeliveries.webhookId, a.id)
  })

  it('the organisations of a new token', async () => {
    const { createAccessToken } = await make(
      `mutation($ids: [UUID!]) { createAccessToken(name: "ci", permissions: [read], organisationIds: $ids) {
        apiKey accessToken { id permissions organisationIds organisations { name } } } }`,
      { ids: [acme.organisationId] },
    )
    assert.deepEqual(createAccessToken.accessToken.organisations, [{ name: 'Acme' }])
  })

  const name = 'upsertOrganisation(name: "Nobody")'
  for (const [what, document, list] of [
    ['a list', `mutation { ${name} { id projects { id } } }`, 'Organisation.projects'],
    ['one in a fragment', `mutation { ${name} { ...o } } fragment o on Organisation { projects { id } }`, ''],
    [
      'one below what a row names',
      `mutation { a: ${name} { id } b: redeliver(deliveryId: "ID") { webhook { deliveries { id } } } }`,
      '',
    ],
    [
      'a list with arguments',
      `mutation { a: ${name} { id } b: redeliver(deliveryId: "ID") { attempts(query: {limit: 1}) { number } } }`,
      'Delivery.attempts',
    ],
    [
      'the attempts at another delivery',
      `mutation { a: ${name} { id } b: redeliver(deliveryId: "ID") { waitsFor { attempts { number } } } }`,
      'Delivery.attempts',
    ],
  ] as const) {
    it(`not ${what}, which is refused before anything is done`, async () => {
      const { data, errors } = await server.graphql(document.replace('ID', acme.userId))
      assert.equal(data, undefined)
      assert.equal(errors![0]!.extensions.code, 'BAD_USER_INPUT')
      assert.match(errors![0]!.message, /^\w+\.\w+ is a list, which a mutation does not answer/)
      assert.ok(errors![0]!.message.startsWith(list))
      const found = await make('{ organisations(query: {selector: {name: "Nobody"}}) { id } }')
      assert.deepEqual(found.organisations, [])
    })
  }

  it('under any name', async () => {
    const named = await make('mutation { __proto__: upsertOrganisation(name: "Delta") { name } }')
    assert.deepEqual(Object.entries(named), [['__proto__', { name: 'Delta' }]])
  })
})
