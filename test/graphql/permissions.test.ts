import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, it } from 'node:test'
import { type GraphQLObjectType, isObjectType } from 'graphql'
import { createSchema } from '../../server/graphql/schema.ts'
import type { Credentials } from '../../shared/hmac.ts'
import type { Permission } from '../../shared/vocabulary.ts'
import { describeEachEngine } from '../support/databases.ts'
import { startReceiver } from '../support/receiver.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'

const id = randomUUID()

/** Every query and mutation with what it needs, asked in a way that changes nothing where it is let through. */
const operations: Record<'query' | 'mutation', Record<string, [needs: Permission, asked: string]>> = {
  query: {
    viewer: ['read', 'viewer { id }'],
    organisations: ['read', 'organisations { id }'],
    projects: ['read', 'projects { id }'],
    users: ['read', 'users { id }'],
    projectReports: ['read', 'projectReports { id }'],
    webhooks: ['read', 'webhooks { id }'],
    events: ['read', 'events { id }'],
    deliveries: ['read', 'deliveries { id }'],
    accessTokens: ['read', 'accessTokens { id }'],
    auditLog: ['read', 'auditLog { id }'],
    counts: ['read', 'counts(resource: users) { count }'],
    explainDelivery: ['read', `explainDelivery(webhookId: "${id}", eventId: "${id}") { verdict }`],
    deliveryEvidence: ['read', `deliveryEvidence(deliveryId: "${id}")`],
    explain: ['read', 'explain(resource: webhooks) { sql }'],
  },
  mutation: {
    createWebhook: ['webhooks', 'createWebhook(url: "nowhere") { id }'],
    upsertWebhook: ['webhooks', 'upsertWebhook(url: "nowhere") { id }'],
    pingWebhook: ['webhooks', `pingWebhook(id: "${id}") { id }`],
    rotateWebhookSecret: ['webhooks', `rotateWebhookSecret(id: "${id}") { secret }`],
    deleteWebhook: ['webhooks', `deleteWebhook(id: "${id}")`],
    redeliver: ['webhooks', `redeliver(deliveryId: "${id}") { id }`],
    redeliverMany: ['webhooks', `redeliverMany(webhookId: "${id}", query: {}) { queued }`],
    sendExample: ['webhooks', `sendExample(webhookId: "${id}", eventType: ping) { id }`],
    rehearse: ['webhooks', `rehearse(webhookId: "${id}", scene: ping) { statusCode }`],
    recoverDeliveries: ['webhooks', `recoverDeliveries(webhookId: "${id}", since: "2026-11-21T00:00:00Z") { queued }`],
    takeDeliveries: ['webhooks', `takeDeliveries(webhookId: "${id}") { body }`],
    answerDeliveries: ['webhooks', 'answerDeliveries(answers: []) { counted }'],
    extendDeliveries: ['webhooks', 'extendDeliveries(deliveries: []) { leaseUntil }'],
    submitProjectReport: [
      'reports',
      `submitProjectReport(projectId: "${id}", quarter: "2026-3", submitterId: "${id}") { id }`,
    ],
    approveProjectReport: ['reports', `approveProjectReport(id: "${id}", approverId: "${id}") { id }`],
    upsertOrganisation: ['admin', 'upsertOrganisation(name: "") { id }'],
    upsertProject: ['admin', `upsertProject(organisationId: "${id}", name: "") { id }`],
    upsertUser: ['admin', 'upsertUser(name: "") { id }'],
    createAccessToken: ['admin', 'createAccessToken(name: "", permissions: [read]) { secret }'],
    revokeAccessToken: ['admin', `revokeAccessToken(id: "${id}") { id }`],
    rotateSigningKey: ['admin', 'rotateSigningKey { kid }'],
  },
}

it('the table of permissions names every query and mutation there is', () => {
  const schema = createSchema()
  assert.deepEqual(Object.keys(operations.query).sort(), Object.keys(schema.getQueryType()!.getFields()).sort())
  assert.deepEqual(Object.keys(operations.mutation).sort(), Object.keys(schema.getMutationType()!.getFields()).sort())
})

it('a list of a row is answered to no token that may not read, whatever has led to it', () => {
  const schema = createSchema()
  const roots = [schema.getQueryType(), schema.getMutationType()]
  const types = Object.values(schema.getTypeMap()).filter(type => isObjectType(type) && !roots.includes(type))
  const lists = types.flatMap(type =>
    Object.values((type as GraphQLObjectType).getFields())
      .filter(({ args }) => args.some(({ name }) => name === 'query'))
      .map(field => ({ name: `${type.name}.${field.name}`, resolve: field.resolve! }))
      // A mutation answers them with the delivery that it made.
      .filter(({ name }) => name !== 'Delivery.attempts'),
  )
  assert.ok(lists.length > 4, `${lists.length} lists`)
  const context = { token: { name: 'reporter', permissions: ['reports'] } }
  for (const { name, resolve } of lists) {
    assert.throws(() => resolve({ id }, {}, context, {} as never), { code: 'FORBIDDEN' }, name)
  }
})

describeEachEngine('permissions', engine => {
  let server: TestServer
  const tokens = new Map<string, Credentials>()
  before(async () => {
    server = await startTestServer(engine, { env: { TIDINGS_ROLES: 'api' } })
    for (const permission of ['read', 'webhooks', 'reports', 'admin'] as const) {
      tokens.set(permission, await server.token({ name: permission, permissions: [permission] }))
    }
  })
  after(() => server.stop())

  for (const permission of ['read', 'webhooks', 'reports', 'admin'] as const) {
    it(`a token with "${permission}" reaches what it allows, and is told what permission the rest needs`, async () => {
      for (const [kind, fields] of Object.entries(operations)) {
        for (const [name, [needs, asked]] of Object.entries(fields)) {
          const { errors } = await server.graphql(`${kind} { ${asked} }`, {}, tokens.get(permission))
          const { code, permission: told } = errors?.[0]?.extensions ?? {}
          if (permission === needs || permission === 'admin') {
            assert.notEqual(code, 'FORBIDDEN', name)
            assert.notEqual(code, 'INTERNAL_SERVER_ERROR', name)
          } else {
            assert.deepEqual({ code, told }, { code: 'FORBIDDEN', told: needs }, name)
            assert.match(errors![0]!.message, new RegExp(`"${needs}".* "${permission}" has ${permission}`))
          }
        }
      }
    })
  }

  it('a token with several has what each of them allows', async () => {
    const both = await server.token({ permissions: ['read', 'reports'] })
    const { errors } = await server.graphql('{ viewer { permissions } webhooks { id } }', {}, both)
    assert.equal(errors, undefined)
    const [, asked] = operations.mutation.approveProjectReport!
    const approved = await server.graphql(`mutation { ${asked} }`, {}, both)
    assert.equal(approved.errors![0]!.extensions.code, 'NOT_FOUND')
  })

  it('SQL is told to admins, and the indexes it uses to those who see all organisations', async () => {
    const { organisationId } = await addProject(server.database)
    const limited = await server.token({ permissions: ['admin'], organisationIds: [organisationId] })
    const told = async (token: Credentials) => {
      const { data } = await server.graphql('{ explain(resource: projects) { sql indexes } }', {}, token)
      return Object.keys(data.explain).filter(name => data.explain[name] !== null)
    }
    assert.deepEqual(await told(tokens.get('admin')!), ['sql', 'indexes'])
    assert.deepEqual(await told(limited), ['sql'])
    assert.deepEqual(await told(tokens.get('read')!), [])
  })

  it('a token without "read" does not read lists by way of what a mutation answers', async () => {
    const { projectId, userId } = await addProject(server.database)
    const { url, close } = await startReceiver()
    const submit = `submitProjectReport(projectId: "${projectId}", quarter: "2026-3", submitterId: "${userId}")`
    const lists = [
      ['reports', `${submit} { project { projectReports { id } } }`],
      ['reports', `${submit.replace('2026-3', '2026-2')} { project { organisation { projects { id } } } }`],
      ['webhooks', `createWebhook(url: "${url}") { deliveries { id } }`],
      ['webhooks', `createWebhook(url: "${url}") { deliveries { event { deliveries { id } } } }`],
    ] as const
    try {
      for (const [permission, asked] of lists) {
        const { errors } = await server.graphql(`mutation { ${asked} }`, {}, tokens.get(permission))
        assert.equal(errors?.[0]?.extensions.code, 'BAD_USER_INPUT', asked)
      }
    } finally {
      await close()
    }
  })
})
