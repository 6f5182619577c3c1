import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { after, before, it } from 'node:test'
import Koa from 'koa'
import { authenticate, readSignature } from '../../server/http/authenticate.ts'
import { requestId } from '../../server/http/request-id.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { createLog } from '../../server/log.ts'
import { type RunningServer, startServer } from '../../server/main.ts'
import { runSchedule } from '../../server/scheduler/scheduler.ts'
import type { Credentials } from '../../shared/hmac.ts'
import { toIso } from '../../shared/time.ts'
import { type TestClock, testClock } from '../support/clock.ts'
import { describeEachEngine } from '../support/databases.ts'
import { freePort } from '../support/ports.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'
import { type Answered, graphqlBody, type Signing, send, sign } from './signed-client.ts'

const MINUTE_MS = 60_000
const DAY_MS = 24 * 60 * MINUTE_MS
const log = createLog('silent')
const VIEWER = graphqlBody('{ viewer { name } }')

describeEachEngine('a signed request', engine => {
  let clock: TestClock
  let server: TestServer
  let second: RunningServer
  let credentials: Credentials & { id: string }
  let projectId: string
  let userId: string

  before(async () => {
    clock = testClock()
    server = await startTestServer(engine, { clock, env: { TIDINGS_ROLES: 'api' } })
    const port = await freePort()
    second = await startServer({ ...server.config, port, baseUrl: `http://127.0.0.1:${port}` }, log, { clock })
    await second.ready
    credentials = await server.token({ name: 'ci' })
    ;({ projectId, userId } = await addProject(server.database))
  })
  after(async () => {
    await second.stop()
    await server.stop()
  })

  const dated = (ms = clock.now()): [string, string] => ['x-date', toIso(ms)]

  /** A signed request of the viewer, different from all others unless said otherwise. */
  const viewer = (given: Partial<Signing> = {}, as: Credentials = credentials) =>
    sign(server.url, as, { body: VIEWER, date: dated(), nonce: randomUUID(), ...given })

  let quarters = 0
  const submission = (given: Partial<Signing> = {}) =>
    sign(server.url, credentials, {
      body: graphqlBody(
        `mutation { submitProjectReport(projectId: "${projectId}", quarter: "${2000 + quarters++}-1", ` +
          `submitterId: "${userId}") { id } }`,
      ),
      date: dated(),
      ...given,
    })

  const assertServed = ({ status, text }: Answered): void => {
    assert.equal(status, 200, text)
    assert.doesNotMatch(text, /errors/)
  }

  /** A refusal says the same in the status, in WWW-Authenticate and in the GraphQL errors body. */
  const assertRefused = (answered: Answered, reason: string): Record<string, unknown> => {
    assert.equal(answered.status, 401, answered.text)
    const [error, ...more] = answered.json.errors
    assert.deepEqual(more, [])
    assert.equal(error.extensions.code, 'UNAUTHENTICATED')
    assert.equal(error.extensions.reason, reason, error.message)
    assert.equal(error.extensions.requestId, answered.headers['x-request-id'])
    const challenge = String(answered.headers['www-authenticate'])
    assert.ok(challenge.startsWith(`HMAC-SHA256 error="${reason}", error_description="`), challenge)
    assert.match(challenge, /^[^"]*"[^"]*"[^"]*"[^"]+"$/, 'the description is one quoted string')
    return error
  }

  it('is served when its signature, hash and date are right', async () => {
    const answered = await send(server.url, viewer())
    assertServed(answered)
    assert.deepEqual(answered.json.data, { viewer: { name: 'ci' } })
  })

  it('is refused as missing when it is not signed at all', async () => {
    const { headers, ...unsigned } = viewer()
    const { authorization: _, ...others } = headers
    assertRefused(await send(server.url, { ...unsigned, headers: others }), 'missing')
  })

  it('is refused as malformed, and told what is expected, when its Authorization is not of the scheme', async () => {
    const cases: [string, (authorization: string) => string, RegExp][] = [
      ['another scheme', () => 'Bearer abc', /HMAC-SHA256/],
      ['no signature', text => text.replace(/&Signature=.*/, ''), /Signature missing/],
      ['a parameter twice', text => `${text}&Credential=other`, /Credential is given twice/],
      ['an unknown parameter', text => `${text}&Realm=x`, /Realm/],
      ['host not signed', text => text.replace('host;', ''), /must include host/],
      ['date not signed', text => text.replace('x-date;', ''), /must include x-date/],
      ['hash not signed', text => text.replace('x-content-sha256;', ''), /must include x-content-sha256/],
      ['a signed header that is not there', text => text.replace('host;', 'host;x-other;'), /x-other/],
    ]
    for (const [what, change, told] of cases) {
      const request = viewer()
      request.headers.authorization = change(request.headers.authorization!)
      const error = assertRefused(await send(server.url, request), 'malformed')
      assert.match(String(error.message), told, what)
    }
  })

  it('is refused as malformed when it has no date, or one that cannot be read', async () => {
    const undated = viewer()
    delete undated.headers['x-date']
    assertRefused(await send(server.url, undated), 'malformed')
    assertRefused(await send(server.url, viewer({ date: ['x-date', 'yesterday'] })), 'malformed')
  })

  it('is refused as unknown_key when no token has its API key, however that is spelled', async () => {
    const { apiKey } = credentials
    const spellings = ['tk_nobody', `${apiKey}x`, `${apiKey} `, apiKey.toUpperCase(), 'cl\xe9', 'x'.repeat(5_000)]
    for (const spelled of spellings) {
      assertRefused(await send(server.url, viewer({}, { ...credentials, apiKey: spelled })), 'unknown_key')
    }
  })

  it('is refused as bad_signature when the secret is another', async () => {
    const other = await server.token()
    assertRefused(await send(server.url, viewer({}, { ...credentials, apiSecret: other.apiSecret })), 'bad_signature')
  })

  it('is refused as bad_signature when anything signed was changed on the way', async () => {
    const changed = [
      { ...viewer({ method: 'GET' }), method: 'POST' },
      { ...viewer(), path: '/graphql?x=1' },
      ...['x-date', 'x-nonce', 'x-content-sha256', 'host'].map(name => {
        const request = viewer()
        const value = name === 'x-date' ? toIso(clock.now() + 1_000) : 'changed'
        return { ...request, headers: { ...request.headers, [name]: value } }
      }),
    ]
    for (const request of changed) assertRefused(await send(server.url, request), 'bad_signature')
  })

  it('is refused as bad_signature when the signature is the same bytes in another spelling', async () => {
    const request = viewer()
    request.headers.authorization = request.headers.authorization!.replace(/=$/, '')
    assertRefused(await send(server.url, request), 'bad_signature')
  })

  it('is refused as body_hash_mismatch when another body arrives than was signed', async () => {
    assertRefused(await send(server.url, { ...viewer(), body: `${VIEWER} ` }), 'body_hash_mismatch')
    assertRefused(await send(server.url, { ...viewer(), body: '' }), 'body_hash_mismatch')
  })

  it('is served up to 5 minutes off the clock, and beyond refused as clock_skew with the server’s time', async () => {
    for (const off of [-300_000, 300_000]) {
      assertServed(await send(server.url, viewer({ date: dated(clock.now() + off) })))
    }
    for (const off of [-300_001, 300_001]) {
      const error = assertRefused(await send(server.url, viewer({ date: dated(clock.now() + off) })), 'clock_skew')
      assert.equal((error.extensions as { serverTime: string }).serverTime, toIso(clock.now()))
      assert.match(String(error.message), off < 0 ? /before/ : /after/)
    }
  })

  it('goes out of the clock window as time passes', async () => {
    const request = viewer()
    clock.advance(5 * MINUTE_MS)
    assertServed(await send(server.url, request))
    clock.advance(1)
    assertRefused(await send(server.url, request), 'clock_skew')
  })

  it('is refused as replayed when its signature has carried a mutation before', async () => {
    const request = submission()
    assertServed(await send(server.url, request))
    assertRefused(await send(server.url, request), 'replayed')
  })

  it('is refused as replayed by another server process, too', async () => {
    const request = submission()
    assertServed(await send(server.url, request))
    assertRefused(await send(second.url, request), 'replayed')
  })

  it('carries a mutation once when two processes get it in the same moment', async () => {
    const request = submission()
    const answers = await Promise.all(
      Array.from({ length: 6 }, (_, index) => send(index % 2 ? second.url : server.url, request)),
    )
    assert.deepEqual(answers.map(({ status }) => status).sort(), [200, 401, 401, 401, 401, 401])
  })

  it('is refused as replayed when the mutation it carried did not succeed', async () => {
    const request = sign(server.url, credentials, {
      body: graphqlBody(`mutation { pingWebhook(id: "${randomUUID()}") { id } }`),
      date: dated(),
    })
    assert.equal((await send(server.url, request)).json.errors[0].extensions.code, 'NOT_FOUND')
    assertRefused(await send(server.url, request), 'replayed')
  })

  it('is refused once and replayed for all others, when what it carries is refused in two processes', async () => {
    const request = sign(server.url, credentials, {
      body: graphqlBody(`mutation { pingWebhook(id: "${randomUUID()}") { id } }`),
      date: dated(),
    })
    const answers = await Promise.all(
      Array.from({ length: 6 }, (_, index) => send(index % 2 ? second.url : server.url, request)),
    )
    assert.deepEqual(answers.map(({ status }) => status).sort(), [200, 401, 401, 401, 401, 401])
  })

  it('is used by what is refused before it reaches the database, too', async () => {
    const body = graphqlBody(`mutation { submitProjectReport(
      projectId: "${randomUUID()}", quarter: "none", submitterId: "${randomUUID()}") { id } }`)
    const request = sign(server.url, credentials, { body, date: dated() })
    assert.equal((await send(server.url, request)).json.errors[0].extensions.code, 'BAD_USER_INPUT')
    assertRefused(await send(second.url, request), 'replayed')
  })

  it('carries all mutations of a document, and then none again', async () => {
    const [first, then] = [randomUUID(), randomUUID()]
    const body = graphqlBody(`mutation {
      first: upsertUser(id: "${first}", name: "First") { id }
      then: upsertUser(id: "${then}", name: "Then") { id }
      unknown: pingWebhook(id: "${randomUUID()}") { id } }`)
    const request = sign(server.url, credentials, { body, date: dated() })
    const { json } = await send(server.url, request)
    assert.equal(json.errors[0].extensions.code, 'NOT_FOUND')
    const users = () => server.database.knex('users').whereIn('id', [first, then])
    assert.equal((await users()).length, 2)
    await users().update({ name: 'Since' })
    assertRefused(await send(second.url, request), 'replayed')
    assert.deepEqual(await users().pluck('name'), ['Since', 'Since'])
  })

  it('stays replayed for as long as the clock window would let it in', async () => {
    const request = submission({ date: dated(clock.now() + 5 * MINUTE_MS) })
    assertServed(await send(server.url, request))
    clock.advance(10 * MINUTE_MS)
    const { database } = server
    await runSchedule({ database, clock, log, reportDueDays: 30, retentionDays: 30, auditDays: 90, onEvents: () => {} })
    assertRefused(await send(second.url, request), 'replayed')
    clock.advance(1)
    await runSchedule({ database, clock, log, reportDueDays: 30, retentionDays: 30, auditDays: 90, onEvents: () => {} })
    assertRefused(await send(second.url, request), 'clock_skew')
    clock.advance(2_001)
    await runSchedule({ database, clock, log, reportDueDays: 30, retentionDays: 30, auditDays: 90, onEvents: () => {} })
    const marked = database.knex('audit_log').whereNotNull('signature_hash')
    assert.deepEqual(await marked.where('created_at', '<', clock.now() - 10 * MINUTE_MS - 2_000), [])
  })

  it('may carry a query as often as one likes', async () => {
    const request = viewer()
    for (const base of [server.url, server.url, second.url]) assertServed(await send(base, request))
  })

  it('may repeat a mutation under another nonce', async () => {
    const body = graphqlBody('mutation($id: UUID!) { pingWebhook(id: $id) { id } }', { id: randomUUID() })
    for (const nonce of ['one', 'two']) {
      const { json } = await send(server.url, sign(server.url, credentials, { body, date: dated(), nonce }))
      assert.equal(json.errors[0].extensions.code, 'NOT_FOUND')
    }
  })

  it('is refused as expired from the moment its token expires', async () => {
    const expiresAt = clock.now() + DAY_MS
    const short = await server.token({ expiresAt })
    clock.set(expiresAt - 1)
    assertServed(await send(server.url, viewer({}, short)))
    clock.set(expiresAt)
    const error = assertRefused(await send(server.url, viewer({}, short)), 'expired')
    assert.ok(String(error.message).includes(toIso(expiresAt)))
  })

  it('is refused as revoked by every process as soon as the revocation of its token is answered', async () => {
    const revoked = await server.token()
    const revocation = sign(server.url, credentials, {
      body: graphqlBody(`mutation { revokeAccessToken(id: "${revoked.id}") { id } }`),
      date: dated(),
      nonce: randomUUID(),
    })
    const both = [server.url, second.url]
    // Each process has just read the token, and knows of no revocation.
    for (const base of both) assertServed(await send(base, viewer({}, revoked)))
    assertServed(await send(server.url, revocation))
    for (const base of both) assertRefused(await send(base, viewer({}, revoked)), 'revoked')
  })

  it('is refused as revoked once its token was revoked in the database', async () => {
    const revoked = await server.token()
    assertServed(await send(server.url, viewer({}, revoked)))
    await server.database.knex('access_tokens').where('id', revoked.id).update({ revoked_at: clock.now() })
    for (const base of [server.url, second.url]) {
      assertRefused(await send(base, viewer({}, revoked)), 'revoked')
    }
  })

  it('is refused under another signature right after its token has signed one that was right', async () => {
    const busy = await server.token()
    assertServed(await send(server.url, viewer({}, busy)))
    const other = { ...busy, apiSecret: credentials.apiSecret }
    assertRefused(await send(server.url, viewer({}, other)), 'bad_signature')
    const none = { ...busy, apiSecret: Buffer.alloc(32).toString('base64') }
    assertRefused(await send(server.url, viewer({}, none)), 'bad_signature')
    const unknown = { apiKey: 'tk_nobody', apiSecret: none.apiSecret }
    assertRefused(await send(server.url, viewer({}, unknown)), 'unknown_key')
  })

  it('tells nothing of a token to who has not signed with its secret', async () => {
    const revoked = await server.token()
    await server.database.knex('access_tokens').where('id', revoked.id).update({ revoked_at: clock.now() })
    const { apiSecret } = credentials
    assertRefused(await send(server.url, viewer({}, { ...revoked, apiSecret })), 'bad_signature')
    const old = dated(clock.now() - DAY_MS)
    assertRefused(await send(server.url, viewer({ date: old }, { ...revoked, apiSecret })), 'bad_signature')
  })

  it('is served under the header names and separators of existing clients of the scheme', async () => {
    const httpDate = new Date(clock.now()).toUTCString()
    const azure: Partial<Signing>[] = [
      { date: ['x-ms-date', httpDate], hash: 'x-ms-content-sha256' },
      { date: ['x-ms-date', httpDate], hash: 'x-ms-content-sha256', separator: ', ' },
      { date: ['date', httpDate], hash: 'x-ms-content-sha256' },
    ]
    for (const given of azure) assertServed(await send(server.url, viewer(given)))
  })

  it('counts the first date header of x-date, x-ms-date and date', async () => {
    const long = new Date(clock.now() - DAY_MS).toUTCString()
    const request = viewer({ date: ['x-date', toIso(clock.now())], headers: { 'x-ms-date': long, date: long } })
    assertServed(await send(server.url, request))
  })

  it('may be a query by GET, with the hash of an empty body', async () => {
    const path = `/graphql?query=${encodeURIComponent('{viewer{name}}')}`
    assertServed(await send(server.url, viewer({ method: 'GET', path, body: '' })))
    const other = viewer({ method: 'GET', path, body: '' })
    assertRefused(await send(server.url, { ...other, path: `${path}&x=1` }), 'bad_signature')
  })

  it('cannot be a mutation by GET, which leaves the signature unused', async () => {
    const query = `mutation{pingWebhook(id:"${randomUUID()}"){id}}`
    const request = viewer({ method: 'GET', path: `/graphql?query=${encodeURIComponent(query)}`, body: '' })
    for (let time = 0; time < 2; time++) {
      const { status, headers, json } = await send(server.url, request)
      assert.equal(status, 405)
      assert.equal(headers.allow, 'POST')
      assert.equal(json.errors[0].extensions.code, 'BAD_USER_INPUT')
      assert.equal(json.errors[0].extensions.requestId, headers['x-request-id'])
    }
  })

  it('is noted as the last use of its token, to the minute', async () => {
    const token = await server.token()
    const lastUsed = async () => {
      const row = await server.database.knex('access_tokens').where('id', token.id).first()
      return row.last_used_at
    }
    assert.equal(await lastUsed(), null)
    const first = clock.now()
    await send(server.url, viewer({}, token))
    assert.equal(await lastUsed(), first)
    clock.advance(MINUTE_MS - 1)
    await send(server.url, viewer({}, token))
    assert.equal(await lastUsed(), first)
    clock.advance(1)
    await send(server.url, viewer({}, token))
    assert.equal(await lastUsed(), first + MINUTE_MS)
  })

  it('costs the same work under an unknown key as under a wrong signature', async () => {
    const { database, config } = server
    const work: string[] = []
    const sealer = createSealer(config.masterKeys)
    const counting = {
      ...sealer,
      open(sealed: string, context: string) {
        const secret = sealer.open(sealed, context)
        work.push(`open ${secret.length}`)
        return secret
      },
    }
    const app = new Koa()
    app.use(requestId({ log }))
    app.use(readSignature())
    app.use(authenticate({ database, sealer: counting, clock }))
    const listening = app.listen(0, '127.0.0.1')
    await once(listening, 'listening')
    database.knex.on('query', ({ sql }) => work.push(sql))
    try {
      const workOf = async (apiKey: string, reason: string) => {
        work.length = 0
        assertRefused(await send(base, viewer({}, { apiKey, apiSecret: '' })), reason)
        return [...work]
      }
      const { port } = listening.address() as { port: number }
      const base = `http://127.0.0.1:${port}`
      const wrong = await workOf(credentials.apiKey, 'bad_signature')
      const unknown = await workOf(credentials.apiKey.replace(/.$/, '.'), 'unknown_key')
      assert.equal(wrong.length, 2)
      assert.deepEqual(unknown, wrong)
      await send(base, viewer())
      assert.deepEqual(
        await workOf(credentials.apiKey, 'bad_signature'),
        wrong,
        'right after a signature that was right',
      )
    } finally {
      database.knex.removeAllListeners('query')
      listening.close()
    }
  })
})
