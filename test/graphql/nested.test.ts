import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, it } from 'node:test'
import {
  execute,
  type GraphQLObjectType,
  getNamedType,
  getNullableType,
  isListType,
  isObjectType,
  parse,
  validate,
} from 'graphql'
import { v7 as uuid } from 'uuid'
import type { AccessToken } from '../../server/domain/permissions.ts'
import { createContext, type Service } from '../../server/graphql/context.ts'
import { createSchema } from '../../server/graphql/schema.ts'
import { testClock } from '../support/clock.ts'
import { describeEachEngine, migratedDatabase, type TestDatabase } from '../support/databases.ts'
import { addWebhooks } from '../support/webhooks.ts'

const schema = createSchema()

// The schema is executed on a database whose statements can be counted; what is around it over HTTP plays no part.
describeEachEngine('nested fields', engine => {
  let fresh: TestDatabase
  let admin: AccessToken
  const clock = testClock()
  const times = { created_at: clock.now(), updated_at: clock.now() }

  before(async () => {
    fresh = await migratedDatabase(engine)
    const id = uuid()
    admin = {
      id,
      name: 'admin',
      apiKey: 'tk',
      permissions: ['admin'],
      seesAllOrganisations: true,
      expiresAt: null,
      revokedAt: null,
      lastUsedAt: null,
      createdAt: clock.now(),
    }
    await addToken(id, 1)
    await addMany(3)
  })
  after(() => fresh.drop())

  const insert = (table: string, rows: object[]) => fresh.database.knex.batchInsert(table, rows, 100)

  const addToken = async (id: string, seesAll: number) => {
    await insert('access_tokens', [
      {
        id,
        name: 'token',
        api_key: `tk_${randomUUID().slice(0, 30)}`,
        secret_sealed: '',
        sees_all_organisations: seesAll,
        ...times,
      },
    ])
    await insert('access_token_permissions', [{ access_token_id: id, permission: 'read' }])
  }

  /** Adds `count` of everything, each with what belongs to it. */
  const addMany = async (count: number): Promise<void> => {
    const ids = (): string[] => Array.from({ length: count }, () => uuid())
    const [organisations, projects, users, reports, webhooks, events, deliveries] = [
      ids(),
      ids(),
      ids(),
      ids(),
      ids(),
      ids(),
      ids(),
    ]
    await insert(
      'organisations',
      organisations.map((id, n) => ({ id, name: `Org ${n}`, ...times })),
    )
    await insert(
      'projects',
      projects.map((id, n) => ({ id, organisation_id: organisations[n], name: `Project ${n}`, ...times })),
    )
    await insert(
      'users',
      users.map((id, n) => ({ id, name: `User ${n}`, ...times })),
    )
    await insert(
      'project_reports',
      reports.map((id, n) => ({
        id,
        project_id: projects[n],
        quarter: '2026-3',
        due_date: '2026-10-30',
        status: 'approved',
        submitter_id: users[n],
        approver_id: users[n],
        ...times,
      })),
    )
    await addWebhooks(
      fresh.database.knex,
      webhooks.map((id, n) => ({
        id,
        accessTokenId: admin.id,
        organisationIds: [organisations[n]!],
        createdAt: clock.now(),
      })),
    )
    await insert(
      'events',
      events.map((id, n) => ({
        id,
        type: 'project_report_quarterly_overdue',
        organisation_id: organisations[n],
        project_id: projects[n],
        payload: '{}',
        created_at: clock.now(),
      })),
    )
    await insert(
      'deliveries',
      deliveries.map((id, n) => ({
        id,
        event_id: events[n],
        webhook_id: webhooks[n],
        event_type: 'project_report_quarterly_overdue',
        status: 'delivered',
        created_at: clock.now(),
        finished_at: clock.now(),
      })),
    )
    await insert(
      'attempts',
      deliveries.map(delivery_id => ({ delivery_id, number: 1, started_at: clock.now() })),
    )
    for (const [n, id] of organisations.slice(0, 5).entries()) {
      const token = uuid()
      await addToken(token, n % 2)
      if (n % 2 === 0) {
        await insert('access_token_organisations', [{ access_token_id: token, organisation_id: id }])
      }
    }
  }

  // biome-ignore lint/suspicious/noExplicitAny: tests read what they asked for
  const run = async (document: string, token = admin): Promise<{ data: any; statements: number }> => {
    const service = { database: fresh.database, tools: { clock } } as unknown as Service
    const parsed = parse(document)
    assert.deepEqual(validate(schema, parsed), [])
    let statements = 0
    const count = () => {
      statements += 1
    }
    fresh.database.knex.on('query', count)
    try {
      const contextValue = createContext(service, token, uuid())
      const { data, errors } = await execute({ schema, document: parsed, contextValue })
      assert.equal(errors, undefined, String(errors))
      return { data: JSON.parse(JSON.stringify(data)), statements }
    } finally {
      fresh.database.knex.off('query', count)
    }
  }

  /** Every way from a query through three levels of objects, from the schema. */
  const waysFrom = (type: GraphQLObjectType, levels: number): string[] =>
    levels === 0
      ? ['__typename']
      : Object.values(type.getFields()).flatMap(field => {
          const inner = getNamedType(field.type)
          if (!isObjectType(inner)) return []
          return waysFrom(inner, levels - 1).map(way => `${field.name} { ${way} }`)
        })

  it('cost the same statements for few rows and for many, on every way through the schema', async () => {
    const roots = Object.values(schema.getQueryType()!.getFields()).filter(field =>
      isListType(getNullableType(field.type)),
    )
    const documents = roots.flatMap(field =>
      [1, 2, 3].flatMap(levels =>
        waysFrom(getNamedType(field.type) as GraphQLObjectType, levels).map(way => `{ ${field.name} { ${way} } }`),
      ),
    )
    assert.ok(documents.length > 50, String(documents.length))
    const few = new Map<string, number>()
    for (const document of documents) few.set(document, (await run(document)).statements)
    await addMany(30)
    for (const document of documents) {
      const { statements } = await run(document)
      // Tokens that see all are listed by one statement, and those that see some by two.
      const more = document.includes('accessTokens { organisations') ? 2 : 0
      assert.ok(statements <= few.get(document)! + more, `${document}: ${few.get(document)}, then ${statements}`)
      assert.ok(statements <= 6 + more, `${document}: ${statements}`)
    }
  })

  it('cost one statement a level', async () => {
    const levels: [string, number][] = [
      ['organisations { projects { id } }', 2],
      ['organisations { projects(query: { limit: 2, sort: [{ name: "desc" }] }) { id } }', 2],
      ['organisations { projects { projectReports { submitter { name } } } }', 4],
      ['deliveries { attempts { number } event { organisation { name } project { name } } webhook { url } }', 6],
      [
        'webhooks { health { delivered } lastDeliveryAt events organisationIds projectIds deliveries { event ' +
          '{ type } } }',
        8,
      ],
      ['events { deliveries { webhook { health { pending } } } }', 4],
      ['deliveries { webhook { deliveries { webhook { deliveries { id } } } } }', 4],
    ]
    for (const [fields, most] of levels) {
      const { statements } = await run(`{ ${fields} }`)
      assert.equal(statements, most, fields)
    }
  })

  it('of one request read once which webhooks a limited token sees, for all lists of deliveries', async () => {
    const limited = { ...admin, id: uuid(), seesAllOrganisations: false }
    await addToken(limited.id, 0)
    const owned = uuid()
    await addWebhooks(fresh.database.knex, [{ id: owned, accessTokenId: limited.id, createdAt: clock.now() }])
    const { statements } = await run(
      '{ a: deliveries { id } b: deliveries { id } counts(resource: deliveries, by: ["status"]) { count } }',
      limited,
    )
    assert.equal(statements, 4)
  })

  it('take a query for each parent by itself: limit, skip, sort, selector and after', async () => {
    const organisations = [uuid(), uuid()]
    await insert(
      'organisations',
      organisations.map(id => ({ id, name: 'Nested', ...times })),
    )
    const projects = organisations.flatMap((organisation_id, n) =>
      ['c', 'a', 'd', 'b'].map(name => ({ id: uuid(), organisation_id, name: `${name}${n}`, ...times })),
    )
    await insert('projects', projects)
    const names = async (query: string): Promise<string[][]> => {
      const { data } = await run(
        `{ organisations(query: { selector: { name: "Nested" } }) { projects(query: ${query}) { name } } }`,
      )
      return (data.organisations as { projects: { name: string }[] }[]).map(organisation =>
        organisation.projects.map(({ name }) => name),
      )
    }
    assert.deepEqual(await names('{}'), [
      ['c0', 'a0', 'd0', 'b0'],
      ['c1', 'a1', 'd1', 'b1'],
    ])
    assert.deepEqual(await names('{ sort: ["name"], limit: 2 }'), [
      ['a0', 'b0'],
      ['a1', 'b1'],
    ])
    assert.deepEqual(await names('{ sort: [{ name: "desc" }], limit: 2, skip: 1 }'), [
      ['c0', 'b0'],
      ['c1', 'b1'],
    ])
    assert.deepEqual(await names('{ selector: { name: { _regex: "^[ab]" } } }'), [
      ['a0', 'b0'],
      ['a1', 'b1'],
    ])
    assert.deepEqual(
      await names(`{ selector: { _or: [{ name: "a0" }, { name: { _regex: "^(c|d)1$" } }] }, limit: 1 }`),
      [['a0'], ['c1']],
    )
    assert.deepEqual(await names('{ selector: { name: "a1" } }'), [[], ['a1']])
    assert.deepEqual(await names(`{ after: "${projects[1]!.id}" }`), [
      ['d0', 'b0'],
      ['c1', 'a1', 'd1', 'b1'],
    ])
    assert.deepEqual(await names(`{ after: "${projects[0]!.id}", sort: ["name"] }`), [['d0'], ['c1', 'd1']])
  })

  it('are loaded for more rows than a statement takes values', async () => {
    const organisation = uuid()
    await insert('organisations', [{ id: organisation, name: 'Large', ...times }])
    const projects = Array.from({ length: 34_000 }, (_, n) => ({
      organisation_id: organisation,
      name: `Large ${n}`,
      ...times,
    }))
    await fresh.database.transaction(async trx => {
      for (let from = 0; from < projects.length; from += 400) {
        await trx('projects').insert(projects.slice(from, from + 400).map(project => ({ id: uuid(), ...project })))
      }
    })
    const pages = [0, 10_000, 20_000, 30_000].map(
      skip =>
        `p${skip}: projects(query: { selector: { name: ` +
        `{ _beginsWith: "Large" } }, limit: 10000, skip: ${skip} }) { ...with }`,
    )
    const { data } = await run(`{ ${pages.join(' ')} } fragment with on Project { projectReports { id } }`)
    assert.deepEqual(
      Object.values(data as Record<string, unknown[]>).map(list => list.length),
      [10_000, 10_000, 10_000, 4_000],
    )
    assert.deepEqual(data.p30000[3_999], { projectReports: [] })
  })

  it('lead both ways between a thing and what it belongs to', async () => {
    const { data } = await run(`{
      projects(query: { limit: 1 }) {
        id organisation { projects { id organisation { id } } } projectReports { projectId project { id } } }
      events(query: { limit: 1 }) {
        id deliveries { eventId event { id } webhookId webhook { id deliveries { webhookId } } } }
    }`)
    const [project] = data.projects
    assert.ok(project.organisation.projects.some(({ id }: { id: string }) => id === project.id))
    for (const report of project.projectReports)
      assert.deepEqual([report.projectId, report.project.id], [project.id, project.id])
    const [event] = data.events
    assert.equal(event.deliveries.length, 1)
    const [delivery] = event.deliveries
    assert.deepEqual([delivery.eventId, delivery.event.id], [event.id, event.id])
    assert.equal(delivery.webhook.id, delivery.webhookId)
    assert.deepEqual(delivery.webhook.deliveries, [{ webhookId: delivery.webhookId }])
  })

  it('of access tokens take a query for each token by itself, whether it sees all or some', async () => {
    const organisations = ['n1', 'n2', 'n3'].map(name => ({ id: uuid(), name, ...times }))
    await insert('organisations', organisations)
    const tokens = [uuid(), uuid(), uuid()]
    for (const [n, id] of tokens.entries()) {
      await addToken(id, n === 2 ? 1 : 0)
      const seen = [organisations, organisations.slice(1), []][n]!
      await insert(
        'access_token_organisations',
        seen.map(({ id: organisation_id }) => ({ access_token_id: id, organisation_id })),
      )
    }
    const names = async (among: string[], query: string) => {
      const selector = `{ id: { _in: ${JSON.stringify(among)} } }`
      const { data } = await run(
        `{ accessTokens(query: { selector: ${selector} }) { organisations(query: ${query}) { name } } }`,
      )
      return (data.accessTokens as { organisations: { name: string }[] }[]).map(token =>
        token.organisations.map(({ name }) => name),
      )
    }
    const inOrder = '{ selector: { name: { _beginsWith: "n" } }, sort: ["name"], limit: 2 }'
    assert.deepEqual(await names(tokens, inOrder), [
      ['n1', 'n2'],
      ['n2', 'n3'],
      ['n1', 'n2'],
    ])
    assert.deepEqual(await names(tokens.slice(1, 2), inOrder), [['n2', 'n3']])
    const page = `{ after: "${organisations[1]!.id}", selector: { name: { _beginsWith: "n" } } }`
    assert.deepEqual(await names(tokens, page), [['n3'], ['n3'], ['n3']])
    assert.deepEqual(await names(tokens.slice(0, 1), page), [['n3']])
    const skipped = '{ selector: { name: { _beginsWith: "n" } }, sort: [{ name: "desc" }], skip: 2 }'
    assert.deepEqual(await names(tokens, skipped), [['n1'], [], ['n1']])
    await assert.rejects(names(tokens, '{ limit: -1 }'), /limit: must be a whole number from 0 to 10000/)
  })
})
