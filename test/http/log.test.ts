import assert from 'node:assert/strict'
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { after, before, describe, it } from 'node:test'
import Koa from 'koa'
import { createAccessToken } from '../../server/domain/access-tokens.ts'
import { requestId } from '../../server/http/request-id.ts'
import { createSealer } from '../../server/keys/seal.ts'
import type { Log } from '../../server/log.ts'
import { type Credentials, signRequest } from '../../shared/hmac.ts'
import { startProxy } from '../database/proxy.ts'
import { masterKey, type ServerProcess, startServerProcess } from '../delivery/server-process.ts'
import { engines, migratedDatabase, type TestDatabase } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, sendGraphql } from '../support/server.ts'

// biome-ignore lint/suspicious/noExplicitAny: a test looks at what was written
type Line = any

describe("a server's log", () => {
  let given: TestDatabase
  let server: ServerProcess
  let receiver: Receiver
  let token: Credentials & { id: string }
  before(async () => {
    given = await migratedDatabase('sqlite')
    const sealer = createSealer([Buffer.from(masterKey, 'base64')])
    token = await given.database.transaction(trx =>
      createAccessToken(trx, sealer, { name: 'log', permissions: ['admin'] }, Date.now()),
    )
    server = await startServerProcess(given.url, { TIDINGS_LOG_LEVEL: 'info', TIDINGS_RETRY_SCHEDULE: '0.05' })
    // Pings are answered; then one is throttled for good, the other fails until it is given up.
    receiver = await startReceiver({
      answer: ({ path, body }) => {
        if (body.eventType === 'ping') return { status: 200 }
        return { status: path === '/throttled' ? 429 : 500 }
      },
    })
  })
  after(async () => {
    await server?.end('SIGKILL')
    await receiver?.close()
    await given?.drop()
  })
  const lines = (): Line[] =>
    server
      .log()
      .split('\n')
      .filter(line => line.startsWith('{'))
      .map(line => JSON.parse(line))
  const lineOf = async (what: string, isIt: (line: Line) => boolean): Promise<Line> =>
    (
      await eventually(
        what,
        () => lines().filter(isIt),
        found => found.length > 0,
      )
    )[0]

  const ask = async (query: string, headers: Record<string, string> = {}): Promise<Response> => {
    const url = new URL('/graphql', server.url)
    const body = JSON.stringify({ query })
    const signed = signRequest({ method: 'POST', url, body, credentials: token, at: new Date() })
    return fetch(url, { method: 'POST', headers: { ...signed, 'content-type': 'application/json', ...headers }, body })
  }

  it('has one line of a request: whose it was, what it asked for, and what came of it', async () => {
    const { headers } = await ask('{ viewer { id } }', { 'x-request-id': 'order-17/3' })
    assert.equal(headers.get('x-request-id'), 'order-17/3')
    const { level, tokenId, operation, status, code, method, path } = await lineOf(
      'the line',
      line => line.requestId === 'order-17/3',
    )
    assert.deepEqual(
      { level, tokenId, operation, status, code, method, path },
      {
        level: 30,
        tokenId: token.id,
        operation: 'viewer',
        status: 200,
        code: undefined,
        method: 'POST',
        path: '/graphql',
      },
    )
    await ask('mutation { pingWebhook(id: "00000000-0000-7000-8000-000000000000") { id } }', {
      'x-request-id': 'wrong',
    })
    const wrong = await lineOf('its line', line => line.requestId === 'wrong')
    assert.deepEqual([wrong.operation, wrong.code], ['pingWebhook', 'NOT_FOUND'])
  })

  it('takes over no id of a request that could be mistaken for more than one', async () => {
    for (const id of ['two words', 'x'.repeat(129), '"quoted"', '']) {
      const { headers } = await ask('{ viewer { id } }', { 'x-request-id': id })
      assert.match(headers.get('x-request-id')!, /^[\da-f-]{36}$/, id)
    }
  })

  it('says of a 401 why, for which key and from where', async () => {
    const stranger = { apiKey: 'tk_nobody', apiSecret: Buffer.alloc(32).toString('base64') }
    await sendGraphql(server.url, stranger, '{ viewer { id } }')
    const { reason, apiKey, address, code } = await lineOf('the refusal', line => line.status === 401)
    assert.deepEqual(
      { reason, apiKey, address, code },
      { reason: 'unknown_key', apiKey: 'tk_nobody', address: '127.0.0.1', code: 'UNAUTHENTICATED' },
    )
  })

  it('leaves out what probes ask', async () => {
    for (const path of ['/livez', '/readyz', '/metrics']) await fetch(server.url + path)
    await fetch(`${server.url}/nothing-here`)
    await lineOf('the line after them', line => line.path === '/nothing-here')
    assert.deepEqual(
      lines().filter(line => /livez|readyz|metrics/.test(line.path)),
      [],
    )
  })

  it('says which webhook became inactive, and which delivery was dropped', async () => {
    const { projectId, userId } = await addProject(given.database)
    const webhook = async (path: string): Promise<string> => {
      const document = 'mutation ($url: String!) { createWebhook(url: $url) { id } }'
      const { data } = await sendGraphql(server.url, token, document, { url: new URL(path, receiver.url).href })
      return data.createWebhook.id
    }
    const [throttled, failing] = [await webhook('/throttled'), await webhook('/failing')]
    await sendGraphql(
      server.url,
      token,
      `mutation ($projectId: UUID!, $userId: UUID!) {
        submitProjectReport(projectId: $projectId, quarter: "2026-1", submitterId: $userId) { id } }`,
      { projectId, userId },
    )
    const inactive = await lineOf('the inactive webhook', line => line.msg === 'a webhook has become inactive')
    assert.deepEqual([inactive.level, inactive.webhookId], [40, throttled])
    const dropped = await lineOf('the dropped delivery', line => line.msg === 'a delivery was dropped')
    const { level, webhookId, attempt, reason, statusCode } = dropped
    assert.deepEqual(
      { level, webhookId, attempt, reason, statusCode },
      { level: 40, webhookId: failing, attempt: 2, reason: 'retries_exhausted', statusCode: 500 },
    )
    const [{ id }] = await given.database.knex('deliveries').where({ status: 'dropped' })
    assert.equal(dropped.deliveryId, id)
  })

  it("counts strangers' junk, and tells how much there was", async () => {
    await Promise.all(Array.from({ length: 200 }, () => fetch(`${server.url}/graphql`, { method: 'POST', body: '{}' })))
    await server.end('SIGTERM')
    const missing = lines().filter(line => line.reason === 'missing')
    assert.equal(missing.length, 10)
    const { more } = lines().find(line => line.kind === 'request 401 missing')
    assert.equal(more, 190)
  })
})

for (const engine of engines.filter(name => name !== 'sqlite')) {
  it(`an outage is told now and then, however many requests it refuses (${engine})`, async t => {
    const given = await migratedDatabase(engine)
    t.after(() => given.drop())
    const proxy = await startProxy(given.url)
    t.after(() => proxy.close())
    const sealer = createSealer([Buffer.from(masterKey, 'base64')])
    const token = await given.database.transaction(trx =>
      createAccessToken(trx, sealer, { name: 'outage', permissions: ['admin'] }, Date.now()),
    )
    const server = await startServerProcess(proxy.url, { TIDINGS_LOG_LEVEL: 'info' })
    t.after(() => server.end('SIGKILL'))
    proxy.break('refuses')
    const answers = await Promise.all(
      Array.from({ length: 150 }, () => sendGraphql(server.url, token, '{ viewer { id } }')),
    )
    assert.ok(answers.every(({ status }) => status === 503))
    const lines = () => server.log().trim().split('\n')
    const refusals = () => lines().filter(line => line.includes('"status":503')).length
    await eventually('ten lines of refusals', refusals, count => count === 10)
    assert.ok(lines().length < 60, `${lines().length} lines`)
  })
}

describe('an internal error', () => {
  it('is an error in the log, whatever status GraphQL answers it with', async () => {
    const written: { level: string; fields: Line }[] = []
    const at = (level: string) => (fields: object) => void written.push({ level, fields })
    const log = { info: at('info'), warn: at('warn'), error: at('error') } as unknown as Log
    const app = new Koa()
    app.use(requestId({ log }))
    app.use(ctx => {
      ctx.state.error = { code: 'INTERNAL_SERVER_ERROR' }
      ctx.body = { errors: [] }
    })
    const server = app.listen(0, '127.0.0.1')
    await once(server, 'listening')
    try {
      const { status } = await fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}/graphql`)
      assert.equal(status, 200)
      assert.deepEqual(
        written.map(({ level, fields }) => [level, fields.status, fields.code]),
        [['error', 200, 'INTERNAL_SERVER_ERROR']],
      )
    } finally {
      server.close()
    }
  })
})
