import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { connect } from 'node:net'
import { after, before, describe, it } from 'node:test'
import { gzipSync } from 'node:zlib'
import { signRequest } from '../../shared/hmac.ts'
import { startTestServer, type TestServer } from '../support/server.ts'
import { type Answered, graphqlBody, send } from './signed-client.ts'

const MODERN = 'application/graphql-response+json'
const BOTH = `${MODERN}; charset=utf-8`
const LEGACY = 'application/json; charset=utf-8'

describe('what a client is answered', () => {
  let server: TestServer
  let admin: Awaited<ReturnType<TestServer['token']>>
  before(async () => {
    server = await startTestServer('sqlite')
    admin = await server.token()
  })
  after(() => server.stop())

  type Sent = { method?: string; headers?: Record<string, string>; path?: string }
  const signed = (body: string | Buffer, { headers = {}, method = 'POST', path = '/graphql' }: Sent = {}) => {
    const signing = signRequest({
      method,
      url: new URL(path, server.url),
      body,
      credentials: admin,
      at: new Date(),
      nonce: randomUUID(),
    })
    const all = { 'content-type': 'application/json', ...signing, ...headers }
    return send(server.url, { method, path, headers: all, body: body as string })
  }
  const unsigned = (path: string, { method = 'GET', headers = {} }: Sent = {}) =>
    send(server.url, { path, method, headers })
  const viewer = graphqlBody('{ viewer { id } }')
  const only = ({ json }: Answered) => json.errors[0]

  it('comes in the media type that it weighs most, and in the first of two that weigh the same', async () => {
    for (const [accept, expected] of [
      [`application/json;q=0.5, ${MODERN};q=0.9`, BOTH],
      [`${MODERN};q=0.5, application/json;q=0.9`, LEGACY],
      [`${MODERN};q=0, application/json`, LEGACY],
      [`${MODERN}, application/json`, BOTH],
      [`application/json, ${MODERN}`, LEGACY],
      [`${MODERN}; charset="UTF-8"`, BOTH],
      ['*/*', LEGACY],
      ['text/html, */*;q=0.1', LEGACY],
    ] as const) {
      const { status, headers } = await signed(viewer, { headers: { accept } })
      assert.deepEqual([status, headers['content-type']], [200, expected], accept)
    }
    for (const accept of ['text/html', `${MODERN};q=0`, 'application/json; charset=latin1']) {
      const answer = await signed(viewer, { headers: { accept } })
      assert.deepEqual([answer.status, only(answer).extensions.code], [406, 'BAD_USER_INPUT'], accept)
    }
  })

  it('comes in that type at the door too', async () => {
    const headers = { accept: `application/json;q=0.1, ${MODERN}` }
    const large = { ...headers, 'content-length': '2000000' }
    for (const [status, answer] of [
      [401, await unsigned('/graphql', { method: 'POST', headers })],
      [404, await unsigned('/nothing', { headers })],
      [405, await unsigned('/graphql', { method: 'PUT', headers })],
      [413, await unsigned('/graphql', { method: 'POST', headers: large })],
      [415, await signed(viewer, { headers: { ...headers, 'content-type': 'text/plain' } })],
    ] as const) {
      assert.deepEqual([answer.status, answer.headers['content-type']], [status, BOTH])
      assert.equal(only(answer).extensions.requestId, answer.headers['x-request-id'])
    }
    const refused = await unsigned('/graphql', { method: 'POST', headers: { accept: 'image/png' } })
    assert.deepEqual([refused.status, refused.headers['content-type']], [401, LEGACY])
  })

  it('is 400 where nothing was executed, a variable that cannot be coerced included', async () => {
    const body = graphqlBody('query ($q: MangoQuery) { organisations(query: $q) { id } }', { q: 3 })
    const modern = await signed(body, { headers: { accept: MODERN } })
    assert.deepEqual([modern.status, only(modern).extensions.argument], [400, 'query'])
    assert.equal('data' in modern.json, false)
    assert.equal((await signed(body, { headers: { accept: 'application/json' } })).status, 200)
  })

  it('says which methods a path takes', async () => {
    for (const [path, allow] of [
      ['/graphql', 'GET, POST'],
      ['/docs', 'HEAD, GET'],
      ['/livez', 'HEAD, GET'],
      ['/readyz', 'HEAD, GET'],
      ['/metrics', 'HEAD, GET'],
      ['/.well-known/jwks.json', 'HEAD, GET'],
      ['/spec/webhooks.json', 'HEAD, GET'],
      ['/', 'HEAD, GET'],
    ] as const) {
      const refused = await unsigned(path, { method: 'DELETE' })
      assert.deepEqual([refused.status, refused.headers.allow], [405, allow], path)
      const asked = await unsigned(path, { method: 'OPTIONS' })
      assert.deepEqual([asked.status, asked.headers.allow], [204, allow], path)
    }
  })

  it('has a request id where Node itself would refuse without a word', async () => {
    const { hostname, port } = new URL(server.url)
    const raw = (text: string): Promise<string> =>
      new Promise((resolve, reject) => {
        let received = ''
        const socket = connect(Number(port), hostname)
        socket.on('error', reject).on('close', () => resolve(received))
        socket.on('data', chunk => {
          received += chunk.toString('latin1')
        })
        socket.write(text)
      })
    for (const [status, text] of [
      [400, 'nonsense\r\n\r\n'],
      [400, 'GET /livez HTTP/1.1\r\nConnection: close\r\n\r\n'],
      [400, 'GET /livez HTTP/1.1\r\nHost: here\r\nHost: there\r\nConnection: close\r\n\r\n'],
      [400, 'GET /livez HTTP/1.1\r\nHost: here\r\nHOST: there\r\nConnection: close\r\n\r\n'],
      [505, 'GET /livez HTTP/2.0\r\nHost: here\r\nConnection: close\r\n\r\n'],
      [417, 'GET /livez HTTP/1.1\r\nHost: here\r\nExpect: much\r\nConnection: close\r\n\r\n'],
      [431, `GET /livez HTTP/1.1\r\nHost: here\r\nX: ${'x'.repeat(20_000)}\r\n\r\n`],
    ] as const) {
      const answer = await raw(text)
      assert.equal(Number(/^HTTP\/1\.1 (\d+)/.exec(answer)?.[1]), status, answer)
      const id = /x-request-id: (\S+)/i.exec(answer)?.[1]
      assert.ok(id && answer.includes(`"requestId":"${id}"`), answer)
    }
  })

  it('is no guess at a body that is not UTF-8, or compressed', async () => {
    const cut = Buffer.concat([
      Buffer.from('{"query":"{ viewer { id } } #'),
      Buffer.from([0xff, 0xfe]),
      Buffer.from('"}'),
    ])
    const garbled = await signed(cut)
    assert.deepEqual([garbled.status, only(garbled).message], [400, 'The body is not UTF-8.'])
    const compressed = await signed(gzipSync(viewer), { headers: { 'content-encoding': 'gzip' } })
    assert.deepEqual([compressed.status, compressed.headers['accept-encoding']], [415, 'identity'])
    assert.match(only(compressed).message, /compressed/)
    assert.equal((await signed(viewer, { headers: { 'content-encoding': 'identity' } })).status, 200)
  })

  it('is the same for a charset in quotes, and 415 for another', async () => {
    for (const [charset, status] of [
      ['"utf-8"', 200],
      ['UTF-8', 200],
      ['iso-8859-1', 415],
    ] as const) {
      const headers = { 'content-type': `application/json; charset=${charset}` }
      assert.equal((await signed(viewer, { headers })).status, status, charset)
    }
  })

  it('names the argument that is missing, and the one that an inline value is wrong in', async () => {
    for (const [document, argument] of [
      ['mutation { createAccessToken(name: "x") { apiKey } }', 'permissions'],
      ['{ counts { count } }', 'resource'],
      ['{ organisations(query: { limit: 1.5 }) { id } }', 'query'],
    ] as const) {
      assert.equal(only(await signed(graphqlBody(document))).extensions.argument, argument, document)
    }
  })

  it('tells where things are', async () => {
    const { json } = await unsigned('/')
    assert.equal(json.graphql, new URL('/graphql', server.config.baseUrl).href)
    for (const [name, url] of Object.entries<string>(json)) {
      if (name === 'service' || name === 'graphql') continue
      assert.equal((await unsigned(new URL(url).pathname)).status, 200, name)
    }
    const page = await unsigned('/', { headers: { accept: 'text/html' } })
    assert.match(page.headers['content-security-policy'] as string, /default-src 'none'/)
    for (const [, link] of page.text.matchAll(/href="\.([^"]+)"/g)) {
      assert.notEqual((await unsigned(link!)).status, 404, link)
    }
  })

  it('is SQL and indexes to admins only', async () => {
    const document = `{ explain(resource: organisations, query: { selector: { name: { _regex: "x" } } }) {
      sql indexes matchedRowByRow sortedAfterwards rowsExamined } }`
    const told = (await server.graphql(document, {}, admin)).data.explain
    assert.match(told.sql, /select/i)
    const reader = await server.token({ permissions: ['read'] })
    const { data } = await server.graphql(document, {}, reader)
    assert.deepEqual([data.explain.sql, data.explain.indexes], [null, null])
    assert.deepEqual(data.explain.matchedRowByRow, told.matchedRowByRow)
  })

  it('is a refusal where null would make a token that sees everything', async () => {
    const document = `mutation ($ids: [UUID!]) {
      createAccessToken(name: "x", permissions: [read], organisationIds: $ids) { apiKey } }`
    const { errors } = await server.graphql(document, { ids: null }, admin)
    assert.deepEqual(
      [errors![0]!.extensions.code, errors![0]!.extensions.argument],
      ['BAD_USER_INPUT', 'organisationIds'],
    )
    assert.ok((await server.graphql(document, {}, admin)).data.createAccessToken.apiKey)
  })

  it('is a refusal of quarters whose dates cannot be written', async () => {
    const submit = async (quarter: string) => {
      const document = `mutation ($id: UUID!, $quarter: String!) {
        submitProjectReport(projectId: $id, quarter: $quarter, submitterId: $id) { id } }`
      return (await server.graphql(document, { id: randomUUID(), quarter }, admin)).errors![0]!.extensions.code
    }
    for (const quarter of ['0000-1', '1899-4', '9999-1']) assert.equal(await submit(quarter), 'BAD_USER_INPUT', quarter)
    for (const quarter of ['1900-1', '9998-4']) assert.equal(await submit(quarter), 'NOT_FOUND', quarter)
  })
})
