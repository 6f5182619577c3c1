import assert from 'node:assert/strict'
import { after, before, it } from 'node:test'
import { describeEachEngine } from '../support/databases.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'

describeEachEngine('what an attempt was', engine => {
  let server: TestServer
  let receiver: Receiver
  let answer: { status: number; headers: Record<string, string> }

  before(async () => {
    answer = { status: 200, headers: { server: 'ledger/2', 'set-cookie': 'a=b' } }
    receiver = await startReceiver({ answer: () => answer })
    server = await startTestServer(engine)
  })
  after(() => Promise.all([server.stop(), receiver.close()]))

  const attempts = async (deliveryId: string) => {
    const fields = `remoteAddress httpVersion phases { lookupMs connectMs tlsMs firstByteMs }
      requestHeaders responseHeaders keyId`
    const { data, errors } = await server.graphql(
      `{ deliveries(query: { selector: { id: "${deliveryId}" } }) { attempts { ${fields} } } }`,
    )
    assert.equal(errors, undefined)
    return data.deliveries[0].attempts
  }

  it('is told of the ping that admitted a webhook and of a delivery, without cookies and the token', async () => {
    const { data } = await server.graphql(`mutation { createWebhook(url: "${receiver.url}") { id } }`)
    const [first] = (await server.graphql('{ deliveries { id } }')).data.deliveries
    const pinged = await server.graphql(`mutation { pingWebhook(id: "${data.createWebhook.id}") { id } }`)
    for (const id of [first.id, pinged.data.pingWebhook.id]) {
      const [{ phases, responseHeaders, requestHeaders, keyId, ...rest }] = await attempts(id)
      assert.deepEqual(rest, { remoteAddress: '127.0.0.1', httpVersion: '1.1' })
      assert.equal(responseHeaders.server, 'ledger/2')
      assert.equal('set-cookie' in responseHeaders, false)
      assert.deepEqual(Object.keys(requestHeaders), ['content-type', 'content-digest', 'user-agent'])
      assert.match(keyId, /^[\w-]{43}$/)
      assert.ok(phases.firstByteMs > 0)
      assert.equal(phases.tlsMs, null)
    }
  })

  it('is signed for those who see the delivery, and is not there for others', async () => {
    const [{ id }] = (await server.graphql('{ deliveries { id } }')).data.deliveries
    const { organisationId } = await addProject(server.database)
    const stranger = await server.token({ permissions: ['read'], organisationIds: [organisationId] })
    const document = `{ deliveryEvidence(deliveryId: "${id}") }`
    assert.equal((await server.graphql(document)).errors, undefined)
    const { data, errors } = await server.graphql(document, {}, stranger)
    assert.deepEqual([data, errors![0]!.extensions.code], [null, 'NOT_FOUND'])
  })

  it('can be selected by', async () => {
    const count = async (attempt: object) => {
      const selector = { attempts: { $elemMatch: attempt } }
      const given = { selector }
      const document =
        'query ($selector: MangoSelector) { counts(resource: deliveries, selector: $selector) { count } }'
      const { data, errors } = await server.graphql(document, given)
      assert.equal(errors, undefined)
      return data.counts[0].count
    }
    assert.equal(await count({ remoteAddress: '127.0.0.1', 'phases.firstByteMs': { $gt: 0 } }), 2)
    assert.equal(await count({ 'responseHeaders.server': 'other' }), 0)
  })
})
