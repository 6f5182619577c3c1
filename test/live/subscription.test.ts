import assert from 'node:assert/strict'
import { randomBytes, randomUUID } from 'node:crypto'
import { after, before, it } from 'node:test'
import { createClient } from 'graphql-sse'
import { type Credentials, signRequest } from '../../shared/hmac.ts'
import { describeEachEngine } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'
import { addWebhook } from '../support/webhooks.ts'
import { type LiveEvent, subscribe } from './events.ts'

/** As long as a server that stops waits for the requests that run. */
const REQUESTS_MS = 20_000
const LIVE = `subscription ($selector: MangoSelector) {
  deliveries(selector: $selector) { id status eventType webhookId webhook { url } attempts { statusCode } } }`

const deliveriesOf = (events: LiveEvent[]) => events.flatMap(({ data }) => data?.data?.deliveries ?? [])

describeEachEngine('a subscription to deliveries', engine => {
  let server: TestServer
  /** Another process: it sends, and the first one does not. */
  let sender: TestServer
  let receiver: Receiver
  let admin: Credentials & { id: string }
  let acme: Awaited<ReturnType<typeof addProject>>
  let borealis: Awaited<ReturnType<typeof addProject>>
  let webhookId: string
  let year = 2000

  const liveTimes = { lookMs: 100, beatMs: 500 }

  before(async () => {
    const env = { TIDINGS_RATE_LIMIT: '0', TIDINGS_MASTER_KEY: randomBytes(32).toString('base64') }
    server = await startTestServer(engine, { env: { ...env, TIDINGS_ROLES: 'api' }, liveTimes })
    sender = await startTestServer(engine, { env, url: server.config.databaseUrl, liveTimes })
    receiver = await startReceiver()
    acme = await addProject(server.database)
    borealis = await addProject(server.database, { organisation: 'Borealis' })
    admin = await server.token({ name: 'ada' })
    webhookId = await addWebhook(server.database.knex, { accessTokenId: admin.id, url: receiver.url })
  })
  after(async () => {
    await receiver.close()
    await sender.stop()
    await server.stop()
  })

  const submit = async ({ projectId, userId }: typeof acme, by = sender) => {
    const { errors } = await by.graphql(
      `mutation ($quarter: String!) {
        submitProjectReport(projectId: "${projectId}", quarter: $quarter, submitterId: "${userId}") { id } }`,
      { quarter: `${year++}-1` },
      admin,
    )
    assert.equal(errors, undefined, JSON.stringify(errors))
  }
  const isDelivered = (events: LiveEvent[]) => deliveriesOf(events).some(({ status }) => status === 'delivered')

  it('tells of what the same process does, with all that was asked of it', async () => {
    const live = await subscribe(sender.url, admin, LIVE)
    assert.deepEqual([live.status, live.type], [200, 'text/event-stream; charset=utf-8'])
    await submit(acme)
    const told = deliveriesOf(await live.until('the end of a delivery', isDelivered)).at(-1)
    assert.deepEqual([told.webhookId, told.webhook.url], [webhookId, receiver.url])
    assert.deepEqual(told.attempts, [{ statusCode: 200 }])
    live.leave()
  })

  it('ends with the limit that it exceeds, and others go on', async () => {
    for (let n = 0; n < 4; n++) await submit(acme)
    const other = await subscribe(sender.url, admin, LIVE)
    const wide = Array.from({ length: 40 }, (_, n) => `a${n}: payload`).join(' ')
    const live = await subscribe(
      sender.url,
      admin,
      `subscription { deliveries { ${'webhook { deliveries { '.repeat(3)} event { ${wide} } ${'} } '.repeat(3)} } }`,
    )
    await submit(acme)
    await live.closed()
    const { errors } = live.events[0]!.data
    assert.deepEqual([errors[0].extensions.code, errors[0].extensions.limit], ['RESULT_TOO_LARGE', 1_000_000])
    await other.until('the end of a delivery', isDelivered)
    other.leave()
  })

  it('tells of what another process does', async () => {
    const live = await subscribe(server.url, admin, LIVE)
    await submit(acme)
    await live.until('the end of a delivery', isDelivered)
    live.leave()
  })

  it('tells the present state at each change, and nothing without one', async () => {
    const live = await subscribe(server.url, admin, LIVE)
    await submit(acme)
    await live.until('the end of a delivery', isDelivered)
    const first = deliveriesOf(live.events)[0]!.id
    await submit(acme)
    await live.until('the end of another', events =>
      deliveriesOf(events).some(it => it.id !== first && it.status === 'delivered'),
    )
    for (const id of new Set(deliveriesOf(live.events).map(it => it.id))) {
      const states = deliveriesOf(live.events).filter(it => it.id === id)
      assert.ok(states.length <= 3, `queued, attempted and ended, ${states.length} times told`)
      assert.equal(states.at(-1)!.status, 'delivered')
    }
    live.leave()
  })

  it('tells of everything where its selector is empty', async () => {
    const live = await subscribe(server.url, admin, LIVE, { variables: { selector: {} } })
    await submit(acme)
    await live.until('the end of a delivery', isDelivered)
    live.leave()
  })

  it('tells of what its selector matches, and of nothing else', async () => {
    const selector = { 'event.organisation.name': 'Borealis', status: 'delivered' }
    const live = await subscribe(server.url, admin, LIVE, { variables: { selector } })
    const all = await subscribe(server.url, admin, LIVE)
    await submit(acme)
    await submit(borealis)
    await live.until('what matches', isDelivered)
    const ended = (events: LiveEvent[]) => deliveriesOf(events).filter(it => it.status === 'delivered')
    // A test before may still have one under way.
    await all.until('both', events => new Set(ended(events).map(it => it.id)).size >= 2)
    assert.equal(new Set(deliveriesOf(live.events).map(it => it.id)).size, 1)
    live.leave()
    all.leave()
  })

  it('tells of what its token sees at that moment, and of nothing else', async () => {
    const limited = await server.token({ permissions: ['read', 'webhooks'], organisationIds: [acme.organisationId] })
    const url = new URL('/limited', receiver.url).href
    await addWebhook(server.database.knex, { accessTokenId: limited.id, url })
    const live = await subscribe(server.url, limited, LIVE)
    await submit(borealis)
    await submit(acme)
    await live.until('its own', isDelivered)
    assert.deepEqual([...new Set(deliveriesOf(live.events).map(({ webhook }) => webhook.url))], [url])
    await server.database.knex('access_token_organisations').where('access_token_id', limited.id).del()
    const all = await subscribe(server.url, admin, LIVE)
    const before = live.events.length
    await submit(acme)
    await all.until('what happens', isDelivered)
    assert.equal(live.events.length, before)
    live.leave()
    all.leave()
  })

  it('ends when its token is revoked, and says why', async () => {
    const token = await server.token({ permissions: ['read'] })
    const live = await subscribe(server.url, token, LIVE)
    await sender.graphql(`mutation { revokeAccessToken(id: "${token.id}") { id } }`, {}, admin)
    await live.closed()
    const [next, complete] = live.events.slice(-2)
    assert.deepEqual([next!.event, complete!.event], ['next', 'complete'])
    const [error] = next!.data.errors
    assert.deepEqual([error.extensions.code, error.extensions.reason], ['UNAUTHENTICATED', 'revoked'])
  })

  it('ends when its token expires', async () => {
    const token = await server.token({ permissions: ['read'], expiresAt: Date.now() + 1_000 })
    const live = await subscribe(server.url, token, LIVE)
    await live.closed()
    assert.equal(live.events.at(-2)!.data.errors[0].extensions.reason, 'expired')
  })

  it('goes on at any process where it broke', async () => {
    const live = await subscribe(server.url, admin, LIVE)
    await submit(acme)
    await live.until('the end of a delivery', isDelivered)
    live.leave()
    const known = deliveriesOf(live.events).map(({ id }) => id)
    await submit(borealis)
    await eventually(
      'it to be delivered',
      () => server.database.knex('deliveries').where('status', 'pending'),
      pending => pending.length === 0,
    )
    const again = await subscribe(sender.url, admin, LIVE, { headers: { 'last-event-id': live.lastId! } })
    await again.until('what was missed', events => deliveriesOf(events).some(({ id }) => !known.includes(id)))
    // And from there on as before.
    const count = deliveriesOf(again.events).length
    await submit(acme)
    await again.until('what happens now', events => deliveriesOf(events).length > count)
    again.leave()
  })

  it('says what is wrong with it', async () => {
    const codeOf = async (query: string, more: Parameters<typeof subscribe>[3] = {}, as: Credentials = admin) => {
      const live = await subscribe(server.url, as, query, more)
      await live.closed()
      const { errors } = live.type!.includes('json') ? JSON.parse(live.text) : live.events[0]!.data
      if (!live.type!.includes('json')) assert.equal(live.events.at(-1)!.event, 'complete')
      return [live.status, errors[0].extensions.code]
    }
    assert.deepEqual(await codeOf('subscription { nothing }'), [400, 'BAD_USER_INPUT'])
    assert.deepEqual(await codeOf(LIVE, { headers: { accept: 'application/json' } }), [200, 'BAD_USER_INPUT'])
    assert.deepEqual(await codeOf(LIVE, { variables: { selector: { nothing: 1 } } }), [200, 'BAD_USER_INPUT'])
    assert.deepEqual(await codeOf(LIVE, { headers: { 'last-event-id': 'x' } }), [200, 'BAD_USER_INPUT'])
    const late = String(Date.now() - 3_600_000)
    assert.deepEqual(await codeOf(LIVE, { headers: { 'last-event-id': late } }), [200, 'BAD_USER_INPUT'])
    const writer = await server.token({ permissions: ['reports'] })
    assert.deepEqual(await codeOf(LIVE, {}, writer), [200, 'FORBIDDEN'])
    const stranger = { apiKey: 'tk_nobody', apiSecret: admin.apiSecret }
    assert.deepEqual(await codeOf(LIVE, {}, stranger), [401, 'UNAUTHENTICATED'])
  })

  it('is served to clients of graphql-sse as they are', async () => {
    const url = new URL('/graphql', server.url)
    const client = createClient({
      url: url.href,
      // A signature covers the body, which this client makes itself.
      fetchFn: (input: string, init: RequestInit) => {
        const body = init.body as string
        const signed = signRequest({
          method: 'POST',
          url,
          body,
          credentials: admin,
          at: new Date(),
          nonce: randomUUID(),
        })
        return fetch(input, { ...init, headers: { ...(init.headers as Record<string, string>), ...signed } })
      },
    })
    const { value: viewer } = await client.iterate({ query: '{ viewer { name } }' }).next()
    assert.deepEqual(viewer, { data: { viewer: { name: 'ada' } } })
    const stream = client.iterate<{ deliveries: { status: string } }>({
      query: 'subscription { deliveries { status } }',
    })
    const first = stream.next()
    // It subscribes by itself: until it has, what happens is not told.
    const submitting = setInterval(() => void submit(acme), 500)
    const { value } = await first
    clearInterval(submitting)
    assert.ok(value?.data?.deliveries.status)
    await stream.return?.(undefined)
    client.dispose()
  })

  it('ends at once when its server stops, so that it goes on at another', async () => {
    const third = await startTestServer(engine, {
      env: { TIDINGS_ROLES: 'api', TIDINGS_MASTER_KEY: server.config.masterKeys[0]!.toString('base64') },
      url: server.config.databaseUrl,
    })
    const live = await subscribe(third.url, admin, LIVE)
    const startedAt = performance.now()
    await third.stop()
    await live.closed()
    assert.ok(performance.now() - startedAt < REQUESTS_MS / 2)
    assert.ok(!live.events.some(({ event }) => event === 'complete'))
  })
})
