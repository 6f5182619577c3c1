import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, before, beforeEach, describe, test } from 'node:test'
import { expressReceiver, type Handler, RetryLater, type TidingsEvent } from '../../receiver/index.ts'
import { eventually } from '../support/eventually.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'

type Delivery = {
  id: string
  eventId: string
  webhookId: string
  createdAt: string
  status: string
  handledBefore: boolean
  attempts: { statusCode: number | null; failure: string | null }[]
}

describe('a receiver of a Tidings server', () => {
  let server: TestServer
  let ids: Awaited<ReturnType<typeof addProject>>
  let handle: Handler
  let events: TidingsEvent[]
  const errors: unknown[] = []
  let headers: IncomingHttpHeaders = {}
  /** In place of the receiver, where another is to be played. */
  let answering: ((response: ServerResponse) => void) | undefined
  const listener = createServer()
  let quarter = 0

  before(async () => {
    server = await startTestServer('sqlite')
    ids = await addProject(server.database)
    await new Promise<void>(resolve => listener.listen(0, '127.0.0.1', resolve))
    const url = `http://127.0.0.1:${(listener.address() as AddressInfo).port}/hooks`
    const onError = (error: unknown) => errors.push(error)
    const receive = expressReceiver(
      { issuer: server.url, audience: url, handlerTimeoutMs: 300, onError },
      (event, context) => handle(event, context),
    )
    listener.on('request', (request, response) => {
      headers = request.headers
      return answering ? answering(response) : receive(request, response)
    })
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
  const deliver = async (): Promise<Delivery> => {
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
        'query ($query: MangoQuery) { deliveries(query: $query) ' +
          '{ id eventId webhookId createdAt status handledBefore attempts { statusCode failure } } }',
        { query: { selector } },
      )
      return found.data.deliveries[0]
    }
    return eventually('the delivery to come to an end', look, delivery => delivery && delivery.status !== 'pending')
  }
  const codes = ({ attempts }: Delivery) => attempts.map(attempt => attempt.statusCode ?? attempt.failure)

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

  /** How many events a recovery of all since a delivery queues. */
  const recover = async ({ webhookId, createdAt }: Delivery): Promise<number> => {
    const { data } = await server.graphql(
      'mutation ($id: UUID!, $since: DateTime!) { recoverDeliveries(webhookId: $id, since: $since) { queued } }',
      { id: webhookId, since: createdAt },
    )
    return data.recoverDeliveries.queued
  }

  test('is told the event’s own id, and may check the body by its digest', async () => {
    handle = (event, { token }) => events.push({ ...event, ...token.claims } as never)
    const { id, eventId } = await deliver()
    const [event] = events as (TidingsEvent & { body_sha256: string })[]
    assert.deepEqual([event!.id, event!.eventId], [eventId, id])
    assert.equal(
      headers['content-digest'],
      `sha-256=:${Buffer.from(event!.body_sha256, 'base64url').toString('base64')}:`,
    )
  })

  test('that has handled an event and whose answer is lost is not given it again, by a recovery either', async () => {
    handle = (event, { request }) => {
      events.push(event)
      const { socket } = request as unknown as IncomingMessage
      socket.destroy()
    }
    const delivery = await deliver()
    assert.deepEqual(codes(delivery), ['connection_reset', 401])
    assert.deepEqual([delivery.status, delivery.handledBefore], ['rejected', true])
    assert.equal(await recover(delivery), 0)
    assert.equal(events.length, 1)
  })

  test('that is slower than its time limit is not given the event again once it has handled it', async () => {
    handle = async (event, { signal }) => {
      events.push(event)
      await once(signal, 'abort')
    }
    const delivery = await deliver()
    assert.deepEqual(codes(delivery), [503, 401])
    assert.equal(delivery.handledBefore, true)
    assert.equal(await recover(delivery), 0)
    assert.equal(events.length, 1)
  })

  test('that failed, and takes the retry for a replay, has lost the event: a recovery sends it again', async () => {
    const answers = [500, 401]
    answering = response => {
      response.writeHead(answers.shift() ?? 200, {
        'www-authenticate': 'Bearer error="invalid_token", error_description="replay"',
      })
      response.end()
    }
    const delivery = await deliver()
    assert.deepEqual(codes(delivery), [500, 401])
    assert.deepEqual([delivery.status, delivery.handledBefore], ['rejected', false])
    assert.equal(await recover(delivery), 1)
    answering = undefined
  })

  test('that refuses a delivery at once is given it again by a recovery', async () => {
    handle = event => events.push(event)
    const delivery = await deliver()
    await server.database.knex('deliveries').where({ id: delivery.id }).update({ status: 'rejected' })
    assert.equal(await recover(delivery), 1)
  })
})
