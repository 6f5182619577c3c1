import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, describe, it } from 'node:test'
import { unavailable } from '../../server/database/patience.ts'
import { KEPT_MS } from '../../server/domain/idempotency.ts'
import { claimOf } from '../../server/http/idempotency-key.ts'
import { type Credentials, signRequest } from '../../shared/hmac.ts'
import { toIso } from '../../shared/time.ts'
import { type TestClock, testClock } from '../support/clock.ts'
import { describeEachEngine } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'
import { type Answered, graphqlBody, send, sign } from './signed-client.ts'

const WEBHOOK = '{ id url events status organisationIds updatedAt }'
const PINGED = 'id status attemptCount attempts { number statusCode }'

describeEachEngine('a mutation with an Idempotency-Key', engine => {
  let clock: TestClock
  let server: TestServer
  let receiver: Receiver
  let admin: Credentials & { id: string }
  let given: { organisationId: string; projectId: string; userId: string }
  let isHeld = false
  let year = 2030

  before(async () => {
    clock = testClock()
    server = await startTestServer(engine, {
      clock,
      env: { TIDINGS_ROLES: 'api', TIDINGS_RATE_LIMIT: '0', TIDINGS_LOG_LEVEL: 'silent' },
    })
    receiver = await startReceiver({
      answer: async () => {
        await eventually(
          'pings to be let through',
          () => isHeld,
          held => !held,
        )
        return { status: 200 }
      },
    })
    admin = await server.token()
    given = await addProject(server.database)
  })
  after(async () => {
    await receiver.close()
    await server.stop()
  })

  const signed = (key: string, document: string, variables: object, as: Credentials, to = server.url) =>
    sign(to, as, {
      body: graphqlBody(document, variables),
      date: ['x-date', toIso(clock.now())],
      nonce: randomUUID(),
      headers: { 'idempotency-key': key },
    })
  const sendKeyed = (key: string, document: string, variables: object = {}, as = admin, to = server.url) =>
    send(to, signed(key, document, variables, as, to))
  const count = async (table: string): Promise<number> => {
    const [found] = await server.database.knex(table).count({ n: '*' })
    return Number(found!.n)
  }
  const toSubmit = () => ({ p: given.projectId, q: `${year++}-1`, u: given.userId })
  const codeOf = ({ json }: Answered) => json.errors?.[0].extensions.code
  const createWebhook = async (): Promise<string> => {
    const { data } = await server.graphql('mutation($url: String!) { createWebhook(url: $url) { id } }', {
      url: receiver.url,
    })
    return data.createWebhook.id
  }

  describe('that is sent again', () => {
    /** Each mutation: its document, what it needs, and the table where it shows how often it was done. */
    const mutations: Record<string, { document: string; variables?: () => Promise<object> | object; table: string }> = {
      upsertOrganisation: {
        document: 'mutation { upsertOrganisation(name: "Acme") { id name } }',
        table: 'organisations',
      },
      upsertProject: {
        document: 'mutation($id: UUID!) { upsertProject(organisationId: $id, name: "Wells") { id name } }',
        variables: () => ({ id: given.organisationId }),
        table: 'projects',
      },
      upsertUser: { document: 'mutation { upsertUser(name: "Ada") { id name } }', table: 'users' },
      submitProjectReport: {
        document: `mutation($p: UUID!, $q: String!, $u: UUID!) {
          submitProjectReport(projectId: $p, quarter: $q, submitterId: $u) { id status submitter { name } } }`,
        variables: () => toSubmit(),
        table: 'events',
      },
      approveProjectReport: {
        document: 'mutation($id: UUID!, $u: UUID!) { approveProjectReport(id: $id, approverId: $u) { id status } }',
        variables: async () => {
          const { data } = await server.graphql(
            `mutation($p: UUID!, $q: String!, $u: UUID!) {
              submitProjectReport(projectId: $p, quarter: $q, submitterId: $u) { id } }`,
            toSubmit(),
          )
          return { id: data.submitProjectReport.id, u: given.userId }
        },
        table: 'events',
      },
      createAccessToken: {
        document: `mutation {
          createAccessToken(name: "ci", permissions: [read]) { accessToken { id } apiKey secret } }`,
        table: 'access_tokens',
      },
      revokeAccessToken: {
        document: 'mutation($id: UUID!) { revokeAccessToken(id: $id) { id revokedAt } }',
        variables: async () => ({ id: (await server.token()).id }),
        table: 'access_tokens',
      },
      createWebhook: {
        document: `mutation($url: String!) { createWebhook(url: $url) ${WEBHOOK} }`,
        variables: () => ({ url: receiver.url }),
        table: 'webhooks',
      },
      upsertWebhook: {
        document: `mutation($url: String!) { upsertWebhook(url: $url) ${WEBHOOK} }`,
        variables: () => ({ url: receiver.url }),
        table: 'webhooks',
      },
      pingWebhook: {
        document: `mutation($id: UUID!) { pingWebhook(id: $id) { ${PINGED} } }`,
        variables: async () => ({ id: await createWebhook() }),
        table: 'deliveries',
      },
      redeliver: {
        document: 'mutation($id: UUID!) { redeliver(deliveryId: $id) { id status } }',
        variables: async () => {
          const webhookId = await createWebhook()
          const { data } = await server.graphql('mutation($id: UUID!) { pingWebhook(id: $id) { id } }', {
            id: webhookId,
          })
          return { id: data.pingWebhook.id }
        },
        table: 'deliveries',
      },
      recoverDeliveries: {
        document: `mutation($id: UUID!, $since: DateTime!) {
          recoverDeliveries(webhookId: $id, since: $since) { queued resumeSince } }`,
        variables: async () => {
          const since = toIso(clock.now())
          const id = await createWebhook()
          clock.advance(1)
          await server.graphql(
            `mutation($p: UUID!, $q: String!, $u: UUID!) {
              submitProjectReport(projectId: $p, quarter: $q, submitterId: $u) { id } }`,
            toSubmit(),
          )
          const { knex } = server.database
          await knex('delivery_queue').delete()
          await knex('deliveries').where({ status: 'pending' }).update({ status: 'rejected' })
          return { id, since }
        },
        table: 'deliveries',
      },
      rotateSigningKey: { document: 'mutation { rotateSigningKey { kid activeFrom } }', table: 'signing_keys' },
    }

    for (const [name, { document, variables = () => ({}), table }] of Object.entries(mutations)) {
      it(`is done once, and answered as the first time: ${name}`, async () => {
        const key = randomUUID()
        const sent = await variables()
        const first = await sendKeyed(key, document, sent)
        assert.equal(first.json.errors, undefined, first.text)
        assert.equal(first.headers['idempotency-replayed'], undefined)
        const done = await count(table)
        // What is there may have changed.
        await server.graphql('mutation($id: UUID!) { upsertUser(id: $id, name: "Grace") { id } }', { id: given.userId })
        const again = await sendKeyed(key, document, sent)
        assert.equal(again.text, first.text)
        assert.equal(again.status, first.status)
        assert.equal(again.headers['content-type'], first.headers['content-type'])
        assert.equal(again.headers['idempotency-replayed'], 'true')
        assert.equal(await count(table), done)
      })

      it(`is answered from what was done, where nobody was answered: ${name}`, async () => {
        const key = randomUUID()
        const sent = await variables()
        const first = await sendKeyed(key, document, sent)
        assert.equal(first.json.errors, undefined, first.text)
        const done = await count(table)
        // As if the process had died before it could keep what it answered.
        await server.database.knex('idempotency_keys').update({ answer_sealed: null })
        const again = await sendKeyed(key, document, sent)
        assert.deepEqual(again.json, first.json)
        assert.equal(again.headers['idempotency-replayed'], undefined)
        assert.equal(await count(table), done)
      })
    }

    it('is told its secret again, which is stored sealed', async () => {
      const key = randomUUID()
      const { document } = mutations.createAccessToken!
      const { secret } = (await sendKeyed(key, document)).json.data.createAccessToken
      const stored = JSON.stringify(await server.database.knex('idempotency_keys'))
      assert.ok(!stored.includes(secret) && !stored.includes(key))
      assert.equal((await sendKeyed(key, document)).json.data.createAccessToken.secret, secret)
    })

    it('is answered as the first time where that was a refusal', async () => {
      const key = randomUUID()
      const document = 'mutation($id: UUID!) { pingWebhook(id: $id) { id } }'
      const id = randomUUID()
      const first = await sendKeyed(key, document, { id })
      assert.equal(codeOf(first), 'NOT_FOUND')
      const again = await sendKeyed(key, document, { id })
      assert.equal(again.text, first.text)
      assert.equal(again.headers['idempotency-replayed'], 'true')
    })

    it('goes on after what was done, where something went wrong on the side of the server', async () => {
      const key = randomUUID()
      const document = `mutation($p: UUID!, $q: String!, $u: UUID!) {
        one: upsertUser(name: "One") { id }
        report: submitProjectReport(projectId: $p, quarter: $q, submitterId: $u) { id }
        two: upsertUser(name: "Two") { id }
      }`
      const sent = toSubmit()
      const before = await count('users')
      const { knex } = server.database
      await knex.schema.renameTable('project_reports', 'reports_away')
      const first = await sendKeyed(key, document, sent)
      await knex.schema.renameTable('reports_away', 'project_reports')
      assert.equal(codeOf(first), 'INTERNAL_SERVER_ERROR')
      const done = await count('users')
      const { json } = await sendKeyed(key, document, sent)
      assert.equal(json.errors, undefined)
      assert.equal(json.data.report.id.length, 36)
      const [one, two] = await knex('users').whereIn('name', ['One', 'Two']).orderBy('name').pluck('id')
      assert.deepEqual([json.data.one.id, json.data.two.id], [one, two])
      assert.ok(done > before && (await count('users')) === before + 2)
    })

    it('is done by whichever process it comes to', async () => {
      if (engine === 'sqlite') return
      const second = await startTestServer(engine, {
        clock,
        url: server.config.databaseUrl,
        env: {
          TIDINGS_ROLES: 'api',
          TIDINGS_LOG_LEVEL: 'silent',
          TIDINGS_MASTER_KEY: server.config.masterKeys[0]!.toString('base64'),
        },
      })
      try {
        const key = randomUUID()
        const { document } = mutations.upsertUser!
        const first = await sendKeyed(key, document)
        const again = await sendKeyed(key, document, {}, admin, second.url)
        assert.equal(again.text, first.text)
        assert.equal(again.headers['idempotency-replayed'], 'true')
      } finally {
        await second.stop()
      }
    })
  })

  it('is a CONFLICT while the first one runs, and then answered as that was', async () => {
    const key = randomUUID()
    const document = 'mutation($url: String!) { createWebhook(url: $url) { id } }'
    const sent = { url: receiver.url }
    isHeld = true
    const seen = receiver.requests.length
    const running = sendKeyed(key, document, sent)
    await receiver.waitFor(requests => requests.length > seen)
    const refused = await sendKeyed(key, document, sent)
    isHeld = false
    assert.equal(codeOf(refused), 'CONFLICT')
    assert.equal(refused.status, 409)
    assert.equal(refused.headers['retry-after'], '1')
    const first = await running
    assert.equal((await sendKeyed(key, document, sent)).text, first.text)
  })

  it('is made again after it was refused for a while, and nothing was done', async () => {
    const id = await createWebhook()
    const document = 'mutation($id: UUID!) { pingWebhook(id: $id) { status } }'
    isHeld = true
    const seen = receiver.requests.length
    const others = Array.from({ length: 2 }, () => sendKeyed(randomUUID(), document, { id }))
    await receiver.waitFor(requests => requests.length === seen + 2)
    const key = randomUUID()
    const refused = await sendKeyed(key, document, { id })
    isHeld = false
    await Promise.all(others)
    assert.equal(codeOf(refused), 'RATE_LIMITED', refused.text)
    const again = await sendKeyed(key, document, { id })
    assert.equal(again.json.data?.pingWebhook.status, 'delivered', again.text)
  })

  it('is done once of many at once', async () => {
    const key = randomUUID()
    const before = await count('users')
    const answers = await Promise.all(
      Array.from({ length: 10 }, () => sendKeyed(key, 'mutation { upsertUser(name: "Once") { id } }')),
    )
    assert.equal(await count('users'), before + 1)
    const codes = answers.map(codeOf)
    assert.ok(codes.includes(undefined))
    assert.ok(codes.every(code => code === undefined || code === 'CONFLICT'))
    assert.equal(new Set(answers.filter(({ json }) => json.data).map(({ text }) => text)).size, 1)
  })

  it('is refused where the key was used for another body', async () => {
    const key = randomUUID()
    await sendKeyed(key, 'mutation { upsertUser(name: "One") { id } }')
    const other = await sendKeyed(key, 'mutation { upsertUser(name: "Another") { id } }')
    assert.equal(other.status, 422)
    assert.equal(codeOf(other), 'BAD_USER_INPUT')
    assert.match(other.json.errors[0].message, /another body/)
  })

  it('is refused where the key is none', async () => {
    for (const key of ['', 'k'.repeat(256), 'clé', 'a\tb']) {
      const refused = await sendKeyed(key, 'mutation { upsertUser(name: "One") { id } }')
      assert.equal(refused.status, 400, key)
      assert.equal(codeOf(refused), 'BAD_USER_INPUT')
      assert.equal(refused.json.errors[0].extensions.argument, 'Idempotency-Key')
    }
    assert.equal((await sendKeyed('k'.repeat(255), 'mutation { upsertUser(name: "One") { id } }')).status, 200)
  })

  it('is refused where it has two keys', async () => {
    const document = 'mutation { upsertUser(name: "One") { id } }'
    const request = signed('one', document, {}, admin)
    const refused = await send(server.url, {
      ...request,
      headers: { ...request.headers, 'idempotency-key': ['one', 'two'] },
    })
    assert.deepEqual([refused.status, codeOf(refused)], [400, 'BAD_USER_INPUT'])
  })

  it('takes a key as it is written, quotes and commas included', async () => {
    const document = 'mutation { upsertUser(name: "Quoted") { id } }'
    const key = randomUUID()
    const idOf = async (written: string) => (await sendKeyed(written, document)).json.data.upsertUser.id
    const ids = [await idOf(key), await idOf(`"${key}"`), await idOf(`${key}, b`)]
    assert.equal(new Set(ids).size, 3)
    assert.equal(await idOf(`"${key}"`), ids[1])
  })

  it('has a key of its token alone', async () => {
    const key = randomUUID()
    const document = 'mutation { upsertUser(name: "Mine") { id } }'
    const mine = await sendKeyed(key, document)
    const theirs = await sendKeyed(key, document, {}, await server.token())
    assert.notEqual(theirs.json.data.upsertUser.id, mine.json.data.upsertUser.id)
  })

  it('is let in by its signature as any other: a used one is refused, and so is a revoked token', async () => {
    const another = await server.token()
    const document = 'mutation { upsertUser(name: "Signed") { id } }'
    const request = signed('a key', document, {}, another)
    assert.equal((await send(server.url, request)).status, 200)
    const again = await send(server.url, request)
    assert.equal(again.status, 401)
    assert.equal(again.json.errors[0].extensions.reason, 'replayed')
    await server.graphql('mutation($id: UUID!) { revokeAccessToken(id: $id) { id } }', { id: another.id })
    const revoked = await sendKeyed('a key', document, {}, another)
    assert.equal(revoked.json.errors[0].extensions.reason, 'revoked')
  })

  it('may sign its key', async () => {
    const url = new URL('/graphql', server.url)
    const body = graphqlBody('mutation { upsertUser(name: "Signed too") { id } }')
    const post = (idempotencyKey: string) => {
      const headers = signRequest({
        ...{ method: 'POST', url, body, credentials: admin },
        ...{ at: new Date(clock.now()), nonce: randomUUID(), idempotencyKey: 'signed' },
      })
      const sent = { ...headers, 'idempotency-key': idempotencyKey, 'content-type': 'application/json' }
      return send(server.url, { body, headers: sent })
    }
    assert.equal((await post('signed')).status, 200)
    assert.equal((await post('signed')).headers['idempotency-replayed'], 'true')
    assert.equal((await post('changed on the way')).status, 401)
  })

  it('is done again when the key is older than 24 h', async () => {
    const key = randomUUID()
    const document = 'mutation { upsertUser(name: "Daily") { id } }'
    const idOf = ({ json }: Answered) => json.data.upsertUser.id
    const first = idOf(await sendKeyed(key, document))
    clock.advance(KEPT_MS - 1)
    assert.equal(idOf(await sendKeyed(key, document)), first)
    clock.advance(1)
    assert.notEqual(idOf(await sendKeyed(key, document)), first)
  })

  it('is UNAVAILABLE, and not refused, where the database cannot say whether its key is known', async () => {
    const { knex: there } = server.database
    const client = Object.create(there.client, {
      acquireConnection: { value: () => Promise.reject(unavailable()) },
    })
    const knex = new Proxy(there, { get: (_, name) => (name === 'client' ? client : Reflect.get(there, name)) })
    const ctx = {
      req: { headersDistinct: { 'idempotency-key': [randomUUID()] } },
      state: { token: admin, rawBody: Buffer.from('{}'), giveUpAt: performance.now() + 10_000 },
    } as unknown as Parameters<typeof claimOf>[0]
    const service = { database: { knex }, tools: { clock } } as unknown as Parameters<typeof claimOf>[1]
    await assert.rejects(claimOf(ctx, service), { code: 'UNAVAILABLE' })
  })

  it('has no effect on a query, nor on a mutation without a key', async () => {
    const before = await count('idempotency_keys')
    const key = randomUUID()
    await sendKeyed(key, '{ viewer { id } }')
    const { headers } = await sendKeyed(key, '{ viewer { id } }')
    assert.equal(headers['idempotency-replayed'], undefined)
    await server.graphql('mutation { upsertUser(name: "Keyless") { id } }')
    assert.equal(await count('idempotency_keys'), before)
  })
})
