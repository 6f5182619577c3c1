import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, it } from 'node:test'
import { insertMany, rows } from '../../server/database/connect.ts'
import type { Change } from '../../server/domain/change.ts'
import type { AccessToken } from '../../server/domain/permissions.ts'
import { redeliverMany } from '../../server/domain/redelivery.ts'
import { seesWebhook } from '../../server/domain/sight.ts'
import { newId } from '../../server/ids.ts'
import type { Credentials } from '../../shared/hmac.ts'
import { describeEachEngine } from '../support/databases.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, type GraphqlAnswer, startTestServer, type TestServer } from '../support/server.ts'
import { addWebhook, addWebhooks, type GivenWebhook } from '../support/webhooks.ts'

type Project = Awaited<ReturnType<typeof addProject>>
type Token = Credentials & { id: string }

const QUERIES = [
  'organisations',
  'projects',
  'projectReports',
  'webhooks',
  'events',
  'deliveries',
  'accessTokens',
] as const
type Listed = Record<(typeof QUERIES)[number], string[]>

// Two organisations, Acme and Borealis, with a project and a submitted report each, and webhooks of every scope.
describeEachEngine('what a token sees', engine => {
  let server: TestServer
  let receiver: Receiver
  let acme: Project
  let borealis: Project
  let all: Token
  let acmeOnly: Token
  let acmeAdmin: Token
  let acmeReader: Token
  let borealisOnly: Token
  const webhooks: Record<string, string> = {}
  const reports: Record<string, string> = {}

  before(async () => {
    server = await startTestServer(engine, { env: { TIDINGS_ROLES: 'api' } })
    receiver = await startReceiver()
    acme = await addProject(server.database, { organisation: 'Acme', project: 'Wells' })
    borealis = await addProject(server.database, { organisation: 'Borealis', project: 'Meals' })
    const most = ['read', 'webhooks', 'reports'] as const
    all = await server.token({ permissions: [...most] })
    // What is recorded beside that it sees all hands it to nobody.
    const beside = { access_token_id: all.id, organisation_id: acme.organisationId }
    await server.database.knex('access_token_organisations').insert(beside)
    const onAcme = { organisationIds: [acme.organisationId] }
    acmeOnly = await server.token({ permissions: [...most], ...onAcme })
    acmeReader = await server.token({ permissions: ['read'], ...onAcme })
    acmeAdmin = await server.token({ permissions: ['admin'], ...onAcme })
    borealisOnly = await server.token({ permissions: [...most], organisationIds: [borealis.organisationId] })

    const register = async (name: string, as: Token, scope: object = {}) => {
      webhooks[name] = await create(as, scope)
    }
    await register('all’s of everything', all)
    await register('all’s of Acme', all, { organisationIds: [acme.organisationId] })
    await register('all’s of the Acme project', all, { projectIds: [acme.projectId] })
    await register('all’s of Borealis', all, { organisationIds: [borealis.organisationId] })
    await register('all’s of the Borealis project', all, { projectIds: [borealis.projectId] })
    await register('all’s of both', all, { organisationIds: [acme.organisationId, borealis.organisationId] })
    await register('all’s of Acme and the Borealis project', all, {
      organisationIds: [acme.organisationId],
      projectIds: [borealis.projectId],
    })
    await register('Acme’s of everything', acmeOnly)
    await register('Borealis’s of everything', borealisOnly)

    reports.acme = await submit(acme)
    reports.borealis = await submit(borealis)
  })
  after(async () => {
    await receiver.close()
    await server.stop()
  })

  const ok = ({ data, errors }: GraphqlAnswer) => {
    assert.equal(errors, undefined, JSON.stringify(errors))
    return data
  }
  const create = async (as: Token, scope: object = {}): Promise<string> => {
    const document = `mutation($url: String!, $organisationIds: [UUID!], $projectIds: [UUID!]) {
      createWebhook(url: $url, organisationIds: $organisationIds, projectIds: $projectIds) { id } }`
    return ok(await server.graphql(document, { url: receiver.url, ...scope }, as)).createWebhook.id
  }
  const submit = async ({ projectId, userId }: Project, quarter = '2026-3'): Promise<string> => {
    const document =
      `mutation { submitProjectReport(projectId: "${projectId}", quarter: "${quarter}", submitterId: "${userId}") ` +
      '{ id } }'
    return ok(await server.graphql(document, {}, all)).submitProjectReport.id
  }
  const upsert = (as: Token, variables: object): Promise<GraphqlAnswer> =>
    server.graphql(
      `mutation($id: UUID, $url: String, $organisationIds: [UUID!], $projectIds: [UUID!], $status: WebhookStatus) {
        upsertWebhook(
          id: $id, url: $url, organisationIds: $organisationIds, projectIds: $projectIds, status: $status) { id } }`,
      variables,
      as,
    )
  const list = async (as: Token): Promise<Listed> =>
    Object.fromEntries(
      Object.entries<{ id: string }[]>(
        ok(await server.graphql(`{ ${QUERIES.map(name => `${name} { id }`).join(' ')} }`, {}, as)),
      ).map(([name, rows]) => [name, rows.map(({ id }) => id).sort()]),
    ) as Listed
  const named = (...names: string[]): string[] =>
    names
      .map(name => {
        assert.ok(webhooks[name], name)
        return webhooks[name]!
      })
      .sort()
  const eventsOf = async ({ projectId }: Project): Promise<string[]> =>
    server.database.knex('events').where('project_id', projectId).pluck('id')
  const deliveriesTo = async (webhookIds: string[]): Promise<string[]> =>
    server.database.knex('deliveries').whereIn('webhook_id', webhookIds).orderBy('id').pluck('id')
  const row = (id: string) => server.database.knex('webhooks').where({ id }).first()

  const ACME_SEES = ['all’s of Acme', 'all’s of the Acme project', 'Acme’s of everything']

  it('is everything for one that sees all organisations, except other tokens', async () => {
    const listed = await list(all)
    assert.deepEqual(listed.organisations, [acme.organisationId, borealis.organisationId].sort())
    assert.deepEqual(listed.projects, [acme.projectId, borealis.projectId].sort())
    assert.deepEqual(listed.projectReports, [reports.acme, reports.borealis].sort())
    assert.deepEqual(listed.webhooks, Object.values(webhooks).sort())
    assert.deepEqual(listed.deliveries, await deliveriesTo(Object.values(webhooks)))
    assert.deepEqual(listed.accessTokens, [all.id])
  })

  it('is, of webhooks, the same by the rule in SQL that events about them are told by', async () => {
    const { knex } = server.database
    for (const token of [acmeOnly, acmeAdmin, acmeReader, borealisOnly]) {
      const seen = await rows<{ id: string }>(
        knex,
        `SELECT about.id FROM webhooks about JOIN access_tokens t ON t.id = ?
         WHERE ${seesWebhook('t.id', 'about')} ORDER BY about.id`,
        [token.id],
      )
      assert.deepEqual(
        seen.map(({ id }) => id),
        (await list(token)).webhooks,
      )
    }
  })

  it('is no event about a webhook that it does not see, nor what was delivered of one', async () => {
    const { knex } = server.database
    const toAcme = webhooks['Acme’s of everything']!
    const [seen, unseen] = [webhooks['all’s of Acme']!, webhooks['all’s of Borealis']!]
    const ofAcme = { organisation_id: acme.organisationId }
    const ofAll = { all_organisations: 1 }
    const told = [seen, unseen].flatMap(about => [ofAcme, ofAll].map(of => ({ about, of, id: newId(Date.now()) })))
    const ids = told.map(({ id }) => id)
    const made = { payload: '{}', created_at: Date.now() }
    for (const { about, of, id } of told) {
      await knex('events').insert({ ...made, ...of, id, type: 'webhook_inactive', about_webhook_id: about })
      const delivery = { id, event_id: id, webhook_id: toAcme, event_type: 'webhook_inactive', status: 'delivered' }
      await knex('deliveries').insert({ ...delivery, created_at: made.created_at, finished_at: made.created_at })
    }
    const visible = told.filter(({ about }) => about === seen).map(({ id }) => id)
    const listed = await list(acmeOnly)
    for (const name of ['events', 'deliveries'] as const) {
      const query = { selector: { id: { $in: ids } } }
      const document = `query($query: MangoQuery) { found: ${name}(query: $query) { id } }`
      const { found } = ok(await server.graphql(document, { query }, acmeOnly))
      assert.deepEqual(found.map(({ id }: { id: string }) => id).sort(), visible.toSorted(), name)
      assert.deepEqual(
        listed[name].filter(id => ids.includes(id)),
        visible.toSorted(),
        name,
      )
    }
    await knex('deliveries').whereIn('id', ids).delete()
    await knex('events').whereIn('id', ids).delete()
  })

  it('is all of it for one that sees more organisations and webhooks than are read one by one', async () => {
    const { knex } = server.database
    const many = Array.from({ length: 102 }, () => randomUUID())
    const [ofEvents, times] = [{ type: 'token_expired', payload: '{}' }, { created_at: Date.now() }]
    const named = many.map(id => ({ ...times, id, name: 'one of many', updated_at: times.created_at }))
    await insertMany(knex, 'organisations', named)
    const token = await server.token({ permissions: ['read', 'webhooks'], organisationIds: many })
    for (const id of many) await addWebhook(knex, { id, accessTokenId: token.id, organisationIds: [id] })
    await insertMany(
      knex,
      'events',
      many.map(id => ({ ...ofEvents, ...times, id, organisation_id: id })),
    )
    const sent = { ...times, event_type: ofEvents.type, status: 'delivered', finished_at: times.created_at }
    await insertMany(
      knex,
      'deliveries',
      many.map(id => ({ ...sent, id, event_id: id, webhook_id: id })),
    )
    const document = '{ events(query: { limit: 200 }) { id } deliveries(query: { limit: 200 }) { id } }'
    const { events, deliveries } = ok(await server.graphql(document, {}, token))
    for (const found of [events, deliveries]) {
      assert.deepEqual(found.map(({ id }: { id: string }) => id).sort(), many.toSorted())
    }
    for (const table of ['deliveries', 'events']) await knex(table).whereIn('id', many).delete()
    await knex('webhook_organisations').whereIn('webhook_id', many).delete()
    await knex('webhooks').whereIn('id', many).delete()
    await knex('access_token_organisations').where('access_token_id', token.id).delete()
    await knex('organisations').whereIn('id', many).delete()
  })

  it('is nothing outside its organisation for one that sees one', async () => {
    for (const token of [acmeOnly, acmeReader]) {
      const listed = await list(token)
      // The reader made none of the webhooks, and sees the same ones: all that they can receive is Acme's.
      const seen = named(...ACME_SEES)
      const pings = await server.database
        .knex('deliveries')
        .whereIn('webhook_id', seen)
        .where('event_type', 'ping')
        .pluck('event_id')
      assert.deepEqual(listed, {
        organisations: [acme.organisationId],
        projects: [acme.projectId],
        projectReports: [reports.acme],
        webhooks: seen,
        events: [...(await eventsOf(acme)), ...pings].sort(),
        deliveries: await deliveriesTo(seen),
        accessTokens: [token.id],
      })
    }
  })

  it('is, for an admin of one organisation, the webhooks and tokens of that, and no other’s data', async () => {
    const listed = await list(acmeAdmin)
    assert.deepEqual(listed.organisations, [acme.organisationId])
    assert.deepEqual(listed.projects, [acme.projectId])
    assert.deepEqual(listed.projectReports, [reports.acme])
    assert.deepEqual(listed.webhooks, ACME_SEES.map(name => webhooks[name]).sort())
    const none = await server.token({ permissions: ['read'], organisationIds: [] })
    assert.deepEqual(listed.accessTokens, [acmeOnly.id, acmeReader.id, acmeAdmin.id].sort())
    const revoked = await server.graphql(`mutation { revokeAccessToken(id: "${none.id}") { id } }`, {}, acmeAdmin)
    assert.equal(revoked.errors?.[0]?.extensions.code, 'NOT_FOUND', 'a token that sees nothing is nobody’s to revoke')
    const [event] = await eventsOf(borealis)
    assert.ok(!listed.events.includes(event!))
    const foreign = await server.database.knex('deliveries').where('event_id', event).pluck('id')
    assert.ok(foreign.length > 0)
    for (const id of foreign) assert.ok(!listed.deliveries.includes(id))
  })

  it('is nothing for one that was made for no organisation', async () => {
    const none = await server.token({ permissions: ['read'], organisationIds: [] })
    const empty = Object.fromEntries(QUERIES.map(name => [name, [] as string[]]))
    assert.deepEqual(await list(none), { ...empty, accessTokens: [none.id] })

    // Its own webhook is still its own.
    const owner = await server.token({ permissions: ['read', 'webhooks'], organisationIds: [] })
    const id = await create(owner)
    assert.deepEqual((await list(owner)).webhooks, [id])
    ok(await upsert(owner, { id, status: 'disabled' }))
    await server.database.knex('webhooks').where({ id }).delete()
  })

  it('does not grow when it is asked for by id, or by a related field', async () => {
    const foreign = {
      organisations: [{ id: borealis.organisationId }, { name: 'Borealis' }],
      projects: [{ id: borealis.projectId }, { 'organisation.name': 'Borealis' }],
      projectReports: [{ id: reports.borealis }, { 'project.name': 'Meals' }],
      webhooks: [{ id: webhooks['all’s of everything'] }, { organisationIds: borealis.organisationId }],
      events: [{ organisationId: borealis.organisationId }, { 'project.organisation.name': 'Borealis' }],
      deliveries: [{ webhookId: webhooks['all’s of Borealis'] }, { 'event.project.name': 'Meals' }],
      accessTokens: [{ id: all.id }, { apiKey: all.apiKey }],
    }
    for (const [name, selectors] of Object.entries(foreign)) {
      for (const selector of selectors) {
        const document = `query($query: MangoQuery) { ${name}(query: $query) { id } }`
        assert.deepEqual(ok(await server.graphql(document, { query: { selector } }, acmeOnly))[name], [], name)
      }
    }
  })

  it('does not grow by way of what is nested', async () => {
    const document = `{
      viewer { organisations { id projects { id projectReports { id } } } }
      events { deliveries { webhookId } }
      webhooks { deliveries { event { organisationId } } }
    }`
    const text = JSON.stringify(ok(await server.graphql(document, {}, acmeOnly)))
    for (const id of [borealis.organisationId, borealis.projectId, reports.borealis!]) assert.ok(!text.includes(id))
    for (const [name, id] of Object.entries(webhooks)) assert.equal(text.includes(id), ACME_SEES.includes(name), name)
  })

  it('loses a project that moves to another organisation, also where an event from before names it', async () => {
    const moved = await addProject(server.database, { organisation: 'Cedar', project: 'Seeds' })
    const { organisationId, projectId } = moved
    await submit(moved)
    const cedarOnly = await server.token({ permissions: ['read'], organisationIds: [organisationId] })
    const document = '{ events { projectId project { name } } projects { id } projectReports { id } }'
    assert.deepEqual(ok(await server.graphql(document, {}, cedarOnly)).events, [
      { projectId, project: { name: 'Seeds' } },
    ])
    const { knex } = server.database
    await knex('projects').where('id', projectId).update({ organisation_id: borealis.organisationId })
    assert.deepEqual(ok(await server.graphql(document, {}, cedarOnly)), {
      events: [{ projectId, project: null }],
      projects: [],
      projectReports: [],
    })
    await knex('project_reports').where('project_id', projectId).delete()
    await knex('projects').where('id', projectId).delete()
  })

  it('ends, for whatever is outside, in NOT_FOUND in the same words as an id that never was', async () => {
    const foreign = {
      organisation: borealis.organisationId,
      project: borealis.projectId,
      report: reports.borealis!,
      webhook: webhooks['all’s of both']!,
      token: borealisOnly.id,
      delivery: (await deliveriesTo(named('Borealis’s of everything')))[0]!,
    }
    const { userId } = acme
    const url = JSON.stringify(receiver.url)
    const asked: [keyof typeof foreign, (id: string) => string, as?: Token][] = [
      ['organisation', id => `createWebhook(url: ${url}, organisationIds: ["${id}"]) { id }`],
      ['project', id => `createWebhook(url: ${url}, projectIds: ["${id}"]) { id }`],
      ['organisation', id => `upsertWebhook(url: ${url}, organisationIds: ["${id}"]) { id }`],
      ['project', id => `upsertWebhook(id: "${webhooks['all’s of Acme']}", projectIds: ["${id}"]) { id }`],
      ['webhook', id => `pingWebhook(id: "${id}") { id }`],
      ['delivery', id => `redeliver(deliveryId: "${id}") { id }`],
      ['webhook', id => `recoverDeliveries(webhookId: "${id}", since: "2026-01-01T00:00:00Z") { queued }`],
      ['project', id => `submitProjectReport(projectId: "${id}", quarter: "2026-1", submitterId: "${userId}") { id }`],
      ['report', id => `approveProjectReport(id: "${id}", approverId: "${userId}") { id }`],
      ['organisation', id => `upsertOrganisation(id: "${id}", name: "Mine") { id }`, acmeAdmin],
      ['organisation', id => `upsertProject(organisationId: "${id}", name: "Mine") { id }`, acmeAdmin],
      [
        'organisation',
        id => `createAccessToken(name: "x", permissions: [read], organisationIds: ["${id}"]) { secret }`,
        acmeAdmin,
      ],
      ['token', id => `revokeAccessToken(id: "${id}") { id }`, acmeAdmin],
      ['token', id => `revokeAccessToken(id: "${id}", at: "2100-01-01T00:00:00Z") { id }`, acmeAdmin],
    ]
    for (const [what, mutation, as = acmeOnly] of asked) {
      const answerTo = async (id: string) => {
        const { errors, data } = await server.graphql(`mutation { ${mutation(id)} }`, {}, as)
        assert.equal(errors?.length, 1, `${mutation(id)} → ${JSON.stringify(data)}`)
        const { requestId: _, ...extensions } = errors![0]!.extensions
        return JSON.stringify({ ...errors![0], extensions }).replaceAll(id, 'ID')
      }
      const [outside, never] = [await answerTo(foreign[what]), await answerTo(randomUUID())]
      assert.equal(outside, never)
      assert.match(outside, /"code":"NOT_FOUND","ids":\["ID"\]/, mutation('ID'))
    }
    assert.equal((await list(acmeAdmin)).organisations.length, 1)
  })

  it('lets an admin of one organisation make neither organisations nor tokens that see more than it does', async () => {
    for (const asked of [
      'upsertOrganisation(name: "Mine") { id }',
      'createAccessToken(name: "x", permissions: [admin]) { secret }',
      'rotateSigningKey { kid }',
    ]) {
      const { errors } = await server.graphql(`mutation { ${asked} }`, {}, acmeAdmin)
      assert.equal(errors?.[0]?.extensions.code, 'FORBIDDEN', asked)
    }
  })

  it('does not let it touch a webhook that can receive more than it sees', async () => {
    for (const [name, id] of Object.entries(webhooks)) {
      if (ACME_SEES.includes(name)) continue
      const before = await row(id)
      for (const change of [{ url: receiver.url }, { status: 'disabled' }, { url: receiver.url, projectIds: [] }]) {
        const { errors } = await upsert(acmeOnly, { id, ...change })
        // Under an id that it does not see an upsert creates, and there the id is taken.
        assert.match(String(errors?.[0]?.extensions.code), 'url' in change ? /NOT_FOUND/ : /BAD_USER_INPUT/, name)
      }
      assert.deepEqual(await row(id), before)
    }
  })

  it('lets it change a webhook of another token that receives only what it sees, but not widen it', async () => {
    const id = await create(all, { organisationIds: [acme.organisationId], projectIds: [acme.projectId] })
    ok(await upsert(acmeOnly, { id, organisationIds: [] }))
    const { errors } = await upsert(acmeOnly, { id, projectIds: [] })
    assert.equal(errors?.[0]?.extensions.code, 'FORBIDDEN')
    assert.equal((await row(id)).all_organisations_and_projects, 0, 'it would have received all that its maker sees')
    ok(await upsert(acmeOnly, { id, status: 'disabled' }))
  })

  it('lets an admin of one organisation neither change nor take over a webhook that receives from others', async () => {
    const mine = await startReceiver()
    try {
      const ids = [
        await create(all),
        await create(all, { organisationIds: [borealis.organisationId] }),
        await create(borealisOnly),
        await create(all, { organisationIds: [acme.organisationId, borealis.organisationId] }),
      ]
      for (const id of ids) {
        const before = await row(id)
        for (const change of [{ url: mine.url }, { url: mine.url, organisationIds: [acme.organisationId] }]) {
          const { errors } = await upsert(acmeAdmin, { id, ...change })
          assert.equal(errors?.[0]?.extensions.code, 'NOT_FOUND')
        }
        for (const field of [`pingWebhook(id: "${id}")`, `upsertWebhook(id: "${id}", status: disabled)`]) {
          const { errors } = await server.graphql(`mutation { ${field} { id } }`, {}, acmeAdmin)
          assert.match(String(errors?.[0]?.extensions.code), /NOT_FOUND|BAD_USER_INPUT/, field)
        }
        assert.deepEqual(await row(id), before)
      }
      const own = await create(all, { organisationIds: [acme.organisationId] })
      const widened = await upsert(acmeAdmin, { id: own, organisationIds: [] })
      assert.equal(widened.errors?.[0]?.extensions.code, 'FORBIDDEN')
      ok(await upsert(acmeAdmin, { id: own, url: mine.url }))
    } finally {
      await mine.close()
    }
  })

  it('lets an admin of one organisation rename no user, whom all see', async () => {
    const [user] = await server.database.knex('users').limit(1)
    const renamed = await server.graphql(
      `mutation { upsertUser(id: "${user.id}", name: "Mine") { id } }`,
      {},
      acmeAdmin,
    )
    assert.equal(renamed.errors?.[0]?.extensions.code, 'FORBIDDEN')
    assert.equal((await server.database.knex('users').where({ id: user.id }).first()).name, user.name)
  })

  it('hands none of the old organisation’s webhooks to the new one’s tokens with a project that moves', async () => {
    const moving = await addProject(server.database, { organisation: 'Cedar', project: 'Wood' })
    const cedarOnly = await server.token({
      permissions: ['read', 'webhooks'],
      organisationIds: [moving.organisationId],
    })
    const ids = [
      await create(all, { projectIds: [moving.projectId] }),
      await create(cedarOnly, { projectIds: [moving.projectId] }),
    ]
    const to = `organisationId: "${borealis.organisationId}", name: "Wood"`
    const admin = await server.token({ permissions: ['admin'] })
    ok(await server.graphql(`mutation { upsertProject(id: "${moving.projectId}", ${to}) { id } }`, {}, admin))
    const seen = (await list(borealisOnly)).webhooks
    for (const id of ids) assert.ok(!seen.includes(id))
    assert.deepEqual((await list(cedarOnly)).webhooks, [ids[1]], 'nor does the old one keep what is not its own')
    assert.ok((await list(admin)).webhooks.includes(ids[0]!))
  })

  it('does not take in what a webhook was sent, or is still owed, from before it named less', async () => {
    const mine = await startReceiver()
    try {
      const id = await create(all, { organisationIds: [acme.organisationId, borealis.organisationId] })
      await submit(acme, '2025-1')
      await submit(borealis, '2025-1')
      const owed = () => server.database.knex('deliveries').where('webhook_id', id).whereNot('event_type', 'ping')
      assert.equal((await owed()).length, 2)
      ok(await upsert(all, { id, organisationIds: [acme.organisationId] }))

      const events = new Set(await eventsOf(borealis))
      const foreign = (await owed()).find(({ event_id }) => events.has(event_id))
      const listed = await list(acmeOnly)
      assert.ok(listed.webhooks.includes(id))
      assert.ok(!listed.deliveries.includes(foreign.id))
      const { errors } = await server.graphql(
        `mutation { redeliver(deliveryId: "${foreign.id}") { id } }`,
        {},
        acmeOnly,
      )
      assert.equal(errors?.[0]?.extensions.code, 'NOT_FOUND')

      ok(await upsert(acmeOnly, { id, url: mine.url }))
      const after = await owed()
      for (const { id, event_id, status } of after) {
        assert.equal(status, events.has(event_id) ? 'cancelled' : 'pending')
        const queued = await server.database.knex('delivery_queue').where('delivery_id', id)
        assert.equal(queued.length, events.has(event_id) ? 0 : 1)
      }

      const query = '{selector: {status: "cancelled"}}'
      const again = `mutation { redeliverMany(webhookId: "${id}", query: ${query}) { queued } }`
      assert.equal(ok(await server.graphql(again, {}, acmeOnly)).redeliverMany.queued, 0)
      // Also if it was in sight when it was looked for.
      const token = { ...acmeOnly, permissions: ['webhooks'], seesAllOrganisations: false } as unknown as AccessToken
      const change = <T>(work: (change: Change) => Promise<T>): Promise<T> =>
        server.database.transaction(trx => work({ trx, token, now: Date.now }))
      const found = { firsts: [{ id: foreign.id, event_id: foreign.event_id }], last: null, isLast: true }
      const tools = { change, look: change, pageOf: async () => found }
      assert.equal((await redeliverMany(tools, { webhookId: id, query: {} })).queued, 0)
    } finally {
      await mine.close()
    }
  })

  it('is each of its webhooks, where one of the ways by which they are found leads to many', async () => {
    const { knex } = server.database
    const elsewhere = [borealis.organisationId]
    const ways = ['its own', 'by organisation', 'by project', 'of another token'] as const
    for (const [n, way] of ways.entries()) {
      const { organisationId, projectId } = await addProject(server.database)
      const here = [organisationId]
      const token = await server.token({ organisationIds: here })
      const other = await server.token({ organisationIds: here })
      const wider = await server.token({ organisationIds: [...here, ...elsewhere] })
      const pairs: Record<typeof way, [seen: GivenWebhook, many: GivenWebhook]> = {
        'its own': [{ accessTokenId: token.id }, { accessTokenId: token.id, organisationIds: elsewhere }],
        'by organisation': [
          { accessTokenId: all.id, organisationIds: here },
          { accessTokenId: all.id, organisationIds: [...here, ...elsewhere] },
        ],
        'by project': [
          { accessTokenId: all.id, projectIds: [projectId] },
          { accessTokenId: all.id, projectIds: [projectId], organisationIds: elsewhere },
        ],
        'of another token': [{ accessTokenId: other.id }, { accessTokenId: wider.id }],
      }
      const [seen, many] = pairs[way]
      const ids = await addWebhooks(knex, Array(101).fill(many))
      const last = await addWebhook(knex, { ...seen, id: `ffffffff-ffff-7fff-bfff-fffffffffff${n}` })
      assert.deepEqual((await list(token)).webhooks, [...(way === 'its own' ? ids.toSorted() : []), last], way)
    }
  })
})
