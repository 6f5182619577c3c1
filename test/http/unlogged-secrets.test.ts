import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { buffer } from 'node:stream/consumers'
import { after, before, describe, it } from 'node:test'
import { createAccessToken } from '../../server/domain/access-tokens.ts'
import { createSealer } from '../../server/keys/seal.ts'
import type { Credentials } from '../../shared/hmac.ts'
import { newStandardSecret } from '../../shared/standard-webhooks.ts'
import { masterKey, type ServerProcess, startServerProcess } from '../delivery/server-process.ts'
import { migratedDatabase, type TestDatabase } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { sendGraphql } from '../support/server.ts'

const CREATE = `mutation($url: String!, $secret: String, $headers: JSON) {
  made: createWebhook(url: $url, signing: standard, secret: $secret, headers: $headers) { id secret } }`

describe('a server that logs everything and exports traces', () => {
  let exported = ''
  const collector = createServer(async (request, response) => {
    exported += (await buffer(request)).toString('latin1')
    response.setHeader('content-type', 'application/x-protobuf').end()
  })
  let given: TestDatabase
  let server: ServerProcess
  let receiver: Receiver
  let token: Credentials
  before(async () => {
    await new Promise<void>(resolve => collector.listen(0, '127.0.0.1', resolve))
    given = await migratedDatabase('sqlite')
    token = await given.database.transaction(trx =>
      createAccessToken(
        trx,
        createSealer([Buffer.from(masterKey, 'base64')]),
        { name: 'told', permissions: ['admin'] },
        Date.now(),
      ),
    )
    server = await startServerProcess(given.url, {
      OTEL_EXPORTER_OTLP_ENDPOINT: `http://127.0.0.1:${(collector.address() as AddressInfo).port}`,
      OTEL_BSP_SCHEDULE_DELAY: '100',
      TIDINGS_LOG_LEVEL: 'trace',
      TIDINGS_RETRY_SCHEDULE: '0.05',
    })
    // It repeats what it was sent, and fails what is no registration.
    receiver = await startReceiver({
      answer: ({ headers }, n) => ({ status: n === 1 ? 200 : 500, body: JSON.stringify(headers) }),
    })
  })
  after(async () => {
    await server?.end('SIGKILL')
    await receiver?.close()
    await given?.drop()
    collector.closeAllConnections()
    collector.close()
  })

  it('writes a webhook’s secret, a rotated one and a static header’s value into neither', async () => {
    const ask = async (query: string, variables: object = {}) => sendGraphql(server.url, token, query, variables)
    const [own, refused, written] = [newStandardSecret(), newStandardSecret(), newStandardSecret()]
    const value = `gate-${randomUUID()}`
    const { data } = await ask(CREATE, { url: receiver.url, secret: own, headers: { 'X-Gate': value } })
    assert.equal(data.made.secret, own)
    const { id } = data.made
    const rotate = 'mutation($id: UUID!) { made: rotateWebhookSecret(id: $id, graceSeconds: 60) { secret } }'
    const { secret: rotated } = (await ask(rotate, { id })).data.made
    // In the document itself, too; and in requests that are refused.
    await ask(`mutation { rotateWebhookSecret(id: "${id}", secret: "${written}") { secret } }`)
    await ask(CREATE, { url: 'http://127.0.0.1:9/', secret: refused, headers: { 'X-Gate': value } })
    await ask(CREATE, { url: receiver.url, secret: `${refused}!`, headers: { 'X-Gate': value, Host: value } })
    await ask(`mutation { createWebhook(url: 7, secret: "${refused}", nothing: "${value}" { id } }`)
    await ask('mutation($id: UUID!) { pingWebhook(id: $id) { id } }', { id })
    await receiver.waitFor(requests => requests.length === 3)
    await eventually(
      'the lines and spans',
      () => [server.log().includes('rotateWebhookSecret'), exported.includes('deliver ping')],
      found => found.every(Boolean),
    )
    await server.end('SIGTERM')
    for (const secret of [own, rotated, written, refused].flatMap(whole => [whole, whole.slice(6)]).concat(value)) {
      assert.ok(!server.log().includes(secret), `${secret} is in the log`)
      assert.ok(!exported.includes(secret), `${secret} is in a span`)
    }
  })
})
