import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { request } from 'node:http'
import { after, before, it } from 'node:test'
import { toIso } from '../../shared/time.ts'
import { describeEachEngine } from '../support/databases.ts'
import { startTestServer, type TestServer } from '../support/server.ts'
import { type Answered, graphqlBody, type Signing, send, sign } from './signed-client.ts'

const MIB = 1024 * 1024
const REQUEST_ID = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$/

describeEachEngine('POST /graphql', engine => {
  let server: TestServer
  let signed: (given: Partial<Signing>) => Required<Parameters<typeof send>[1]>
  before(async () => {
    server = await startTestServer(engine, { env: { TIDINGS_ROLES: 'api', TIDINGS_LOG_LEVEL: 'silent' } })
    const credentials = await server.token({ name: 'ci' })
    signed = given =>
      sign(server.url, credentials, { date: ['x-date', toIso(Date.now())], nonce: randomUUID(), ...given })
  })
  after(() => server.stop())

  const sendSigned = (given: Partial<Signing>): Promise<Answered> => send(server.url, signed(given))

  const onlyError = ({ json, headers }: Answered) => {
    assert.equal(json.errors.length, 1, JSON.stringify(json))
    const [error] = json.errors
    assert.equal(error.extensions.requestId, headers['x-request-id'])
    return error
  }

  it('takes a body of 1 MiB', async () => {
    const { status, json } = await sendSigned({ body: graphqlBody('{ viewer { name } }').padEnd(MIB) })
    assert.equal(status, 200)
    assert.deepEqual(json.data, { viewer: { name: 'ci' } })
  })

  it('refuses a larger body with 413, whether its length is told or not', async () => {
    const body = graphqlBody('{ viewer { name } }').padEnd(MIB + 1)
    for (const headers of [{}, { 'transfer-encoding': 'chunked' }] as Record<string, string>[]) {
      const answered = await sendSigned({ body, headers })
      assert.equal(answered.status, 413)
      assert.equal(onlyError(answered).extensions.code, 'BAD_USER_INPUT')
    }
  })

  it('refuses a body that is announced as larger before it is sent', async () => {
    const { hostname, port } = new URL(server.url)
    const headers = { 'content-length': MIB + 1 }
    const sent = request({ hostname, port, method: 'POST', path: '/graphql', headers })
    const status = await new Promise((resolve, reject) => {
      sent.on('response', answer => resolve(answer.statusCode))
      sent.on('error', reject)
      sent.flushHeaders()
    })
    sent.on('error', () => {}).destroy()
    assert.equal(status, 413)
  })

  it('refuses a body that does not end, unsigned, before it is read', async () => {
    const { hostname, port } = new URL(server.url)
    const sent = request({ hostname, port, method: 'POST', path: '/graphql' })
    let written = 0
    const status = await new Promise((resolve, reject) => {
      let answered = false
      sent.on('response', answer => {
        answered = true
        resolve(answer.statusCode)
      })
      sent.on('error', error => answered || reject(error))
      const chunk = Buffer.alloc(65_536)
      const more = () => {
        if (answered) return
        written += chunk.length
        sent.write(chunk, () => setImmediate(more))
      }
      more()
    })
    sent.destroy()
    assert.equal(status, 401)
    assert.ok(written < 16 * MIB, `${written} bytes were taken`)
  })

  it('gives every answer a request id of its own, and each error the same', async () => {
    const good = await sendSigned({ body: graphqlBody('{ viewer { name } }') })
    const bad = await sendSigned({ body: graphqlBody('{ viewer { nam } }') })
    assert.match(String(good.headers['x-request-id']), REQUEST_ID)
    assert.match(String(bad.headers['x-request-id']), REQUEST_ID)
    assert.notEqual(good.headers['x-request-id'], bad.headers['x-request-id'])
    assert.equal(onlyError(bad).extensions.code, 'BAD_USER_INPUT')
  })

  it('says what a GraphQL request is to one that is none', async () => {
    const bodies: [string, RegExp][] = [
      ['', /Missing body|Unparsable/],
      ['{', /Unparsable JSON body/],
      ['[]', /must be an object|Missing query/],
      ['{}', /Missing query/],
      ['{"query": 7}', /Invalid query/],
      ['{"query": "{ viewer { name } }", "variables": []}', /Invalid variables/],
    ]
    for (const [body, told] of bodies) {
      const answered = await sendSigned({ body })
      assert.equal(answered.status, 400, body)
      const error = onlyError(answered)
      assert.equal(error.extensions.code, 'BAD_USER_INPUT')
      assert.match(error.message, told)
      assert.match(error.message, /\{"query": /)
    }
  })

  it('refuses a selector with a variable that is not given, which would select more than was meant', async () => {
    const among = (selector: string) =>
      `query A($name: String${selector === '$all' ? ', $all: MangoSelector' : ''}) {
         users(query: {selector: ${selector}, limit: 1}) { id } ...F }
       query B($x: String = "x") { users(query: {selector: {name: $x}}) { id } }
       fragment F on Query { projects(query: {selector: {name: {_in: ["x", $name]}}}) { id } }`
    const ask = (operationName: string, selector: string, variables: object) =>
      sendSigned({ body: JSON.stringify({ query: among(selector), operationName, variables }) })
    for (const selector of ['{name: $name}', '{_and: [{name: {_in: ["x", $name]}}]}', '$all']) {
      const { json } = await ask('A', selector, {})
      const names = json.errors.map((error: { message: string }) => /The variable (\S+) of a/.exec(error.message)?.[1])
      assert.deepEqual(names.toSorted(), [selector === '$all' ? '$all' : '$name', '$name'])
      assert.equal(json.errors[0].extensions.code, 'BAD_USER_INPUT')
      assert.equal((await ask('A', selector, { name: 'x', all: null })).json.errors, undefined)
    }
    assert.equal((await ask('B', '{name: $name}', {})).json.errors, undefined)
  })

  it('names the operations there are when the one asked for is not among them', async () => {
    const query = 'query Who { viewer { name } } query What { webhooks { id } }'
    for (const operationName of [undefined, 'Where']) {
      const answered = await sendSigned({ body: JSON.stringify({ query, operationName }) })
      const error = onlyError(answered)
      assert.equal(error.extensions.code, 'BAD_USER_INPUT')
      assert.match(error.message, /Who, What/)
    }
    const { json } = await sendSigned({ body: JSON.stringify({ query, operationName: 'Who' }) })
    assert.deepEqual(json.data, { viewer: { name: 'ci' } })
  })

  it('says what it takes to a method, an Accept or a Content-Type that it does not', async () => {
    const body = graphqlBody('{ viewer { name } }')
    const cases: [Partial<Signing>, number, RegExp][] = [
      [{ method: 'PUT', body, headers: { 'content-type': 'application/json' } }, 405, /POST/],
      [{ body, headers: { accept: 'text/html' } }, 406, /application\/json/],
      [{ body, headers: { 'content-type': 'text/plain' } }, 415, /application\/json/],
    ]
    for (const [given, status, told] of cases) {
      const answered = await sendSigned(given)
      assert.equal(answered.status, status)
      assert.match(onlyError(answered).message, told)
    }
  })

  it('says where the API is to who asks elsewhere', async () => {
    const answered = await send(server.url, { method: 'GET', path: '/graphiql' })
    assert.equal(answered.status, 404)
    assert.match(onlyError(answered).message, /POST \/graphql/)
  })

  it('tells the request id and nothing else of a fault of its own', async () => {
    const { knex } = server.database
    await knex.schema.renameTable('users', 'users_away')
    try {
      const answered = await sendSigned({ body: graphqlBody('{ users { id } }') })
      const error = onlyError(answered)
      assert.equal(error.extensions.code, 'INTERNAL_SERVER_ERROR')
      assert.doesNotMatch(answered.text, /users_away|no such table|exist|select/i)
    } finally {
      await knex.schema.renameTable('users_away', 'users')
    }
  })
})
