import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, afterEach, before, it } from 'node:test'
import type { WebhookRow } from '../../server/domain/resources.ts'
import { checkWebhookInput, withTransport } from '../../server/domain/webhooks.ts'
import { describeEachEngine } from '../support/databases.ts'
import { freePort } from '../support/ports.ts'
import { type Answer, type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, type GraphqlAnswer, startTestServer, type TestServer } from '../support/server.ts'

const FIELDS = 'id url events organisationIds projectIds status statusReason createdAt updatedAt'
const CREATE = `mutation($url: String!, $events: [EventType!], $organisationIds: [UUID!], $projectIds: [UUID!]) {
  createWebhook(url: $url, events: $events, organisationIds: $organisationIds, projectIds: $projectIds) { ${FIELDS} } }`
const UPSERT = `mutation(
  $id: UUID, $url: String, $events: [EventType!],
  $organisationIds: [UUID!], $projectIds: [UUID!], $status: WebhookStatus) {
  upsertWebhook(
    id: $id, url: $url, events: $events,
    organisationIds: $organisationIds, projectIds: $projectIds, status: $status) { ${FIELDS} } }`
const DELIVERY =
  'id webhookId eventType status attemptCount nextAttemptAt attempts { number statusCode failure response }'
const PING = `mutation($id: UUID!) { pingWebhook(id: $id) { ${DELIVERY} } }`
const SUBMIT = `mutation($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
  submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) { id } }`

describeEachEngine('webhooks', engine => {
  let server: TestServer
  const receivers: Receiver[] = []
  before(async () => {
    // Nothing claims deliveries here: what is pending stays so, and pings go their own way.
    server = await startTestServer(engine, { env: { TIDINGS_ROLES: 'api' } })
  })
  afterEach(() => Promise.all(receivers.splice(0).map(receiver => receiver.close())))
  after(() => server.stop())

  const receiverAnswering = async (...answers: Answer[]): Promise<Receiver> => {
    const receiver = await startReceiver({ answer: (_request, n) => answers[n - 1] ?? answers.at(-1)! })
    receivers.push(receiver)
    return receiver
  }
  const good = () => receiverAnswering({ status: 200 })

  const data = ({ data, errors }: GraphqlAnswer, name: string) => {
    assert.equal(errors, undefined, JSON.stringify(errors))
    return data[name]
  }
  const create = async (variables: object) => data(await server.graphql(CREATE, variables), 'createWebhook')
  const upsert = async (variables: object) => data(await server.graphql(UPSERT, variables), 'upsertWebhook')
  const ping = async (id: string) => data(await server.graphql(PING, { id }), 'pingWebhook')
  const stored = async (id: string) => {
    const document = `query($query: MangoQuery) { webhooks(query: $query) { ${FIELDS} } }`
    const [webhook] = data(await server.graphql(document, { query: { selector: { id } } }), 'webhooks')
    return webhook
  }

  const onlyError = ({ errors }: GraphqlAnswer) => {
    assert.equal(errors?.length, 1, JSON.stringify(errors))
    return errors![0]!
  }
  const assertRefused = (answer: GraphqlAnswer, code: string, argument?: string): string => {
    const { message, extensions } = onlyError(answer)
    assert.equal(extensions.code, code, message)
    if (argument) assert.equal(extensions.argument, argument, message)
    if (argument) assert.ok(message.startsWith(`${argument}: `), message)
    return message
  }
  /** How many rows there are of everything that storing a webhook writes. */
  const rowCounts = async (): Promise<Record<string, number>> => {
    const counts: Record<string, number> = {}
    for (const table of ['webhooks', 'webhook_events', 'webhook_organisations', 'events', 'deliveries', 'attempts']) {
      counts[table] = (await server.database.knex(table)).length
    }
    return counts
  }
  const submitReport = async () => {
    const { projectId, userId: submitterId, organisationId } = await addProject(server.database)
    const submit = async (quarter: string) =>
      data(await server.graphql(SUBMIT, { projectId, quarter, submitterId }), 'submitProjectReport')
    return { submit, organisationId, projectId }
  }
  const statuses = async (webhookId: string): Promise<string[]> =>
    server.database.knex('deliveries').where('webhook_id', webhookId).whereNot('event_type', 'ping').pluck('status')

  it('are stored once their endpoint has answered a ping with 200', async () => {
    const { url, requests } = await good()
    const webhook = await create({ url })
    assert.equal(requests.length, 1)
    const [{ body, method }] = requests as [(typeof requests)[0]]
    assert.equal(method, 'POST')
    assert.deepEqual(
      { eventType: body.eventType, payload: body.payload, webhookId: body.webhookId },
      { eventType: 'ping', payload: {}, webhookId: webhook.id },
    )
    assert.equal(webhook.status, 'active')
    assert.deepEqual(await stored(webhook.id), webhook)
  })

  it('can be selected and sorted by their health and their last delivery', async () => {
    const { url } = await good()
    const { id } = await create({ url })
    const idle = await create({ url })
    await server.database.knex('deliveries').where({ webhook_id: id }).update({ status: 'dropped' })
    await server.database.knex('deliveries').where({ webhook_id: idle.id }).delete()
    const found = async (query: object) => {
      const scope = { id: { $in: [id, idle.id] } }
      const { data } = await server.graphql('query($query: MangoQuery) { webhooks(query: $query) { id } }', {
        query: { ...query, selector: { ...scope, ...(query as { selector?: object }).selector } },
      })
      return data.webhooks.map((webhook: { id: string }) => webhook.id)
    }
    assert.deepEqual(await found({ selector: { 'health.dropped': { $gt: 0 } } }), [id])
    assert.deepEqual(await found({ selector: { lastDeliveryAt: null } }), [idle.id])
    assert.deepEqual(await found({ selector: { lastDeliveryAt: { $gt: '2000-01-01T00:00:00Z' } } }), [id])
    assert.deepEqual(await found({ sort: [{ 'health.dropped': 'asc' }] }), [idle.id, id])
    assert.deepEqual(await found({ sort: [{ lastDeliveryAt: 'desc' }] }), [id, idle.id])
  })

  it('have the ping that let them in as their first delivery', async () => {
    const { url, requests } = await receiverAnswering({ status: 200, body: 'welcome' })
    const webhook = await create({ url })
    const { data } = await server.graphql(
      `query($query: MangoQuery) { deliveries(query: $query) { ${DELIVERY} event { type payload } } }`,
      { query: { selector: { webhookId: webhook.id } } },
    )
    assert.deepEqual(data.deliveries, [
      {
        id: requests[0]!.body.eventId,
        webhookId: webhook.id,
        eventType: 'ping',
        status: 'delivered',
        attemptCount: 1,
        nextAttemptAt: null,
        attempts: [{ number: 1, statusCode: 200, failure: null, response: 'welcome' }],
        event: { type: 'ping', payload: {} },
      },
    ])
  })

  it('are not stored when the ping is answered with anything but 200', async () => {
    const before = await rowCounts()
    for (const status of [201, 202, 204, 301, 307, 400, 401, 404, 410, 429, 500, 503]) {
      const { url } = await receiverAnswering({ status, body: 'no', headers: { location: '/' } })
      const answer = await server.graphql(CREATE, { url })
      const message = assertRefused(answer, 'PING_FAILED')
      assert.match(message, new RegExp(`${url} must answer the ping with 200, but it answered ${status}`))
      assert.equal(onlyError(answer).extensions.statusCode, status)
    }
    assert.deepEqual(await rowCounts(), before)
  })

  it('tell a caller whose ping was refused the refusal’s code, and not whom the endpoint would let in', async () => {
    const id = '0198a111-1111-7000-8000-00000000000a'
    for (const [status, body, response] of [
      [401, `{"error":"webhook","message":"expected \\"${id}\\""}`, '{"error":"webhook"}'],
      [403, `only for ${id}`, ''],
      [500, 'no disk', 'no disk'],
    ] as const) {
      const answer = await server.graphql(CREATE, { url: (await receiverAnswering({ status, body })).url })
      assert.doesNotMatch(assertRefused(answer, 'PING_FAILED'), new RegExp(id))
      assert.equal(onlyError(answer).extensions.response, response)
    }
  })

  it('are not stored when the ping gets no answer, and the error says why', async () => {
    const before = await rowCounts()
    const plain = await good()
    const cases: [url: string, failure: string][] = [
      [(await receiverAnswering('reset')).url, 'connection_reset'],
      [(await receiverAnswering('malformed')).url, 'malformed_response'],
      [`http://127.0.0.1:${await freePort()}/`, 'connection_refused'],
      [plain.url.replace('http:', 'https:'), 'tls_error'],
      ['http://tidings.invalid/', 'dns_error'],
      ['http://10.0.0.1/', 'address_not_allowed'],
      ['http://169.254.169.254/latest/meta-data', 'address_not_allowed'],
    ]
    for (const [url, failure] of cases) {
      const answer = await server.graphql(CREATE, { url })
      assertRefused(answer, 'PING_FAILED')
      const { extensions } = onlyError(answer)
      assert.equal(extensions.failure, failure, JSON.stringify(extensions))
      assert.ok(extensions.detail.length > 0)
      assert.equal(extensions.url, url)
    }
    assert.deepEqual(await rowCounts(), before)
    assert.equal(plain.requests.length, 0)
  })

  it('name the argument that is wrong, and what would be right', async () => {
    const { url, requests } = await good()
    const wrongUrls = [
      'nowhere',
      '/hooks',
      'ftp://example.com/',
      'javascript:alert(1)',
      'http://user@example.com/',
      'http://:secret@example.com/',
      'http://user:secret@example.com/',
      'https://example.com/#part',
      'https://example.com/a b',
      'https://example.com/\n',
      `https://example.com/${'x'.repeat(2048)}`,
      '',
    ]
    for (const wrong of wrongUrls) {
      const message = assertRefused(await server.graphql(CREATE, { url: wrong }), 'BAD_USER_INPUT', 'url')
      assert.doesNotMatch(message, /secret/)
    }
    assertRefused(await server.graphql(CREATE, { url, events: ['ping'] }), 'BAD_USER_INPUT', 'events')
    assertRefused(await server.graphql(UPSERT, { url, status: 'inactive' }), 'BAD_USER_INPUT', 'status')
    assertRefused(await server.graphql(UPSERT, { id: randomUUID() }), 'BAD_USER_INPUT', 'url')
    const events = ['token_expire']
    const unknownEvent = assertRefused(await server.graphql(CREATE, { url, events }), 'BAD_USER_INPUT', 'events')
    assert.match(unknownEvent, /token_expired/, 'says what was perhaps meant')
    assertRefused(await server.graphql(UPSERT, { id: 'one', url }), 'BAD_USER_INPUT', 'id')
    assertRefused(await server.graphql(CREATE, { url, projectIds: ['one'] }), 'BAD_USER_INPUT', 'projectIds')
    assert.equal(requests.length, 0, 'nothing is pinged for a request that cannot be granted')
  })

  it('take https only where the installation says so', async () => {
    const { knex } = server.database
    const token = { id: randomUUID(), seesAllOrganisations: true } as Parameters<typeof checkWebhookInput>[1]
    const check = (url: string) => checkWebhookInput(knex, token, { url }, { requireHttps: true })
    await check('https://example.com/hooks')
    await assert.rejects(check('http://example.com/hooks'), /^TidingsError: url: .*https/)
  })

  it('keep a URL that a change does not name, also if that is changed at the same moment', () => {
    const id = randomUUID()
    for (const transport of ['push', 'pull'] as const) {
      const seen = { transport, url: 'https://tidings.example/x' } as WebhookRow
      assert.equal(withTransport({ name: 'x' }, { id, seen, issuerUrl: 'https://tidings.example' }).url, undefined)
    }
  })

  it('are refused with the ids that are not there, unpinged', async () => {
    const { url, requests } = await good()
    const { organisationId, projectId } = await addProject(server.database)
    const missing = [randomUUID(), randomUUID()]
    for (const [name, known] of [
      ['organisationIds', organisationId],
      ['projectIds', projectId],
    ] as const) {
      const answer = await server.graphql(CREATE, { url, [name]: [known, ...missing] })
      assertRefused(answer, 'NOT_FOUND')
      assert.deepEqual(onlyError(answer).extensions.ids, missing)
    }
    assert.equal(requests.length, 0)
  })

  it('keep their filters, each value once', async () => {
    const { url } = await good()
    const { organisationId, projectId } = await addProject(server.database)
    const event = 'project_report_quarterly_submitted'
    const webhook = await create({
      url,
      events: [event, event],
      organisationIds: [organisationId, organisationId.toUpperCase()],
      projectIds: [projectId],
    })
    assert.deepEqual(webhook.events, [event])
    assert.deepEqual(webhook.organisationIds, [organisationId])
    assert.deepEqual(webhook.projectIds, [projectId])
  })

  it('are created by an upsert without an id', async () => {
    const { url } = await good()
    const [one, two] = [await upsert({ url }), await upsert({ url })]
    assert.notEqual(one.id, two.id)
    assert.equal(one.status, 'active')
  })

  it('are created by an upsert under an id of the caller’s, which can be repeated', async () => {
    const { url, requests } = await good()
    const id = randomUUID()
    const first = await upsert({ id: id.toUpperCase(), url })
    assert.equal(first.id, id)
    const held = { held_until: Date.now() + 60_000 }
    await server.database.knex('webhooks').where({ id }).update(held)
    const again = await upsert({ id, url })
    assert.equal((await server.database.knex('webhooks').where({ id }).first()).held_until, held.held_until)
    assert.deepEqual({ ...again, updatedAt: null }, { ...first, updatedAt: null })
    assert.equal(requests.length, 1, 'the same url needs no second ping')
    assert.equal(requests[0]!.body.webhookId, id)
  })

  it('are created once when the same upsert is made twice at once', async () => {
    const { url } = await receiverAnswering({ status: 200, delayMs: 50 })
    const id = randomUUID()
    const both = await Promise.all([upsert({ id, url }), upsert({ id, url })])
    assert.deepEqual(
      both.map(webhook => webhook.id),
      [id, id],
    )
    assert.equal((await server.database.knex('webhooks').where({ id })).length, 1)
  })

  it('change in what an upsert gives and in nothing else', async () => {
    const { url, requests } = await good()
    const { organisationId, projectId } = await addProject(server.database)
    const before = await create({ url, events: ['token_expired'], organisationIds: [organisationId] })
    const unchanged = ({ updatedAt: _, ...webhook }: Record<string, unknown>) => webhook

    const first = await upsert({ id: before.id, projectIds: [projectId] })
    assert.deepEqual(unchanged(first), unchanged({ ...before, projectIds: [projectId] }))
    const second = await upsert({ id: before.id, events: [], organisationIds: null })
    assert.deepEqual(unchanged(second), unchanged({ ...first, events: [] }))
    const third = await upsert({ id: before.id, organisationIds: [] })
    assert.deepEqual(unchanged(third), unchanged({ ...second, organisationIds: [] }))
    const last = await upsert({ id: before.id })
    assert.deepEqual(unchanged(last), unchanged(third))
    assert.deepEqual(await stored(before.id), last)
    assert.equal(requests.length, 1, 'none of this needs a ping')
  })

  it('take a new url once it has answered a ping, and keep the old one otherwise', async () => {
    const [old, next, bad] = [await good(), await good(), await receiverAnswering({ status: 500 })]
    const webhook = await create({ url: old.url })
    const refused = await server.graphql(UPSERT, { id: webhook.id, url: bad.url, events: ['token_expired'] })
    assertRefused(refused, 'PING_FAILED')
    assert.deepEqual(await stored(webhook.id), webhook, 'nothing of the change was stored')

    assert.equal((await upsert({ id: webhook.id, url: next.url })).url, next.url)
    assert.equal(next.requests.length, 1)
    assert.equal(next.requests[0]!.body.webhookId, webhook.id)
    assert.equal(old.requests.length, 1)
  })

  it('return to active once they have answered a ping, and stay as they are otherwise', async () => {
    const { url, requests } = await receiverAnswering(
      { status: 200 },
      { status: 503 },
      { status: 200 },
      { status: 204 },
      { status: 200 },
    )
    const { id } = await create({ url })
    const comeBack = () => server.graphql(UPSERT, { id, status: 'active' })

    await upsert({ id, status: 'disabled' })
    assertRefused(await comeBack(), 'PING_FAILED')
    assert.equal((await stored(id)).status, 'disabled')
    assert.equal(data(await comeBack(), 'upsertWebhook').status, 'active')

    await server.database.knex('webhooks').where({ id }).update({ status: 'inactive', status_reason: 'was asked to' })
    assertRefused(await comeBack(), 'PING_FAILED')
    const { status, statusReason } = await stored(id)
    assert.deepEqual({ status, statusReason }, { status: 'inactive', statusReason: 'was asked to' })
    const back = data(await comeBack(), 'upsertWebhook')
    assert.deepEqual({ status: back.status, statusReason: back.statusReason }, { status: 'active', statusReason: null })

    const pings = requests.length
    await upsert({ id, status: 'active' })
    assert.equal(requests.length, pings, 'one that is active needs no ping to stay so')
  })

  it('cancel what is pending when they are disabled, and are queued nothing until they are active again', async () => {
    const { url } = await good()
    const { submit, organisationId } = await submitReport()
    const { id } = await create({ url, organisationIds: [organisationId] })
    const other = await create({ url, organisationIds: [organisationId] })
    await submit('2026-1')
    assert.deepEqual(await statuses(id), ['pending'])

    await upsert({ id, status: 'disabled' })
    assert.deepEqual(await statuses(id), ['cancelled'])
    assert.deepEqual(await statuses(other.id), ['pending'], 'another webhook keeps its own')
    assert.deepEqual(await server.database.knex('delivery_queue').where('webhook_id', id), [])
    await submit('2026-2')
    assert.deepEqual(await statuses(id), ['cancelled'])

    await upsert({ id, status: 'active' })
    assert.deepEqual(await statuses(id), ['cancelled'], 'what was cancelled stays so')
    await submit('2026-3')
    assert.deepEqual((await statuses(id)).sort(), ['cancelled', 'pending'])
  })

  it('send what is pending to a new url, except what their new filters leave out', async () => {
    const [old, next] = [await good(), await good()]
    const [kept, left] = [await submitReport(), await submitReport()]
    const { id } = await create({ url: old.url, organisationIds: [kept.organisationId, left.organisationId] })
    await kept.submit('2026-1')
    await left.submit('2026-1')
    const example = 'mutation ($id: UUID!) { sendExample(webhookId: $id, eventType: token_expired) { id } }'
    data(await server.graphql(example, { id }), 'sendExample')

    await upsert({ id, url: next.url, organisationIds: [kept.organisationId] })
    const found = await server.database
      .knex('deliveries')
      .join('events', 'events.id', 'event_id')
      .where({ webhook_id: id })
      .whereNot('events.type', 'ping')
      .select('status', 'organisation_id', 'example')
    const ofEach = found.map(row => [row.organisation_id, row.example, row.status])
    assert.deepEqual(
      new Set(ofEach.map(String)),
      new Set([`${kept.organisationId},0,pending`, `${left.organisationId},0,cancelled`, ',1,pending']),
    )
  })

  it('can be disabled although their endpoint is gone', async () => {
    const receiver = await good()
    const { id } = await create({ url: receiver.url })
    await receiver.close()
    assert.equal((await upsert({ id, status: 'disabled' })).status, 'disabled')
  })

  it('are pinged on demand, and the answer is there when the mutation returns', async () => {
    const { url, requests } = await receiverAnswering(
      { status: 200 },
      { status: 204 },
      { status: 404, body: 'gone' },
      { status: 500 },
    )
    const { id } = await create({ url })
    const delivered = await ping(id)
    assert.deepEqual(
      { ...delivered, id: requests[1]!.body.eventId },
      {
        id: delivered.id,
        webhookId: id,
        eventType: 'ping',
        status: 'delivered',
        attemptCount: 1,
        nextAttemptAt: null,
        attempts: [{ number: 1, statusCode: 204, failure: null, response: '' }],
      },
    )
    const rejected = await ping(id)
    assert.equal(rejected.status, 'rejected')
    assert.deepEqual(rejected.attempts, [{ number: 1, statusCode: 404, failure: null, response: 'gone' }])
    const retried = await ping(id)
    assert.equal(retried.status, 'pending')
    assert.ok(Date.parse(retried.nextAttemptAt) > 0)
  })

  it('are not pinged on demand unless they are active', async () => {
    const { url, requests } = await good()
    const { id } = await create({ url })
    await upsert({ id, status: 'disabled' })
    const message = assertRefused(await server.graphql(PING, { id }), 'CONFLICT')
    assert.match(message, /disabled/)
    assertRefused(await server.graphql(PING, { id: randomUUID() }), 'NOT_FOUND')
    assert.equal(requests.length, 1)
  })
})
