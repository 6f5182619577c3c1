import assert from 'node:assert/strict'
import { randomBytes, randomUUID } from 'node:crypto'
import { after, before, it } from 'node:test'
import type { ErrorCode } from '../../shared/vocabulary.ts'
import { describeEachEngine } from '../support/databases.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, type GraphqlAnswer, startTestServer, type TestServer } from '../support/server.ts'

type Project = Awaited<ReturnType<typeof addProject>>

describeEachEngine('an error', engine => {
  let server: TestServer
  let receiver: Receiver
  let acme: Project
  before(async () => {
    // As many requests as are made here, and one more is too many.
    const env = { TIDINGS_ROLES: 'api', TIDINGS_RATE_LIMIT: '50', TIDINGS_LOG_LEVEL: 'silent' }
    server = await startTestServer(engine, { env })
    receiver = await startReceiver()
    acme = await addProject(server.database)
  })
  after(async () => {
    await receiver.close()
    await server.stop()
  })

  const only = ({ errors, headers }: GraphqlAnswer) => {
    assert.equal(errors?.length, 1, JSON.stringify(errors))
    const { message, extensions } = errors![0]!
    assert.equal(extensions.requestId, headers.get('x-request-id'))
    return { message, extensions }
  }
  /** Asks as a token of its own, so that no test uses up the requests of another. */
  const asked = async (document: string, variables: object = {}) =>
    server.graphql(document, variables, await server.token())
  const submit = ({ projectId, userId }: Project, quarter: string) =>
    `mutation { submitProjectReport(projectId: "${projectId}", quarter: "${quarter}", submitterId: "${userId}") ` +
    '{ id } }'

  /** Renames a table while `work` is done, so that what uses it fails. */
  const without = async <T>(table: string, work: () => Promise<T>): Promise<T> => {
    const { schema } = server.database.knex
    await schema.renameTable(table, `${table}_away`)
    try {
      return await work()
    } finally {
      await server.database.knex.schema.renameTable(`${table}_away`, table)
    }
  }

  // Every code there is: the type says so if one is missing.
  const reached: Record<ErrorCode, () => Promise<GraphqlAnswer>> = {
    UNAUTHENTICATED: async () =>
      server.graphql(
        '{ viewer { id } }',
        {},
        { ...(await server.token()), apiSecret: randomBytes(32).toString('base64') },
      ),
    FORBIDDEN: async () =>
      server.graphql('mutation { upsertUser(name: "x") { id } }', {}, await server.token({ permissions: ['read'] })),
    NOT_FOUND: () => asked(`mutation { pingWebhook(id: "${randomUUID()}") { id } }`),
    BAD_USER_INPUT: () => asked('{ organisations(query: {selector: {nme: "Acme"}}) { id } }'),
    PING_FAILED: () => asked('mutation { createWebhook(url: "http://127.0.0.1:1/") { id } }'),
    CONFLICT: async () => {
      assert.equal((await asked(submit(acme, '2026-1'))).errors, undefined)
      return asked(submit(acme, '2026-1'))
    },
    RESULT_TOO_LARGE: async () => {
      const times = { created_at: 0, updated_at: 0 }
      const users = Array.from({ length: 10_001 }, () => ({ id: randomUUID(), name: 'x', ...times }))
      await server.database.knex.batchInsert('users', users, 200)
      return asked('{ users { id } }')
    },
    QUERY_TOO_COMPLEX: () => asked(`{ viewer { ${Array.from({ length: 51 }, (_, n) => `a${n}: id`).join(' ')} } }`),
    RATE_LIMITED: async () => {
      const token = await server.token()
      for (let n = 0; n < 50; n++) await server.graphql('{ viewer { id } }', {}, token)
      // A minute may have begun in between.
      for (let n = 0; n < 49; n++) {
        const answer = await server.graphql('{ viewer { id } }', {}, token)
        if (answer.status !== 200) return answer
      }
      return server.graphql('{ viewer { id } }', {}, token)
    },
    UNAVAILABLE: async () => {
      const token = await server.token()
      return server.database.transaction(async trx => {
        await trx('projects').where('id', acme.projectId).update({ name: 'Held' })
        // A connection that is silent in the middle of a transaction is ended.
        const speaking = setInterval(() => void trx.raw('SELECT 1'), 1_000)
        const answer = await server.graphql(submit(acme, '2025-4'), {}, token)
        clearInterval(speaking)
        assert.deepEqual([answer.status, answer.headers.get('retry-after')], [503, '5'])
        return answer
      })
    },
    INTERNAL_SERVER_ERROR: () => without('project_reports', () => asked('{ projectReports { id } }')),
  }
  for (const [code, reach] of Object.entries(reached)) {
    it(`is told by its code: ${code}`, async () => {
      assert.equal(only(await reach()).extensions.code, code)
    })
  }

  const misspelt: [what: string, document: string, meant: RegExp, variables?: object][] = [
    ['a field of a type', '{ organisations { nmae } }', /Did you mean "name"/],
    ['a query', '{ organizations { id } }', /Did you mean "organisations"/],
    ['an argument', '{ organisations(quer: {}) { id } }', /Did you mean "query"/],
    [
      'a field in a selector',
      '{ deliveries(query: {selector: {eventTpye: "ping"}}) { id } }',
      /did you mean eventType\?/,
    ],
    ['a related field', '{ projects(query: {selector: {organisation: {nam: "x"}}}) { id } }', /did you mean name\?/],
    ['a field to sort by', '{ projects(query: {sort: ["nmae"]}) { id } }', /did you mean name\?/],
    [
      'an operator',
      '($s: MangoSelector) { projects(query: {selector: $s}) { id } }',
      /did you mean \$regex\?/,
      { s: { name: { $regx: 'x' } } },
    ],
    [
      'an operator in a document',
      '{ projects(query: {selector: {name: {_regx: "x"}}}) { id } }',
      /did you mean _regex\?/,
    ],
    ['an enum value', 'mutation { upsertWebhook(status: disable) { id } }', /Did you mean the enum value "disabled"/],
    [
      'an enum value in a variable',
      'mutation($s: WebhookStatus) { upsertWebhook(status: $s) { id } }',
      /Did you mean the enum value "disabled"/,
      { s: 'disable' },
    ],
    [
      'an enum value in a selector',
      '{ webhooks(query: {selector: {status: "disable"}}) { id } }',
      /did you mean disabled\?/,
    ],
    [
      'an event type',
      'mutation { createWebhook(url: "http://x/", events: [project_report_quarterly_submited]) { id } }',
      /Did you mean the enum value "project_report_quarterly_submitted"/,
    ],
    [
      'an event type in a selector',
      '{ events(query: {selector: {type: "token_expire"}}) { id } }',
      /did you mean token_expired\?/,
    ],
    ['a type', '{ events(query: {selector: {payload: {x: {_type: "sting"}}}}) { id } }', /did you mean string\?/],
  ]
  for (const [what, document, meant, variables] of misspelt) {
    it(`says what was meant where ${what} is misspelt`, async () => {
      const query = document.startsWith('(') ? `query${document}` : document
      const { message, extensions } = only(await asked(query, variables))
      assert.equal(extensions.code, 'BAD_USER_INPUT')
      assert.match(message, meant)
    })
  }

  it('of the server’s own tells the request id and nothing else, whatever failed', async () => {
    for (const [table, document] of [
      ['deliveries', '{ deliveries { id } }'],
      ['organisations', '{ projects { organisation { name } } }'],
      ['events', submit(acme, '2025-1')],
    ] as const) {
      const { message, extensions } = only(await without(table, () => asked(document)))
      assert.equal(message, 'Something went wrong on the server. If it persists, report the request id.')
      assert.deepEqual(Object.keys(extensions).sort(), ['code', 'requestId'])
      assert.equal(extensions.code, 'INTERNAL_SERVER_ERROR')
    }
  })

  /** What there is in every table that a mutation writes, but for what every request notes. */
  const everything = async () => {
    const tables = [
      'organisations',
      'projects',
      'users',
      'project_reports',
      'access_tokens',
      'access_token_permissions',
    ]
    const more = [
      'access_token_organisations',
      'webhooks',
      'webhook_events',
      'webhook_organisations',
      'webhook_projects',
    ]
    const rows: Record<string, object[]> = {}
    for (const table of [...tables, ...more, 'events', 'deliveries', 'attempts']) {
      rows[table] = await server.database.knex(table).orderByRaw('1, 2')
      for (const row of rows[table] as { last_used_at?: unknown }[]) delete row.last_used_at
    }
    return rows
  }

  it('halfway through a mutation leaves nothing of it behind', async () => {
    const token = await server.token()
    const webhook = await server.graphql(`mutation { createWebhook(url: "${receiver.url}") { id } }`, {}, token)
    const { id } = webhook.data.createWebhook
    const limited = await server.token({ permissions: ['webhooks'], organisationIds: [acme.organisationId] })
    const own = await server.graphql(
      `mutation { createWebhook(url: "${receiver.url}", projectIds: ["${acme.projectId}"]) { id } }`,
      {},
      token,
    )
    const halfway: [fails: string | undefined, document: string, code: ErrorCode, as?: typeof token][] = [
      // The report is submitted and the event written when the queue is found to be gone.
      ['delivery_queue', submit(acme, '2024-1'), 'INTERNAL_SERVER_ERROR'],
      ['webhook_projects', submit(acme, '2024-1'), 'INTERNAL_SERVER_ERROR'],
      [
        'attempts',
        `mutation { createWebhook(url: "${receiver.url}", organisationIds: ["${acme.organisationId}"]) { id } }`,
        'INTERNAL_SERVER_ERROR',
      ],
      [
        'delivery_queue',
        `mutation { upsertWebhook(id: "${id}", events: [token_expired], status: disabled) { id } }`,
        'INTERNAL_SERVER_ERROR',
      ],
      ['delivery_queue', `mutation { pingWebhook(id: "${id}") { id } }`, 'INTERNAL_SERVER_ERROR'],
      // Its lists have been changed when it is found to receive more than the caller sees.
      [
        undefined,
        `mutation { upsertWebhook(id: "${own.data.createWebhook.id}", events: [token_expired], projectIds: []) ` +
          '{ id } }',
        'FORBIDDEN',
        limited,
      ],
    ]
    const before = await everything()
    for (const [table, document, code, as = token] of halfway) {
      const run = () => server.graphql(document, {}, as)
      const answer = table ? await without(table, run) : await run()
      assert.equal(only(answer).extensions.code, code, document)
      assert.deepEqual(await everything(), before, document)
    }
  })

  it('in one of several mutations leaves what the ones before it did, and they are told', async () => {
    const { data, errors } = await asked(`mutation {
      first: upsertUser(name: "Kept") { name }
      second: upsertUser(name: "") { name }
    }`)
    assert.equal(data, null)
    assert.deepEqual(
      errors!.map(error => error.path),
      [['second']],
    )
    const [found] = await server.database.knex('users').where('name', 'Kept')
    assert.ok(found)
  })

  it('is no stale answer: a mutation sees what the ones before it in the same document did', async () => {
    const { organisationId, projectId } = acme
    const project = `upsertProject(id: "${projectId}", organisationId: "${organisationId}", name: "P")`
    const { data, errors } = await asked(`mutation {
      a: upsertOrganisation(id: "${organisationId}", name: "One") { name }
      b: ${project} { ...with }
      c: upsertOrganisation(id: "${organisationId}", name: "Two") { name }
      d: upsertProject(organisationId: "${organisationId}", name: "Q") { ...with }
    } fragment with on Project { name organisation { name } }`)
    assert.equal(errors, undefined, JSON.stringify(errors))
    const names = (of: { name: string; organisation: { name: string } }) => [of.organisation.name, of.name]
    assert.deepEqual(names(data.b), ['One', 'P'])
    assert.deepEqual(names(data.d), ['Two', 'Q'])
  })
})
