import assert from 'node:assert/strict'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, it } from 'node:test'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { startTestServer, type TestServer } from '../support/server.ts'
import { temporaryFolder, tidings } from './tidings.ts'

const home = temporaryFolder()

describe('the evidence of a delivery', () => {
  let server: TestServer
  let receiver: Receiver
  let exported: string
  let deliveryId: string

  before(async () => {
    receiver = await startReceiver()
    server = await startTestServer('sqlite')
    const as = await server.token({ permissions: ['admin'] })
    const { data } = await server.graphql(`mutation { createWebhook(url: "${receiver.url}") { id } }`, {}, as)
    await server.graphql(`mutation { pingWebhook(id: "${data.createWebhook.id}") { id } }`, {}, as)
    deliveryId = receiver.requests.at(-1)!.body.eventId
    const env = { TIDINGS_URL: server.url, TIDINGS_API_KEY: as.apiKey, TIDINGS_API_SECRET: as.apiSecret }
    const { code, stdout, stderr } = await tidings(['deliveries', 'export', deliveryId], { home, env })
    assert.equal(code, 0, stderr)
    exported = stdout
  })
  after(() => Promise.all([server.stop(), receiver.close()]))

  const verify = async (text: string, more: string[] = []) => {
    const file = join(home, 'evidence.json')
    writeFileSync(file, text)
    const { code, stdout, stderr } = await tidings(['verify', '--evidence', file, '-o', 'json', ...more], { home })
    const failed = (JSON.parse(stdout || '{"checks":[]}').checks as { name: string; status: string }[])
      .filter(({ status }) => status === 'failed')
      .map(({ name }) => name)
    return { code, failed, stderr }
  }

  it('has the body as it was sent, and the key that signed it', () => {
    const evidence = JSON.parse(exported)
    assert.equal(evidence.request.body, receiver.requests.at(-1)!.rawBody)
    assert.equal(evidence.keys[0].kid, evidence.attempts[0].keyId)
    assert.doesNotMatch(exported, /Bearer|"d":/)
  })

  it('is checked without a connection, and against the issuer’s keys', async () => {
    assert.deepEqual(await verify(exported), { code: 0, failed: [], stderr: (await verify(exported)).stderr })
    const jwks = join(home, 'jwks.json')
    writeFileSync(jwks, await (await fetch(`${server.url}/.well-known/jwks.json`)).text())
    assert.equal((await verify(exported, ['--jwks', jwks])).code, 0)
    writeFileSync(jwks, '{"keys":[]}')
    assert.deepEqual((await verify(exported, ['--jwks', jwks])).failed, ['issuer'])
  })

  it('fails where it was changed', async () => {
    const changed = (change: (evidence: ReturnType<typeof JSON.parse>) => void) => {
      const evidence = JSON.parse(exported)
      change(evidence)
      return verify(JSON.stringify(evidence))
    }
    const body = await changed(evidence => {
      evidence.request.body = evidence.request.body.replace('ping', 'pong')
    })
    assert.deepEqual([body.code, body.failed], [6, ['digest', 'body']])
    const key = await changed(evidence => {
      evidence.keys[0].x = `A${evidence.keys[0].x.slice(1)}`
    })
    assert.deepEqual(key.failed, ['keys'])
    const time = await changed(evidence => {
      evidence.attempts[0].startedAt = '2020-01-01T00:00:00.000+00:00'
    })
    assert.deepEqual(time.failed, ['times'])
    assert.equal((await verify('{}')).code, 2)
  })
})
