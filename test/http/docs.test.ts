import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { buildSchema, type GraphQLScalarType, isScalarType, isSpecifiedScalarType } from 'graphql'
import type { ZodObject } from 'zod'
import { events, exampleIds } from '../../shared/events.ts'
import { standardHeaders } from '../../shared/standard-webhooks.ts'
import { eventTypes } from '../../shared/vocabulary.ts'
import { startTestServer, type TestServer } from '../support/server.ts'

let server: TestServer
before(async () => {
  server = await startTestServer('sqlite')
})
after(() => server.stop())

const get = (path: string) => fetch(new URL(path, server.url))

test('the description of the webhook API is OpenAPI 3.1.2 with an entry for each event type', async () => {
  const response = await get('/spec/webhooks.json')
  assert.equal(response.status, 200)
  const spec = (await response.json()) as { openapi: string; webhooks: object }
  assert.equal(spec.openapi, '3.1.2')
  assert.deepEqual(Object.keys(spec.webhooks), eventTypes)
})

// biome-ignore lint/suspicious/noExplicitAny: a document that is read where it is looked at
const description = async () => (await (await get('/spec/webhooks.json')).json()) as any

test('the description says what the payload of an event holds, under names that are kept', async () => {
  const spec = await description()
  const { schema } = spec.webhooks.project_report_quarterly_approved.post.requestBody.content['application/json']
  assert.equal(schema.$ref, '#/components/schemas/ProjectReportQuarterlyApproved')
  const { schemas } = spec.components
  const body = schemas.ProjectReportQuarterlyApproved
  assert.deepEqual(Object.keys(body.properties), ['webhookId', 'eventId', 'eventType', 'eventTime', 'payload'])
  assert.deepEqual(body.required, Object.keys(body.properties))
  assert.equal(body.properties.payload.$ref, '#/components/schemas/ProjectReportQuarterlyApprovedPayload')
  const report = schemas.ProjectReportQuarterlyApprovedPayload.properties.projectReport
  assert.equal(report.$ref, '#/components/schemas/ApprovedProjectReport')
  assert.deepEqual(Object.keys(schemas.ApprovedProjectReport.properties), [
    'id',
    'projectId',
    'quarter',
    'approverId',
    'approverName',
    'approvedDate',
  ])
})

test('every delivery is one of the bodies, told apart by its eventType', async () => {
  const { schemas } = (await description()).components
  const { oneOf, discriminator } = schemas.Delivery
  assert.equal(discriminator.propertyName, 'eventType')
  assert.deepEqual(Object.keys(discriminator.mapping), eventTypes)
  assert.deepEqual(
    oneOf.map(({ $ref }: { $ref: string }) => $ref),
    Object.values(discriminator.mapping),
  )
  for (const [type, $ref] of Object.entries(discriminator.mapping as Record<string, string>)) {
    assert.equal(schemas[$ref.split('/').at(-1)!].properties.eventType.const, type)
  }
})

test('the description refers to nothing that is not in it', async () => {
  const spec = await description()
  const pointers = [...JSON.stringify(spec).matchAll(/"(#\/[^"]+)"/g)].map(match => match[1]!.split('/').slice(1))
  assert.ok(pointers.length > 20)
  for (const pointer of pointers) {
    assert.ok(
      pointer.reduce((at, name) => at?.[name], spec),
      pointer.join('/'),
    )
  }
})

test('a receiver made of the description takes what a later version adds, and what is sent has no more', async () => {
  assert.doesNotMatch(JSON.stringify(await description()), /"additionalProperties":false/)
  for (const { payload, example } of Object.values(events)) {
    assert.ok((payload as ZodObject).safeParse(example).success)
    assert.ok(!(payload as ZodObject).safeParse({ ...example, added: 1 }).success)
  }
})

test('each event says that signing: standard brings three more headers, and the docs say it once', async () => {
  const { webhooks, components } = await description()
  for (const type of eventTypes) {
    const found = webhooks[type].post.parameters
      .map(({ $ref }: { $ref: string }) => components.parameters[$ref.split('/').at(-1)!])
      .filter(({ required }: { required: boolean }) => !required)
    assert.deepEqual(
      found.map(({ name }: { name: string }) => name),
      standardHeaders,
    )
    for (const { description, example, schema } of found) {
      assert.match(description, /^Only for webhooks with `signing: standard`/)
      if (schema.pattern) assert.match(example, new RegExp(schema.pattern))
    }
  }
  const page = await (await get('/docs')).text()
  for (const name of standardHeaders) assert.equal(page.split(`<td><code>${name}</code></td>`).length, 2, name)
})

test('the description has an example of each event, whose ids are those of no row', async () => {
  const spec = await description()
  for (const type of eventTypes) {
    const { value } = spec.webhooks[type].post.requestBody.content['application/json'].examples[type]
    assert.deepEqual([value.eventType, value.payload], [type, events[type].example])
    const ids = [...JSON.stringify(value).matchAll(/[\da-f]{8}-[\da-f-]{27}/g)].map(match => match[0])
    assert.deepEqual(
      ids.filter(id => !Object.values<string>(exampleIds).includes(id)),
      [],
    )
  }
})

test('the description says when a failed delivery is sent again, as this installation is configured', async () => {
  const spec = await description()
  assert.deepEqual(server.config.retryScheduleMs, [200, 400, 800])
  const schedule = /sent again after 0\.2, 0\.4, 0\.8 s, and is then dropped/
  assert.match(spec.info.description, schedule)
  for (const type of eventTypes) assert.match(spec.webhooks[type].post.responses['5XX'].description, schedule)
  assert.deepEqual(spec.servers[0].url, server.config.baseUrl)
})

test('the description says that nothing but 200 registers an endpoint', async () => {
  const { description: text, responses } = (await description()).webhooks.ping.post
  assert.match(text, /must be exactly 200.*nothing is stored/s)
  assert.match(responses['2XX'].description, /not registered/)
})

test('the schema of the GraphQL API is to be had without a token', async () => {
  const response = await get('/spec/schema.graphql')
  assert.equal(response.headers.get('content-type'), 'text/plain; charset=utf-8')
  const schema = buildSchema(await response.text())
  assert.ok(schema.getMutationType()!.getFields().createWebhook)
  const scalars = Object.values(schema.getTypeMap()).filter(type => isScalarType(type) && !isSpecifiedScalarType(type))
  for (const scalar of scalars) assert.match((scalar as GraphQLScalarType).specifiedByURL ?? '', /^https:/, scalar.name)
})

test('pages of any origin may read the key set and the descriptions, and nothing else', async () => {
  for (const [path, origin] of [
    ['/.well-known/jwks.json', '*'],
    ['/spec/webhooks.json', '*'],
    ['/spec/schema.graphql', '*'],
    ['/docs', null],
    ['/docs/receivers/python', null],
    ['/livez', null],
    ['/readyz', null],
    ['/metrics', null],
    ['/graphql', null],
    ['/nothing', null],
  ] as const) {
    assert.equal((await get(path)).headers.get('access-control-allow-origin'), origin, path)
  }
})

for (const [name, code] of Object.entries({
  javascript: /koaReceiver/,
  python: /def /,
  go: /package /,
  java: /class TidingsReceiver/,
  csharp: /Not run/,
  php: /&lt;\?php/,
  ruby: /class /,
  README: /body_sha256/,
  'standard-webhooks': /standardwebhooks::Webhook::new/,
})) {
  test(`the docs have a receiver to read: ${name}`, async () => {
    assert.ok((await (await get('/docs')).text()).includes(`href="docs/receivers/${name}"`))
    const response = await get(`/docs/receivers/${name}`)
    assert.equal(response.status, 200)
    assert.match(await response.text(), code)
    assert.match(response.headers.get('content-security-policy') ?? '', /default-src 'none'/)
  })
}

test('no other file is to be had as a receiver', async () => {
  for (const name of ['..%2f..%2fpackage', 'vectors', 'constructor', 'README.md']) {
    assert.equal((await get(`/docs/receivers/${name}`)).status, 404, name)
  }
})
