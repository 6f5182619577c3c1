import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, before, beforeEach, describe, test } from 'node:test'
import { expressReceiver, type Handler, RetryLater, type TidingsEvent } from '../../receiver/index.ts'
import { eventually } from '../support/eventually.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'

describe('a receiver of a Tidings server', () => {
  let server: TestServer
  let ids: Awaited<ReturnType<typeof addProject>>
  let handle: Handler
  let events: TidingsEvent[]
  const errors: unknown[] = []
  const listener = createServer()
  let quarter = 0

  before(async () => {
    server = await startTestServer('sqlite')
    ids = await addProject(server.database)
    await new Promise<void>(resolve => listener.listen(0, '127.0.0.1', resolve))
    const url = `http://127.0.0.1:${(listener.address() as AddressInfo).port}/hooks`
    const options = { issuer: server.url, audience: url, onError: (error: unknown) => errors.push(error) }
    listener.on(
      'request',
      expressReceiver(options, (event, context) => handle(event, context)),
    )
    const { errors: refused } = await server.graphql('mutation ($url: String!) { createWebhook(url: $url) { id } }', {
      url,
    })
    assert.equal(refused, undefined)
  })
  after(async () => {
    await server.stop()
    listener.close().closeAllConnections()
  })

  beforeEach(() => {
    events = []
  })

  /** Submits a report, and waits for what becomes of its delivery. */
  const deliver = async (): Promise<{ status: string; attempts: { statusCode: number }[] }> => {
    quarter += 1
    const { data } = await server.graphql(
      `mutation ($projectId: UUID!, $quarter: String!, $submitterId: UUID!) {
        submitProjectReport(projectId: $projectId, quarter: $quarter, submitterId: $submitterId) { id }
      }`,
      { projectId: ids.projectId, quarter: `20${20 + quarter}-1`, submitterId: ids.userId },
    )
    const selector = { 'event.payload.projectReport.id': data.submitProjectReport.id }
    const look = async () => {
      const found = await server.graphql(
        'query ($query: MangoQuery) { deliveries(query: $query) { status attempts { statusCode } } }',
        { query: { selector } },
      )
      return found.data.deliveries[0]
    }
    return eventually('the delivery to come to an end', look, delivery => delivery && delivery.status !== 'pending')
  }
  const codes = ({ attempts }: { attempts: { statusCode: number }[] }) => attempts.map(attempt => attempt.statusCode)

  test('is registered by answering its ping, and is given each event, typed', async () => {
    handle = event => events.push(event)
    const delivery = await deliver()
    assert.equal(delivery.status, 'delivered')
    const [event] = events
    if (event?.eventType !== 'project_report_quarterly_submitted') assert.fail(event?.eventType)
    assert.equal(event.payload.projectReport.submitterName, 'Ada Okafor')
  })

  test('gets an event again after its handler threw, and then acknowledges it', async () => {
    handle = event => {
      if (events.push(event) === 1) throw new Error('the database is away')
    }
    const delivery = await deliver()
    assert.equal(delivery.status, 'delivered')
    assert.deepEqual(codes(delivery), [500, 200])
    assert.equal(new Set(events.map(event => event.eventId)).size, 1)
    assert.match(String(errors), /database is away/)
  })

  test('gets an event again after the pause that it asked for', async () => {
    handle = event => {
      if (events.push(event) === 1) throw new RetryLater(1)
    }
    const delivery = await deliver()
    assert.equal(delivery.status, 'delivered')
    assert.deepEqual(codes(delivery), [429, 200])
  })
})
