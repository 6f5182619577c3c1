import assert from 'node:assert/strict'
import { after, afterEach, before, it } from 'node:test'
import { keyOfSecret, newStandardSecret, standardSignature } from '../../shared/standard-webhooks.ts'
import { describeEachEngine } from '../support/databases.ts'
import { type ReceivedRequest, type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, type GraphqlAnswer, startTestServer, type TestServer } from '../support/server.ts'

const CREATE = `mutation($url: String!, $signing: WebhookSigning, $secret: String, $headers: JSON) {
  made: createWebhook(url: $url, signing: $signing, secret: $secret, headers: $headers) { id signing headers secret } }`
const UPSERT = `mutation($id: UUID, $url: String, $signing: WebhookSigning, $secret: String, $headers: JSON) {
  made: upsertWebhook(id: $id, url: $url, signing: $signing, secret: $secret, headers: $headers) {
    id signing headers secret } }`
const ROTATE = `mutation($id: UUID!, $secret: String, $graceSeconds: Int) {
  made: rotateWebhookSecret(id: $id, secret: $secret, graceSeconds: $graceSeconds) {
    secret webhook { id signing secret } } }`
const SEEN = '{ webhooks { id signing headers secret } }'

/** The secrets, among some, by which a request is signed; it fails for a signature by none of them. */
const signers = ({ headers, rawBody }: ReceivedRequest, secrets: string[]): string[] => {
  const content = {
    id: String(headers['webhook-id']),
    timestampSeconds: String(headers['webhook-timestamp']),
    body: rawBody,
  }
  const bySecret = new Map(secrets.map(secret => [standardSignature(keyOfSecret(secret)!, content), secret]))
  return String(headers['webhook-signature'])
    .split(' ')
    .map(signature => bySecret.get(signature) ?? assert.fail(`${signature} is by none of them`))
}

describeEachEngine('signing by Standard Webhooks', engine => {
  let server: TestServer
  const receivers: Receiver[] = []
  before(async () => {
    server = await startTestServer(engine)
  })
  afterEach(() => Promise.all(receivers.splice(0).map(receiver => receiver.close())))
  after(() => server.stop())

  const receive = async (answer?: Parameters<typeof startReceiver>[0]): Promise<Receiver> => {
    const receiver = await startReceiver(answer)
    receivers.push(receiver)
    return receiver
  }
  const made = ({ data, errors }: GraphqlAnswer) => {
    assert.equal(errors, undefined, JSON.stringify(errors))
    return data.made
  }
  const refused = ({ errors }: GraphqlAnswer) => {
    assert.equal(errors?.length, 1)
    return `${errors![0]!.extensions.code}: ${errors![0]!.message}`
  }
  const create = async (given: object) => made(await server.graphql(CREATE, given))
  const ping = (id: string) => server.graphql('mutation($id: UUID!) { pingWebhook(id: $id) { id } }', { id })

  it('signs the ping of the registration, and shows the secret once', async () => {
    const receiver = await receive()
    const { id, secret, signing } = await create({ url: receiver.url, signing: 'standard' })
    assert.equal(signing, 'standard')
    assert.match(secret, /^whsec_[A-Za-z0-9+/]{43}=$/)
    const [first] = receiver.requests
    assert.deepEqual(signers(first!, [secret]), [secret])
    assert.equal(first!.headers['webhook-id'], first!.body.eventId)
    assert.match(String(first!.headers.authorization), /^Bearer ey/)
    const { data } = await server.graphql(SEEN)
    assert.deepEqual(
      data.webhooks.filter((webhook: { id: string }) => webhook.id === id),
      [{ id, signing: 'standard', headers: [], secret: null }],
    )
  })

  it('has the same id on each attempt of a delivery, and a timestamp and a signature of its own', async () => {
    const receiver = await receive({ answer: (_request, n) => ({ status: n === 2 ? 503 : 200 }) })
    const { id, secret } = await create({ url: receiver.url, signing: 'standard' })
    await ping(id)
    const [, failed, again] = await receiver.waitFor(requests => requests.length === 3)
    assert.deepEqual(signers(failed!, [secret]), [secret])
    assert.deepEqual(signers(again!, [secret]), [secret])
    assert.equal(failed!.headers['webhook-id'], again!.headers['webhook-id'])
  })

  it('signs the events of a project, sent at once after their commit', async () => {
    const { projectId, userId } = await addProject(server.database)
    const receiver = await receive()
    const { secret } = await create({ url: receiver.url, signing: 'standard', headers: { 'X-Api-Key': 'k-77' } })
    const submit = `mutation($p: UUID!, $u: UUID!) {
      submitProjectReport(projectId: $p, quarter: "2026-3", submitterId: $u) { id } }`
    assert.equal((await server.graphql(submit, { p: projectId, u: userId })).errors, undefined)
    const [, event] = await receiver.waitFor(requests => requests.length === 2)
    assert.deepEqual(signers(event!, [secret]), [secret])
    assert.equal(event!.headers['x-api-key'], 'k-77')
  })

  it('leaves a webhook as it is that asks for nothing', async () => {
    const receiver = await receive()
    const { secret, signing, headers } = await create({ url: receiver.url })
    assert.deepEqual({ secret, signing, headers }, { secret: null, signing: 'token', headers: [] })
    const sent = Object.keys(receiver.requests[0]!.headers)
    assert.deepEqual(
      sent.filter(name => name.startsWith('webhook-')),
      [],
    )
  })

  it('takes the caller’s own secret, of 24 to 64 bytes', async () => {
    const receiver = await receive()
    const bytes = (count: number) => `whsec_${Buffer.alloc(count, 7).toString('base64')}`
    for (const secret of [bytes(24), bytes(64)]) {
      assert.equal((await create({ url: receiver.url, signing: 'standard', secret })).secret, secret)
      assert.deepEqual(signers(receiver.requests.at(-1)!, [secret]), [secret])
    }
    for (const secret of [
      bytes(23),
      bytes(65),
      bytes(32).slice(6),
      'whsec_not base64 at all, but long enough to be one',
    ]) {
      const told = refused(await server.graphql(CREATE, { url: receiver.url, signing: 'standard', secret }))
      assert.match(told, /^BAD_USER_INPUT: secret.*24 to 64/)
      assert.ok(!told.includes(secret))
    }
    const listed = refused(
      await server.graphql(CREATE, { url: receiver.url, signing: 'standard', secret: [bytes(32)] }),
    )
    assert.match(listed, /^BAD_USER_INPUT: secret.*non string/)
    assert.ok(!listed.includes(bytes(32)), listed)
    const told = refused(await server.graphql(CREATE, { url: receiver.url, secret: bytes(24) }))
    assert.match(told, /^BAD_USER_INPUT: secret.*signing: standard/)
  })

  it('begins and ends with a change of signing, which tells a new secret each time', async () => {
    const receiver = await receive()
    const { id } = await create({ url: receiver.url })
    const upsert = async (given: object) => made(await server.graphql(UPSERT, { id, ...given }))
    const { secret } = await upsert({ signing: 'standard' })
    assert.match(secret, /^whsec_/)
    assert.equal((await upsert({ signing: 'standard' })).secret, null)
    assert.equal((await upsert({ url: receiver.url })).secret, null)
    await ping(id)
    assert.deepEqual(signers(receiver.requests.at(-1)!, [secret]), [secret])
    assert.equal((await upsert({ signing: 'token' })).secret, null)
    await ping(id)
    assert.equal(receiver.requests.at(-1)!.headers['webhook-signature'], undefined)
    assert.notEqual((await upsert({ signing: 'standard' })).secret, secret)
  })

  it('is signed by the old and the new secret during a rotation’s grace, by the new one alone without', async () => {
    const receiver = await receive()
    const { id, secret: first } = await create({ url: receiver.url, signing: 'standard' })
    const rotate = async (given: object) => made(await server.graphql(ROTATE, { id, ...given }))
    const { secret: second, webhook } = await rotate({ graceSeconds: 60 })
    assert.deepEqual(webhook, { id, signing: 'standard', secret: second })
    await ping(id)
    assert.deepEqual(signers(receiver.requests.at(-1)!, [first, second]), [second, first])
    const own = newStandardSecret()
    assert.equal((await rotate({ secret: own })).secret, own)
    await ping(id)
    assert.deepEqual(signers(receiver.requests.at(-1)!, [first, second, own]), [own, second, first])
    const { secret: last } = await rotate({ graceSeconds: 0 })
    await ping(id)
    assert.deepEqual(signers(receiver.requests.at(-1)!, [last]), [last])
  })

  it('is not rotated without a secret, for over seven days, or by one that it has or that is too short', async () => {
    const receiver = await receive()
    const { id } = await create({ url: receiver.url })
    assert.match(refused(await server.graphql(ROTATE, { id })), /^CONFLICT: .*signing is token/)
    const { id: signed, secret } = await create({ url: receiver.url, signing: 'standard' })
    const rotate = (given: object) => server.graphql(ROTATE, { id: signed, ...given })
    assert.match(refused(await rotate({ graceSeconds: 604_801 })), /^BAD_USER_INPUT: graceSeconds/)
    assert.match(refused(await rotate({ graceSeconds: -1 })), /^BAD_USER_INPUT: graceSeconds/)
    assert.match(refused(await rotate({ secret })), /^BAD_USER_INPUT: secret/)
    assert.match(refused(await rotate({ secret: 'whsec_short' })), /^BAD_USER_INPUT: secret.*24 to 64/)
    const told = refused(await server.graphql(UPSERT, { id: signed, secret: newStandardSecret() }))
    assert.match(told, /^BAD_USER_INPUT: secret.*rotateWebhookSecret/)
    assert.equal(made(await server.graphql(UPSERT, { id: signed, secret })).secret, null)
  })

  it('has its static headers on each request, and shows their names alone', async () => {
    const receiver = await receive()
    const { id, headers } = await create({ url: receiver.url, headers: { 'X-Api-Key': 'k-1', 'x-tenant': 'a b' } })
    assert.deepEqual(headers, ['X-Api-Key', 'x-tenant'])
    const [first] = receiver.requests
    assert.deepEqual([first!.headers['x-api-key'], first!.headers['x-tenant']], ['k-1', 'a b'])
    const kept = made(await server.graphql(UPSERT, { id, signing: 'token' }))
    assert.deepEqual(kept.headers, ['X-Api-Key', 'x-tenant'])
    const changed = made(await server.graphql(UPSERT, { id, headers: { 'X-Api-Key': 'k-2' } }))
    assert.deepEqual(changed.headers, ['X-Api-Key'])
    await ping(id)
    const { 'x-api-key': key, 'x-tenant': tenant } = receiver.requests.at(-1)!.headers
    assert.deepEqual([key, tenant], ['k-2', undefined])
    made(await server.graphql(UPSERT, { id, headers: {} }))
    const { request_sealed } = await server.database.knex('webhooks').where({ id }).first()
    assert.equal(request_sealed, null)
  })

  it('keeps its static headers from another server, until they are given for that one', async () => {
    const [receiver, other] = [await receive(), await receive()]
    const { id } = await create({ url: receiver.url, headers: { 'X-Api-Key': 'k-meant-for-one' } })
    assert.match(refused(await server.graphql(UPSERT, { id, url: other.url })), /^BAD_USER_INPUT: headers.*given anew/)
    assert.equal(other.requests.length, 0)
    made(await server.graphql(UPSERT, { id, url: `${receiver.url}/other/path` }))
    assert.equal(receiver.requests.at(-1)!.headers['x-api-key'], 'k-meant-for-one')
    made(await server.graphql(UPSERT, { id, url: other.url, headers: { 'X-Api-Key': 'k-of-other' } }))
    assert.deepEqual(
      other.requests.map(({ headers }) => headers['x-api-key']),
      ['k-of-other'],
    )
    made(await server.graphql(UPSERT, { id, url: receiver.url, headers: {} }))
    assert.equal(receiver.requests.at(-1)!.headers['x-api-key'], undefined)
  })

  it('refuses headers that are no headers, or that the delivery or HTTP sets, and repeats no value', async () => {
    const wrong = {
      Authorization: 'top secret',
      'webhook-signature': 'top secret',
      'Content-Type': 'top secret',
      host: 'top secret',
      'transfer-encoding': 'top secret',
      'no header': 'top secret',
      '': 'top secret',
      'x-line': 'top secret\r\nx-other: 1',
      'x-empty': '',
      'x-long': 'top secret'.repeat(200),
      'x-number': 7,
      'x-ü': 'top secret',
    }
    const { url } = await receive()
    for (const [name, value] of Object.entries(wrong)) {
      const told = refused(await server.graphql(CREATE, { url, headers: { [name]: value } }))
      assert.match(told, /^BAD_USER_INPUT: headers/, name)
      assert.ok(!told.includes('top secret'), told)
    }
    const many = Object.fromEntries(Array.from({ length: 17 }, (_, n) => [`x-${n}`, 'v']))
    assert.match(refused(await server.graphql(CREATE, { url, headers: many })), /at most 16/)
    assert.match(refused(await server.graphql(CREATE, { url, headers: { 'X-A': '1', 'x-a': '2' } })), /named twice/)
  })

  it('is refused while a process of an earlier version runs, which then refuses to start', async () => {
    const { knex } = server.database
    const receiver = await receive()
    await knex('knex_migrations').where({ name: '0015_signing' }).update({ needs: null })
    const old = { id: '01936f2e-5d2f-7c3a-9b1e-2f4d6c8a0e12', host: 'h', pid: 7, version: '1.0.0', roles: 'delivery' }
    const [{ master_keys }] = await knex('processes').select('master_keys')
    const at = { started_at: Date.now(), seen_at: Date.now() + 60_000 }
    await knex('processes').insert({ ...old, master_keys, ...at })
    const told = refused(await server.graphql(CREATE, { url: receiver.url, signing: 'standard' }))
    assert.match(told, /^UNAVAILABLE: .*process 7 on h \(version 1.0.0/)
    await knex('processes').where({ id: old.id }).delete()
    await create({ url: receiver.url, signing: 'standard' })
    assert.equal((await knex('knex_migrations').where({ name: '0015_signing' }).first()).needs, '0015_signing')
  })
})
