import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, it } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import { createSchema } from '../../server/graphql/schema.ts'
import { toIso } from '../../shared/time.ts'
import { describeEachEngine } from '../support/databases.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, type GraphqlAnswer, startTestServer, type TestServer } from '../support/server.ts'
import { addWebhook } from '../support/webhooks.ts'

// Each argument of each mutation is given once, with a value that it does not have by itself, and read back: an
// argument that a rule forgets is red here, and so is a new one that no row names.

const mutations = createSchema().getMutationType()!.getFields()
const SECRET = `whsec_${Buffer.alloc(32, 7).toString('base64')}`
const OTHER_SECRET = `whsec_${Buffer.alloc(32, 8).toString('base64')}`

// biome-ignore lint/suspicious/noExplicitAny: what an answer holds is known where it is read
type Json = any
type Call = {
  given: Record<string, unknown>
  /** Happens while the mutation runs. */
  meanwhile?: () => Promise<unknown>
  /** Selects from the answer of the mutation; nothing of a scalar. */
  select?: string
  /** The arguments as they are found again. */
  found: (answer: Json, errors: GraphqlAnswer['errors']) => Promise<object> | object
}

describeEachEngine('the arguments of a mutation', engine => {
  let server: TestServer
  let receiver: Receiver
  let adminId: string
  let project: Awaited<ReturnType<typeof addProject>>
  before(async () => {
    // Nothing claims deliveries here.
    server = await startTestServer(engine, { env: { TIDINGS_ROLES: 'api' } })
    receiver = await startReceiver()
    project = await addProject(server.database)
    adminId = (await server.token()).id
  })
  after(async () => {
    await server?.stop()
    await receiver?.close()
  })

  const done = ({ data, errors }: GraphqlAnswer): Json => {
    assert.equal(errors, undefined, JSON.stringify(errors))
    return data
  }
  const rowOf = (table: string, id: string): Promise<Json> => server.database.knex(table).where({ id }).first()
  const idsOf = (table: string, where: object): Promise<string[]> =>
    server.database.knex(table).where(where).pluck('id')
  /** The first listed row with this id, as a reader sees it. */
  const shown = async (list: string, id: string, fields: string): Promise<Json> => {
    const document = `query ($query: MangoQuery) { ${list}(query: $query) { ${fields} } }`
    return done(await server.graphql(document, { query: { selector: { id } } }))[list][0]
  }
  const webhook = (more: object = {}) => addWebhook(server.database.knex, { accessTokenId: adminId, ...more })
  const report = async (): Promise<string> => {
    const { projectId } = await addProject(server.database)
    const [id, now] = [randomUUID(), Date.now()]
    const row = { id, project_id: projectId, quarter: '2026-3', due_date: '2026-10-30', status: 'submitted' }
    await server.database.knex('project_reports').insert({ ...row, created_at: now, updated_at: now })
    return id
  }
  /** An event of the project at a time, and a delivery of it. */
  const delivered = async (webhookId: string, at: number): Promise<{ eventId: string; deliveryId: string }> => {
    const [eventId, deliveryId] = [randomUUID(), randomUUID()]
    const type = 'project_report_quarterly_overdue'
    const { knex } = server.database
    const of = { organisation_id: project.organisationId, project_id: project.projectId }
    await knex('events').insert({ id: eventId, type, ...of, all_organisations: 0, payload: '{}', created_at: at })
    const delivery = { id: deliveryId, event_id: eventId, webhook_id: webhookId, event_type: type }
    await knex('deliveries').insert({ ...delivery, status: 'rejected', created_at: at, finished_at: at })
    return { eventId, deliveryId }
  }

  const sample = async (webhookId: string): Promise<void> => {
    const document = 'mutation ($id: UUID!) { sendExample(webhookId: $id, eventType: token_expired) { id } }'
    done(await server.graphql(document, { id: webhookId }))
  }
  /** A delivery of a pulled webhook, taken. */
  const taken = async (): Promise<{ deliveryId: string; attempt: number }> => {
    const id = await webhook({ transport: 'pull' })
    await sample(id)
    const document = 'mutation ($id: UUID!) { takeDeliveries(webhookId: $id) { deliveryId attempt } }'
    return done(await server.graphql(document, { id })).takeDeliveries[0]
  }

  const WEBHOOK =
    'id url name labels events organisationIds projectIds ordering transport signing recovery headers status'
  const ofWebhook = () => ({
    url: receiver.url,
    name: 'Payments',
    labels: { team: 'payments' },
    events: ['token_expired'],
    organisationIds: [project.organisationId],
    projectIds: [project.projectId],
    ordering: 'project',
    transport: 'push',
    recovery: 'automatic',
    signing: 'standard',
    secret: SECRET,
    headers: { 'x-api-key': 'k' },
  })
  /** The webhook as it is now, by the names of the arguments, with values of headers as the endpoint received them. */
  const asGiven = async ({ id, secret }: Json) => {
    const found = await shown('webhooks', id, WEBHOOK)
    const headers = Object.fromEntries(
      found.headers.map((name: string) => [name.toLowerCase(), receiver.requests.at(-1)?.headers[name.toLowerCase()]]),
    )
    return { ...found, headers, secret }
  }
  const only = (names: string[], found: Json) => Object.fromEntries(names.map(name => [name, found[name]]))

  const calls: Record<string, () => Promise<Call[]>> = {
    createWebhook: async () => {
      const given = ofWebhook()
      const pull = { transport: 'pull' }
      return [
        { given, select: 'id secret', found: async made => only(Object.keys(given), await asGiven(made)) },
        {
          given: pull,
          select: 'id',
          // Nobody takes the ping.
          found: (_, errors) => ({ transport: /\/pull\//.test(errors![0]!.extensions.url) ? 'pull' : undefined }),
        },
      ]
    },
    upsertWebhook: async () => {
      const given = { ...ofWebhook(), id: await webhook({ transport: 'pull' }) }
      const disabled = { id: await webhook(), status: 'disabled', name: 'Off' }
      const anew = { ...given, id: randomUUID() }
      return [given, disabled, anew].map(given => ({
        given,
        select: 'id secret',
        found: async made => only(Object.keys(given), await asGiven(made)),
      }))
    },
    pingWebhook: async () => {
      const id = await webhook({ url: receiver.url })
      return [{ given: { id }, select: 'webhookId', found: ({ webhookId }) => ({ id: webhookId }) }]
    },
    rotateWebhookSecret: async () => {
      const made = await server.graphql(
        'mutation ($url: String!) { createWebhook(url: $url, signing: standard) { id } }',
        { url: receiver.url },
      )
      const given = { id: done(made).createWebhook.id, secret: OTHER_SECRET, graceSeconds: 0 }
      return [
        {
          given,
          select: 'secret webhook { id }',
          async found({ secret, webhook: { id } }) {
            await server.graphql('mutation ($id: UUID!) { pingWebhook(id: $id) { id } }', { id })
            const signatures = String(receiver.requests.at(-1)!.headers['webhook-signature']).split(' ')
            // The replaced secret signs no more.
            return { id, secret, graceSeconds: signatures.length === 1 ? 0 : undefined }
          },
        },
      ]
    },
    deleteWebhook: async () => {
      const id = await webhook({ status: 'disabled' })
      return [
        {
          given: { id },
          found: async deleted => ({ id: (await shown('webhooks', id, 'id')) === undefined ? deleted : undefined }),
        },
      ]
    },
    sendExample: async () => {
      const payload = { projectReport: { quarter: '2031-4' } }
      return [
        {
          given: { webhookId: await webhook(), eventType: 'project_report_quarterly_overdue', payload },
          select: 'webhookId eventType event { payload }',
          found: ({ webhookId, eventType, event }) => ({
            ...{ webhookId, eventType },
            payload: { projectReport: { quarter: event.payload.projectReport.quarter } },
          }),
        },
      ]
    },
    takeDeliveries: async () => {
      const [full, empty] = [await webhook({ transport: 'pull' }), await webhook({ transport: 'pull' })]
      for (let n = 0; n < 2; n++) await sample(full)
      const isTakenFrom = (webhookId: string, taken: Json[]) =>
        taken.length === 1 && JSON.parse(taken[0].body).webhookId === webhookId
      return [
        {
          given: { webhookId: full, limit: 1 },
          select: 'body',
          found: taken => (isTakenFrom(full, taken) ? { webhookId: full, limit: 1 } : { taken }),
        },
        {
          given: { webhookId: empty, waitSeconds: 20 },
          // It may come too early: then it waits for nothing, as if this were forgotten.
          meanwhile: () => wait(300).then(() => sample(empty)),
          select: 'body',
          found: taken => (isTakenFrom(empty, taken) ? { webhookId: empty, waitSeconds: 20 } : { taken }),
        },
      ]
    },
    answerDeliveries: async () => {
      const { deliveryId, attempt } = await taken()
      const answer = { deliveryId, attempt, status: 422, headers: { 'x-answer': 'b' }, body: 'no' }
      return [
        {
          given: { answers: [answer] },
          select: 'deliveryId',
          async found([{ deliveryId }]) {
            const fields = 'attempts { number statusCode response responseHeaders }'
            const [{ number, statusCode, response, responseHeaders: headers }] = (
              await shown('deliveries', deliveryId, fields)
            ).attempts
            return { answers: [{ deliveryId, attempt: number, status: statusCode, headers, body: response }] }
          },
        },
      ]
    },
    extendDeliveries: async () => {
      const deliveries = [await taken()]
      return [
        {
          given: { deliveries, seconds: 600 },
          select: 'deliveryId attempt leaseUntil',
          found: ([{ deliveryId, attempt, leaseUntil }]) => ({
            deliveries: [{ deliveryId, attempt }],
            seconds: Math.round((Date.parse(leaseUntil) - Date.now()) / 60_000) * 60,
          }),
        },
      ]
    },
    rehearse: async () => {
      const webhookId = await webhook({ url: receiver.url })
      const before = receiver.requests.length
      return [
        {
          given: { webhookId, scene: 'ping' },
          select: 'statusCode',
          found() {
            const { body } = receiver.requests.at(-1)!
            return receiver.requests.length > before ? { webhookId: body.webhookId, scene: body.eventType } : {}
          },
        },
      ]
    },
    submitProjectReport: async () => [
      {
        given: { projectId: project.projectId, quarter: '2031-2', submitterId: project.userId },
        select: 'id',
        async found({ id }) {
          const { project_id: projectId, quarter, submitter_id: submitterId } = await rowOf('project_reports', id)
          return { projectId, quarter, submitterId }
        },
      },
    ],
    approveProjectReport: async () => [
      {
        given: { id: await report(), approverId: project.userId, approvedDate: '2026-01-02' },
        select: 'id',
        async found({ id }) {
          const { approver_id: approverId, approved_date: approvedDate } = await rowOf('project_reports', id)
          return { id, approverId, approvedDate }
        },
      },
    ],
    redeliver: async () => {
      const webhookId = await webhook()
      const { eventId, deliveryId } = await delivered(webhookId, Date.now())
      return [
        {
          given: { deliveryId },
          select: 'id event { id }',
          found: ({ id, event }) => ({
            deliveryId: id !== deliveryId && event.id === eventId ? deliveryId : undefined,
          }),
        },
      ]
    },
    recoverDeliveries: async () => {
      const from = Date.now() - 60_000
      const webhookId = await webhook({ createdAt: from })
      const times = [from + 1_000, from + 2_000, from + 3_000]
      const made: { eventId: string }[] = []
      for (const at of times) made.push(await delivered(webhookId, at))
      const iso = (at: number) => new Date(at).toISOString()
      const given = { webhookId, since: iso(times[1]! - 1), until: iso(times[1]! + 1) }
      const pending = () => idsOf('deliveries', { webhook_id: webhookId, status: 'pending' })
      return [
        {
          given: { ...given, dryRun: true },
          select: 'webhookId queued',
          found: async ({ webhookId, queued }) => ({
            ...{ webhookId, ...(queued === 1 && { since: given.since, until: given.until }) },
            dryRun: (await pending()).length === 0,
          }),
        },
        {
          given,
          select: 'webhookId queued',
          async found({ webhookId }) {
            const queued = made.map(({ eventId }) => idsOf('deliveries', { event_id: eventId, status: 'pending' }))
            const counts = (await Promise.all(queued)).map(ids => ids.length)
            return {
              webhookId,
              since: counts[0] === 0 && counts[1] === 1 ? given.since : undefined,
              until: counts[2] === 0 && counts[1] === 1 ? given.until : undefined,
            }
          },
        },
      ]
    },
    redeliverMany: async () => {
      const webhookId = await webhook()
      const [first, second] = [await delivered(webhookId, Date.now()), await delivered(webhookId, Date.now())]
      const query = { selector: { id: first.deliveryId } }
      const pending = () => idsOf('deliveries', { webhook_id: webhookId, status: 'pending' })
      return [
        {
          given: { webhookId, query, dryRun: true },
          select: 'webhookId queued',
          found: async ({ webhookId, queued }) => ({
            ...{ webhookId, query: queued === 1 ? query : undefined },
            dryRun: (await pending()).length === 0,
          }),
        },
        {
          given: { webhookId, query },
          select: 'webhookId',
          async found({ webhookId }) {
            const others = await idsOf('deliveries', { event_id: second.eventId })
            return { webhookId, query: others.length === 1 && (await pending()).length === 1 ? query : undefined }
          },
        },
      ]
    },
    upsertOrganisation: async () =>
      [randomUUID(), project.organisationId].map(id => ({
        given: { id, name: 'Renamed' },
        select: 'id',
        found: ({ id }) => shown('organisations', id, 'id name'),
      })),
    upsertProject: async () =>
      [randomUUID(), (await addProject(server.database)).projectId].map(id => ({
        given: { id, name: 'Moved', organisationId: project.organisationId },
        select: 'id',
        found: ({ id }) => shown('projects', id, 'id name organisationId'),
      })),
    upsertUser: async () =>
      [randomUUID(), project.userId].map(id => ({
        given: { id, name: 'Bo Lindqvist' },
        select: 'id',
        found: ({ id }) => shown('users', id, 'id name'),
      })),
    createAccessToken: async () => [
      {
        given: {
          name: 'ci',
          permissions: ['reports', 'webhooks'],
          organisationIds: [project.organisationId],
          expiresAt: '2099-01-01T00:00:00.000+00:00',
        },
        select: 'accessToken { id }',
        async found({ accessToken: { id } }) {
          const { permissions, ...others } = await shown(
            'accessTokens',
            id,
            'name permissions organisationIds expiresAt',
          )
          return { ...others, permissions: permissions.toSorted() }
        },
      },
    ],
    revokeAccessToken: async () => {
      const [{ id }, { id: later }] = [await server.token(), await server.token()]
      return [
        {
          given: { id },
          select: 'id',
          found: async ({ id }) => ({ id: (await rowOf('access_tokens', id)).revoked_at === null ? undefined : id }),
        },
        {
          given: { id: later, at: '2099-01-01T00:00:00.000+00:00' },
          select: 'id',
          found: async ({ id }) => ({ id, at: toIso(Number((await rowOf('access_tokens', id)).expires_at)) }),
        },
      ]
    },
    rotateSigningKey: async () => [{ given: {}, select: 'kid', found: () => ({}) }],
  }

  it('has every mutation, and names every argument of each', async () => {
    assert.deepEqual(Object.keys(calls).toSorted(), Object.keys(mutations).toSorted())
    const missing: string[] = []
    for (const [name, { args }] of Object.entries(mutations)) {
      const named = (await calls[name]!()).flatMap(({ given }) => Object.keys(given))
      missing.push(
        ...args.filter(argument => !named.includes(argument.name)).map(argument => `${name}.${argument.name}`),
      )
    }
    assert.deepEqual(missing, [])
  })

  for (const [name, prepare] of Object.entries(calls)) {
    it(`of ${name} are written as they are given`, async () => {
      for (const { given, select = '', found, meanwhile } of await prepare()) {
        const args = mutations[name]!.args.filter(argument => argument.name in given)
        const variables = args.map(argument => `$${argument.name}: ${argument.type}`).join(', ')
        const passed = args.map(argument => `${argument.name}: $${argument.name}`).join(', ')
        const document = `mutation ${variables && `(${variables})`} {
          answer: ${name}${passed && `(${passed})`} ${select && `{ ${select} }`} }`
        const [{ data, errors }] = await Promise.all([server.graphql(document, given), meanwhile?.()])
        const [answer] = Object.values(data ?? {})
        assert.ok(answer || errors?.[0]?.extensions.code === 'PING_FAILED', JSON.stringify(errors))
        assert.deepEqual({ ...(await found(answer, errors)) }, given)
      }
    })
  }
})
