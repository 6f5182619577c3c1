import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, describe, it } from 'node:test'
import {
  buildClientSchema,
  type GraphQLSchema,
  getIntrospectionQuery,
  getNamedType,
  getNullableType,
  isListType,
  isObjectType,
  lexicographicSortSchema,
  parse,
  printSchema,
} from 'graphql'
import { BUDGET } from '../../server/graphql/budget.ts'
import { checkLimits, listsOf } from '../../server/graphql/limits.ts'
import { createSchema } from '../../server/graphql/schema.ts'
import { type Credentials, signRequest } from '../../shared/hmac.ts'
import { describeEachEngine } from '../support/databases.ts'
import { cpuMsOf } from '../support/effort.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'

const ENV = { TIDINGS_ROLES: 'api', TIDINGS_RATE_LIMIT: '0', TIDINGS_LOG_LEVEL: 'silent' }
/**
 * Milliseconds of processor time that the server may spend, while others ask for the worst, until a client is answered.
 * Alone it is a few.
 */
const PROMPT_MS = 1_500
/** What the worst may take until it is answered or refused. */
const SOON_MS = 20_000

/** Runs `work` while another client asks for little, again and again, and is answered each time. */
const whileAnotherAsks = async <T>(server: TestServer, work: () => Promise<T>): Promise<T> => {
  const other = await server.token({ name: 'another', permissions: ['read'] })
  let asking = true
  let slowest = 0
  const another = (async () => {
    while (asking) {
      const spentMs = await cpuMsOf(async () => {
        const { data } = await server.graphql('{ viewer { name } }', {}, other)
        assert.deepEqual(data, { viewer: { name: 'another' } })
      })
      slowest = Math.max(slowest, spentMs)
    }
  })()
  try {
    return await work()
  } finally {
    asking = false
    await another
    assert.ok(slowest < PROMPT_MS, `another client waited for ${Math.round(slowest)} ms of work`)
  }
}

describe('the limits of a document', () => {
  const schema = createSchema()
  let server: TestServer
  let credentials: Credentials
  before(async () => {
    server = await startTestServer('sqlite', { env: ENV })
    credentials = await server.token({ name: 'ci' })
    await addProject(server.database)
    // What comes first waits for the process that answers it to start.
    await server.graphql('{ __schema { queryType { name } } }')
  })
  after(() => server.stop())

  /** Sends a body as it is, signed. */
  const post = async (body: string) => {
    const url = new URL('/graphql', server.url)
    const signed = signRequest({ method: 'POST', url, body, credentials, at: new Date(), nonce: randomUUID() })
    const headers = { ...signed, 'content-type': 'application/json', accept: 'application/json' }
    const response = await fetch(url, { method: 'POST', headers, body })
    // biome-ignore lint/suspicious/noExplicitAny: tests read what they asked for
    return { status: response.status, answer: (await response.json()) as any }
  }

  /** Sends a document with variables that are JSON text, since some cannot be written by JSON.stringify. */
  const send = async (document: string, variables = '{}') => {
    const started = performance.now()
    const { answer } = await whileAnotherAsks(server, () =>
      post(`{"query": ${JSON.stringify(document)}, "variables": ${variables}}`),
    )
    const tookMs = performance.now() - started
    assert.ok(tookMs < SOON_MS, `it took ${Math.round(tookMs)} ms`)
    return answer
  }
  const codeOf = async (document: string, variables?: string) => {
    const { errors } = await send(document, variables)
    return errors?.[0].extensions.code ?? 'answered'
  }

  it('let introspection through, and it is enough to build a client from', async () => {
    const query = getIntrospectionQuery({
      descriptions: true,
      specifiedByUrl: true,
      directiveIsRepeatable: true,
      schemaDescription: true,
      inputValueDeprecation: true,
      oneOf: true,
    })
    const printed = (of: GraphQLSchema) => printSchema(lexicographicSortSchema(of))
    // The shorter query does not ask where scalars are specified.
    const unspecified = printed(schema).replaceAll(/ @specifiedBy\(url: "[^"]*"\)/g, '')
    for (const [document, expected] of [
      [query, printed(schema)],
      [getIntrospectionQuery(), unspecified],
    ] as const) {
      const { data, errors } = await send(document)
      assert.equal(errors, undefined)
      assert.equal(printed(buildClientSchema(data)), expected)
    }
  })

  it('leave nothing in the schema undescribed that a name does not say', () => {
    for (const type of Object.values(schema.getTypeMap())) {
      if (type.name.startsWith('__') || ['String', 'Int', 'Boolean', 'Query', 'Mutation'].includes(type.name)) continue
      if (!('getFields' in type)) continue
      assert.ok(type.description || ['Organisation', 'Project'].includes(type.name), type.name)
    }
    for (const field of Object.values(schema.getMutationType()!.getFields())) assert.ok(field.description, field.name)
  })

  it('refuse 2,000 aliases', async () => {
    const aliases = Array.from({ length: 1_990 }, (_, n) => `a${n}:id`).join(' ')
    assert.equal(await codeOf(`{ viewer { ${aliases} } }`), 'QUERY_TOO_COMPLEX')
    const many = Array.from({ length: 2_000 }, (_, n) => `a${n}: viewer { id }`).join(' ')
    assert.equal(await codeOf(`{ ${many} }`), 'QUERY_TOO_COMPLEX')
  })

  it('count aliases in introspection too, where each could copy the schema', async () => {
    const copies = Array.from(
      { length: 180 },
      (_, n) => `a${n}: types { fields { args { type { fields { name } } } } }`,
    )
    const { errors } = await send(`{ __schema { ${copies.join(' ')} } }`)
    assert.match(errors[0].message, /180 aliases; at most 50 are allowed/)
    assert.equal(
      await codeOf('{ __schema { types { fields { type { fields { type { fields { name } } } } } } } }'),
      'BAD_USER_INPUT',
    )
  })

  it('name the limit that was passed', async () => {
    const levels = '{ projects { organisation '.repeat(7)
    const cases: [string, RegExp][] = [
      [`{ ${'id '.repeat(4_000)} }`, /more than 4000 tokens/],
      [
        `{ projects ${'{ organisation { projects '.repeat(7)} { id } ${'} }'.repeat(7)} }`,
        /16 levels; at most 12 are allowed/,
      ],
      ['{ organisations(query: {limit: 10000}) { projects(query: {limit: 10000}) { id } } }', /100,010,001 fields/],
      [levels, /Syntax Error/],
    ]
    for (const [document, told] of cases) {
      const { errors } = await send(document)
      assert.match(errors[0].message, told)
    }
  })

  it('count a limit that comes in a variable, or as its default', async () => {
    const document = (variable: string) =>
      `query(${variable}) { organisations(query: {limit: $n}) { projects(query: {limit: $n}) { id } } }`
    assert.equal(await codeOf(document('$n: Int'), '{"n": 10000}'), 'QUERY_TOO_COMPLEX')
    assert.equal(await codeOf(document('$n: Int = 10000')), 'QUERY_TOO_COMPLEX')
    assert.equal(await codeOf(document('$n: Int = 10000'), '{"n": 10}'), 'answered')
    const whole = 'query($q: MangoQuery) { organisations(query: $q) { projects(query: $q) { id } } }'
    assert.equal(await codeOf(whole, '{"q": {"limit": 10000}}'), 'QUERY_TOO_COMPLEX')
  })

  it('are checked each time a document is sent, for its variables', async () => {
    const document = 'query($n: Int) { organisations(query: {limit: $n}) { projects(query: {limit: $n}) { name } } }'
    assert.equal(await codeOf(document, '{"n": 10}'), 'answered')
    assert.equal(await codeOf(document, '{"n": 10000}'), 'QUERY_TOO_COMPLEX')
    assert.equal(await codeOf(document, '{"n": 10}'), 'answered')
  })

  it('multiply the cost by every list that there is in the schema', () => {
    for (const type of Object.values(schema.getTypeMap())) {
      if (!isObjectType(type) || type.name.startsWith('__')) continue
      for (const field of Object.values(type.getFields())) {
        if (!isListType(getNullableType(field.type)) || !isObjectType(getNamedType(field.type))) continue
        const document = parse(`{ ${field.name}(query: {limit: ${BUDGET.values + 1}}) { id } }`)
        assert.throws(
          () => checkLimits(document, {}, listsOf(schema)),
          /fields by its limits/,
          `${type.name}.${field.name}`,
        )
      }
    }
  })

  it('answer fragments in a circle and fragments that double, at once', async () => {
    const double = Array.from({ length: 300 }, (_, n) => `fragment f${n} on Query { ...f${n + 1} ...f${n + 1} }`)
    assert.equal(
      await codeOf(`{ ...f0 } ${double.join(' ')} fragment f300 on Query { viewer { id } }`),
      'QUERY_TOO_COMPLEX',
    )
    const circle = Array.from(
      { length: 250 },
      (_, n) => `fragment f${n} on Query { viewer { id } ...f${(n + 1) % 250} }`,
    )
    assert.equal(await codeOf(`{ ...f0 } ${circle.join(' ')}`), 'BAD_USER_INPUT')
    const dense = Array.from({ length: 80 }, (_, n) => {
      const spreads = Array.from({ length: 16 }, (_, k) => `...f${(n + k + 1) % 80}`)
      return `fragment f${n} on AccessToken { ${spreads.join(' ')} }`
    })
    assert.equal(await codeOf(`{ viewer { ...f0 } } ${dense.join(' ')}`), 'BAD_USER_INPUT')
    assert.equal(await codeOf(`{ viewer { ${'name '.repeat(3_900)} } }`), 'QUERY_TOO_COMPLEX')
  })

  it('refuse what is nested thousands of levels deep, in a document or in variables', async () => {
    const deep = (levels: number) => '{"$and":['.repeat(levels) + ']}'.repeat(levels)
    const selecting = 'query($s: MangoSelector) { organisations(query: {selector: $s}) { id } }'
    // How deep a document can be read before it is found to have no end depends on the machine.
    assert.match(await codeOf('{a'.repeat(1_990)), /^(QUERY_TOO_COMPLEX|BAD_USER_INPUT)$/)
    const list = `${'['.repeat(1_950)}${']'.repeat(1_950)}`
    const listed = await codeOf(`{ organisations(query: {selector: {name: ${list}}}) { id } }`)
    assert.match(listed, /^(QUERY_TOO_COMPLEX|BAD_USER_INPUT)$/)
    for (const levels of [33, 1_000, 9_000]) {
      const { errors } = await send(selecting, `{"s": ${deep(levels)}}`)
      assert.match(errors[0].message, /selector: is nested deeper than 32 levels/)
    }
    const nested = 'query($s: MangoSelector) { organisations { projects(query: {selector: $s}) { id } } }'
    for (const document of [
      nested,
      'query($s: UUID) { organisations(query: {after: $s}) { id } }',
      'query($s: Int) { organisations(query: {limit: $s}) { id } }',
      'query($s: MangoQuery) { organisations(query: $s) { id } }',
      'query($s: [MangoSort!]) { organisations(query: {sort: $s}) { id } }',
      'mutation($s: String!) { upsertUser(name: $s) { id } }',
      'mutation($s: DateTime!) { recoverDeliveries(webhookId: "01936f2e-5d2f-7c3a-9b1e-2f4d6c8a0e12", since: $s) ' +
        '{ queued } }',
    ]) {
      assert.equal(await codeOf(document, `{"s": ${deep(9_000)}}`), 'BAD_USER_INPUT', document)
    }
  })

  it('refuse a body of so many objects, lists and names that it takes long to be parsed', async () => {
    const document = 'mutation($s: String!) { upsertUser(name: $s) { id } }'
    const names = Array.from({ length: 80_000 }, (_, n) => `"k${n}":1`)
    for (const variables of [`{"s": {${names}}}`, `{"s": ${'['.repeat(300_000)}${']'.repeat(300_000)}}`]) {
      assert.equal(await codeOf(document, variables), 'QUERY_TOO_COMPLEX')
    }
    const text = `${'{:[\\\\"'.repeat(40_000)}`
    assert.equal(await codeOf(document, `{"s": "${text.replaceAll('"', '\\"')}"}`), 'BAD_USER_INPUT')
    assert.equal(
      await codeOf('query($n: [Int!]) { viewer { id } }', `{"n": [${'1,'.repeat(300_000)}1]}`),
      'BAD_USER_INPUT',
    )
  })

  it('refuse a document of few tokens that are long', async () => {
    const text = '\\n x'.repeat(100_000)
    assert.equal(await codeOf(`{ users(query: {selector: {name: "${text}"}}) { id } }`), 'QUERY_TOO_COMPLEX')
  })

  it('take names that objects have from birth for names like others', async () => {
    const select = 'query($s: MangoSelector) { events(query: {selector: $s}) { id } }'
    assert.equal(await codeOf(select, '{"s": {"__proto__": {"x": 1}}}'), 'BAD_USER_INPUT')
    assert.equal(await codeOf(select, '{"s": {"constructor": 1}}'), 'BAD_USER_INPUT')
    assert.equal(await codeOf(select, '{"s": {"payload.__proto__.toString": {"$exists": true}}}'), 'answered')
    assert.equal(
      await codeOf(
        'query($__proto__: MangoSelector) { events(query: {selector: $__proto__}) { id } }',
        '{"__proto__": {"type": "ping"}}',
      ),
      'answered',
    )
    assert.equal(({} as Record<string, unknown>).x, undefined)
  })

  it('refuse a batch', async () => {
    const one = { query: '{ viewer { id } }' }
    for (const batch of [[one], [one, one], []]) {
      const { status, answer } = await post(JSON.stringify(batch))
      assert.equal(status, 400)
      assert.equal(answer.data, undefined)
      assert.equal(answer.errors[0].extensions.code, 'BAD_USER_INPUT')
    }
  })

  it('refuse a body of 10 MB', async () => {
    const { status } = await whileAnotherAsks(server, () =>
      post(JSON.stringify({ query: '{ viewer { id } }', variables: { x: 'x'.repeat(10_000_000) } })).catch(() => ({
        // It may be refused while it is still being sent.
        status: 413,
      })),
    )
    assert.equal(status, 413)
  })

  it('leave time for others while documents that have as many fields as they may are answered', async () => {
    const parts = Array.from({ length: 50 }, (_, n) => `a${n}: organisations { projects { organisation { name } } }`)
    const rich = `{ ${parts.join(' ')} }`
    await whileAnotherAsks(server, async () => {
      for (let n = 0; n < 5; n++) assert.equal((await server.graphql(rich)).errors, undefined)
    })
  })
})

describeEachEngine('a pattern that takes others exponential time', engine => {
  let server: TestServer
  before(async () => {
    server = await startTestServer(engine, { env: ENV })
    const times = { created_at: 0, updated_at: 0 }
    const users = Array.from({ length: 2_000 }, (_, n) => ({
      id: randomUUID(),
      name: `${'a'.repeat(250)}${n}!`,
      ...times,
    }))
    await server.database.knex.batchInsert('users', users, 100)
    await server.graphql('{ __schema { queryType { name } } }')
  })
  after(() => server.stop())

  it('takes linear time on long names', async () => {
    for (const pattern of ['(a+)+$', '^(a|a)*$', '^(a|aa)+$', '^(.*a){20}$', '(?i)(A+)+B', '([a-z]+)*[0-9]{5}$']) {
      const started = performance.now()
      const { data, errors } = await whileAnotherAsks(server, () =>
        server.graphql('query($s: MangoSelector) { users(query: {selector: $s}) { id } }', {
          s: { name: { $regex: pattern } },
        }),
      )
      assert.equal(errors, undefined)
      assert.deepEqual(data.users, [], pattern)
      assert.ok(performance.now() - started < SOON_MS, pattern)
    }
  })
})
