import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
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

test('the description says what the payload of an event holds', async () => {
  // biome-ignore lint/suspicious/noExplicitAny: a document that is read where it is looked at
  const spec = (await (await get('/spec/webhooks.json')).json()) as any
  const { schema } = spec.webhooks.project_report_quarterly_approved.post.requestBody.content['application/json']
  assert.deepEqual(Object.keys(schema.properties), ['webhookId', 'eventId', 'eventType', 'eventTime', 'payload'])
  assert.deepEqual(Object.keys(schema.properties.payload.properties.projectReport.properties), [
    'id',
    'projectId',
    'quarter',
    'approverId',
    'approverName',
    'approvedDate',
  ])
})

test('the description says when a failed delivery is sent again, as this installation is configured', async () => {
  // biome-ignore lint/suspicious/noExplicitAny: a document that is read where it is looked at
  const spec = (await (await get('/spec/webhooks.json')).json()) as any
  assert.deepEqual(server.config.retryScheduleMs, [200, 400, 800])
  for (const type of eventTypes) {
    assert.match(spec.webhooks[type].post.responses['5XX'].description, /Again after 0\.2, 0\.4, 0\.8 s, then dropped/)
  }
})

test('the interactive view is made of the package’s own files, and may ask no other host', async () => {
  const response = await get('/docs')
  const page = await response.text()
  const links = [...page.matchAll(/(?:src|href)="([^"]+)"/g)].map(match => match[1]!)
  assert.ok(links.length >= 4)
  for (const link of links) {
    assert.ok(link.startsWith('docs/'), link)
    assert.equal((await get(link)).status, 200, link)
  }
  const policy = response.headers.get('content-security-policy') ?? ''
  assert.match(policy, /default-src 'none'/)
  assert.doesNotMatch(policy, /https?:|\*/)
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
