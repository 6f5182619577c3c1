import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, it } from 'node:test'
import { rows } from '../../server/database/connect.ts'
import { openCarried } from '../../server/domain/webhook-requests.ts'
import { reseal } from '../../server/keys/reseal.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { signRequest } from '../../shared/hmac.ts'
import { newStandardSecret } from '../../shared/standard-webhooks.ts'
import { describeEachEngine } from '../support/databases.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { startTestServer, type TestServer } from '../support/server.ts'

describeEachEngine('a webhook’s secret and the values of its headers', engine => {
  let server: TestServer
  let receiver: Receiver
  before(async () => {
    server = await startTestServer(engine)
    // It repeats what it is sent, as an endpoint that is being tried out may.
    receiver = await startReceiver({
      answer: ({ headers }) => ({
        status: 200,
        headers: { 'x-echo': String(headers['x-gate']) },
        body: JSON.stringify(headers),
      }),
    })
  })
  after(async () => {
    await receiver.close()
    await server.stop()
  })

  const CREATE = `mutation($url: String!, $secret: String, $headers: JSON) {
    made: createWebhook(url: $url, signing: standard, secret: $secret, headers: $headers) { id secret } }`

  it('stand in no row, whatever was done with them, under an Idempotency-Key too', async () => {
    const own = newStandardSecret()
    const value = `gate-${randomUUID()}`
    const key = randomUUID()
    const token = await server.token()
    const send = () => {
      const url = new URL('/graphql', server.url)
      const body = JSON.stringify({
        query: CREATE,
        variables: { url: receiver.url, secret: own, headers: { 'X-Gate': value } },
      })
      const signed = signRequest({ method: 'POST', url, body, credentials: token, at: new Date(), nonce: randomUUID() })
      const headers = { ...signed, 'content-type': 'application/json', 'idempotency-key': key }
      return fetch(url, { method: 'POST', headers, body }).then(answer => answer.json()) as Promise<{
        data: { made: { id: string; secret: string } }
      }>
    }
    const first = await send()
    assert.equal(first.data.made.secret, own)
    assert.deepEqual(await send(), first)
    const { id } = first.data.made
    const { data } = await server.graphql(
      'mutation($id: UUID!) { made: rotateWebhookSecret(id: $id, graceSeconds: 60) { secret } }',
      { id },
    )
    await server.graphql('mutation($id: UUID!) { pingWebhook(id: $id) { id } }', { id })
    const secrets = [own, data.made.secret].flatMap(secret => [secret, secret.slice(6)])
    const tables = await rows<{ name: string }>(
      server.database.knex,
      server.database.dialect.isEmbedded
        ? "SELECT name FROM sqlite_master WHERE type = 'table'"
        : 'SELECT table_name AS name FROM information_schema.tables WHERE table_schema = DATABASE()',
    )
    assert.ok(tables.length > 20)
    for (const { name } of tables) {
      const text = JSON.stringify(await rows(server.database.knex, `SELECT * FROM ${name}`))
      for (const hidden of [...secrets, value]) assert.ok(!text.includes(hidden), `${hidden} stands in ${name}`)
    }
  })

  it('are shown to nobody but the caller who made them', async () => {
    const { data } = await server.graphql(CREATE, { url: receiver.url, headers: { 'X-Gate': 'value-of-gate' } })
    const { id } = data.made
    const reader = await server.token({ permissions: ['read'] })
    const asked =
      '{ webhooks { id secret headers deliveries { attempts { response responseHeaders requestHeaders } } } }'
    const seen = JSON.stringify(await server.graphql(asked, {}, reader))
    assert.ok(seen.includes(id))
    assert.ok(!seen.includes('whsec_') && !seen.includes('value-of-gate'), seen)
    const rotate = 'mutation($id: UUID!) { rotateWebhookSecret(id: $id) { secret } }'
    const { errors } = await server.graphql(rotate, { id }, reader)
    assert.equal(errors?.[0]?.extensions.code, 'FORBIDDEN')
  })

  it('are hidden in what is kept of an answer that is cut, or that writes them for a page', async () => {
    const value = 'Gate <key> & "more"/0123456789'
    const written = [
      `${' '.repeat(1010)}${value}`,
      `?key=${encodeURIComponent(value)}`,
      `<b>${value.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')}</b>`,
      JSON.stringify({ key: value }).replaceAll('/', '\\/'),
      Buffer.from(value).toString('base64'),
    ]
    const endpoint = await startReceiver({
      answer: (_request, n) => ({
        status: n > written.length ? 401 : 200,
        body: written[n - 1] ?? '',
        headers: { 'www-authenticate': `Gate ${value}` },
      }),
    })
    const { data } = await server.graphql(CREATE, { url: endpoint.url, headers: { 'X-Gate': value } })
    const { id } = data.made
    const ping = 'mutation($id: UUID!) { pingWebhook(id: $id) { attempts { response responseHeaders } } }'
    for (const _ of written.slice(1)) await server.graphql(ping, { id })
    const asked = `query($q: MangoQuery) { deliveries(query: $q) { attempts { response responseHeaders } } }`
    const seen = await server.graphql(asked, { q: { selector: { webhookId: id } } })
    assert.equal(seen.data.deliveries.length, written.length)
    const rehearse = 'mutation($id: UUID!) { rehearse(webhookId: $id, scene: ping) { statusCode challenge } }'
    const rehearsed = await server.graphql(rehearse, { id })
    assert.equal(rehearsed.data.rehearse[0].statusCode, 401)
    await endpoint.close()
    for (const text of [JSON.stringify(seen.data), JSON.stringify(rehearsed.data)]) {
      for (const part of ['Gate <k', 'Gate%20', 'Gate &lt;', '0123456', Buffer.from(value).toString('base64')]) {
        assert.ok(!text.includes(part), `${part} is in ${text}`)
      }
    }
  })

  it('are sealed again with a new master key', async () => {
    const { data } = await server.graphql(CREATE, { url: receiver.url, headers: { 'X-Gate': 'value-of-gate' } })
    const next = Buffer.alloc(32, 9)
    const { knex } = server.database
    await knex('processes').delete()
    await reseal(server.database, [next, ...server.config.masterKeys])
    const { request_sealed } = await knex('webhooks').where({ id: data.made.id }).first()
    const { secrets, headers } = openCarried(createSealer([next]), data.made.id, request_sealed)
    assert.deepEqual([secrets[0]!.secret, headers], [data.made.secret, { 'X-Gate': 'value-of-gate' }])
  })
})
