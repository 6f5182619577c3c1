import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { buffer } from 'node:stream/consumers'
import { after, before, describe, it } from 'node:test'
import { createAccessToken } from '../../server/domain/access-tokens.ts'
import { createSealer } from '../../server/keys/seal.ts'
import { wantsTraces } from '../../server/tracing/load.ts'
import { type Credentials, signRequest } from '../../shared/hmac.ts'
import { masterKey, type ServerProcess, startServerProcess } from '../delivery/server-process.ts'
import { describeEachEngine, migratedDatabase, type TestDatabase } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { addProject, startTestServer, type TestServer } from '../support/server.ts'

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736'
const CALLER = '00f067aa0ba902b7'
const TRACEPARENT = `00-${TRACE}-${CALLER}-01`

const send = async (base: string, credentials: Credentials, query: string, traceparent?: string): Promise<void> => {
  const url = new URL('/graphql', base)
  const body = JSON.stringify({ query })
  const signed = signRequest({ method: 'POST', url, body, credentials, at: new Date() })
  const headers = { ...signed, 'content-type': 'application/json', ...(traceparent && { traceparent }) }
  const response = await fetch(url, { method: 'POST', headers, body })
  const { errors } = (await response.json()) as { errors?: unknown }
  assert.equal(errors, undefined, JSON.stringify(errors))
}

const submit = ({ projectId, userId }: { projectId: string; userId: string }, quarter: string): string =>
  `mutation { submitProjectReport(projectId: "${projectId}", quarter: "${quarter}", submitterId: "${userId}") { id } }`
const register = (url: string): string => `mutation { createWebhook(url: "${url}") { id } }`

describeEachEngine("a caller's trace", engine => {
  let server: TestServer
  let receiver: Receiver
  let token: Credentials
  let ids: { projectId: string; userId: string }
  before(async () => {
    server = await startTestServer(engine)
    receiver = await startReceiver({ answer: (_request, n) => ({ status: n === 2 ? 500 : 200 }) })
    token = await server.token()
    ids = await addProject(server.database)
  })
  after(async () => {
    await server?.stop()
    await receiver?.close()
  })

  it('goes on to the receivers of what the request has caused: by each attempt, and by a redelivery', async () => {
    await send(server.url, token, register(receiver.url), TRACEPARENT)
    await send(server.url, token, submit(ids, '2026-1'), TRACEPARENT)
    await receiver.waitFor(requests => requests.length === 3)
    const { id } = await server.database.knex('deliveries').whereNot({ event_type: 'ping' }).first()
    await send(server.url, token, `mutation { redeliver(deliveryId: "${id}") { id } }`)
    const requests = await receiver.waitFor(requests => requests.length === 4)
    assert.deepEqual(
      requests.map(({ headers }) => headers.traceparent),
      [TRACEPARENT, TRACEPARENT, TRACEPARENT, TRACEPARENT],
    )
  })

  it('is none where the caller sends none, or what is none', async () => {
    const before = receiver.requests.length
    await send(server.url, token, submit(ids, '2025-1'))
    await send(server.url, token, submit(ids, '2025-2'), 'mine')
    await send(server.url, token, submit(ids, '2025-3'), `00-${'0'.repeat(32)}-${CALLER}-01`)
    const requests = await receiver.waitFor(requests => requests.length === before + 3)
    assert.deepEqual(
      requests.slice(before).map(({ headers }) => headers.traceparent),
      [undefined, undefined, undefined],
    )
  })
})

describe('OpenTelemetry', () => {
  it('is loaded where its variables ask for it, and else not', () => {
    assert.equal(wantsTraces({}), false)
    assert.equal(wantsTraces({ OTEL_SERVICE_NAME: 'x' }), false)
    const endpoint = { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://collector:4318' }
    assert.equal(wantsTraces(endpoint), true)
    assert.equal(wantsTraces({ OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: 'http://collector:4318/v1/traces' }), true)
    assert.equal(wantsTraces({ OTEL_TRACES_EXPORTER: 'otlp' }), true)
    assert.equal(wantsTraces({ ...endpoint, OTEL_TRACES_EXPORTER: 'none' }), false)
    assert.equal(wantsTraces({ ...endpoint, OTEL_SDK_DISABLED: 'true' }), false)
  })

  describe('in a server that is asked for traces', () => {
    const spans: Span[] = []
    const collector = createServer(async (request, response) => {
      if (request.url === '/v1/traces') spans.push(...spansOf(await buffer(request)))
      response.setHeader('content-type', 'application/x-protobuf').end()
    })
    let given: TestDatabase
    let server: ServerProcess
    let receiver: Receiver
    let token: Credentials & { id: string }
    before(async () => {
      await new Promise<void>(resolve => collector.listen(0, '127.0.0.1', resolve))
      given = await migratedDatabase('sqlite')
      const sealer = createSealer([Buffer.from(masterKey, 'base64')])
      token = await given.database.transaction(trx =>
        createAccessToken(trx, sealer, { name: 'traced', permissions: ['admin'] }, Date.now()),
      )
      server = await startServerProcess(given.url, {
        OTEL_EXPORTER_OTLP_ENDPOINT: `http://127.0.0.1:${(collector.address() as AddressInfo).port}`,
        OTEL_BSP_SCHEDULE_DELAY: '100',
        TIDINGS_LOG_LEVEL: 'info',
      })
      receiver = await startReceiver({ answer: (_request, n) => ({ status: n === 2 ? 500 : 200 }) })
    })
    after(async () => {
      await server?.end('SIGKILL')
      await receiver?.close()
      await given?.drop()
      collector.closeAllConnections()
      collector.close()
    })

    it('spans lead from the request by the mutation and its event to each attempt', async () => {
      await send(server.url, token, register(receiver.url))
      await send(server.url, token, submit(await addProject(given.database), '2026-1'), TRACEPARENT)
      const ours = await eventually(
        'all spans of the trace',
        () => spans.filter(({ traceId }) => traceId === TRACE),
        found => found.length === 5,
      )
      const named = (name: string) => ours.filter(span => span.name === name)
      const [request] = named('POST /graphql')
      const [mutation] = named('mutation submitProjectReport')
      const [event] = named('event project_report_quarterly_submitted')
      const attempts = named('deliver project_report_quarterly_submitted')
      assert.equal(request!.parent, CALLER)
      assert.equal(mutation!.parent, request!.id)
      assert.equal(event!.parent, mutation!.id)
      assert.deepEqual(
        attempts.map(({ parent }) => parent),
        [event!.id, event!.id],
      )
      const sent = receiver.requests.slice(1).map(({ headers }) => headers.traceparent)
      assert.deepEqual(sent.toSorted(), attempts.map(({ id }) => `00-${TRACE}-${id}-01`).toSorted())
    })

    it("a request's line of the log names its trace, and its span the request and the token", () => {
      const line = server
        .log()
        .split('\n')
        .find(text => text.includes('"operation":"submitProjectReport"'))
      const { traceId, requestId } = JSON.parse(line!)
      assert.equal(traceId, TRACE)
      const span = spans.find(found => found.traceId === TRACE && found.name === 'POST /graphql')
      assert.equal(span!.attributes['tidings.request.id'], requestId)
      assert.equal(span!.attributes['tidings.token.id'], token.id)
    })
  })
})

type Span = {
  traceId: string
  id: string
  parent: string
  name: string
  /** Those that are text. */
  attributes: Record<string, string>
}

/** The fields of a protobuf message: bytes of those that have a length. */
const fieldsOf = (message: Buffer): { field: number; bytes: Buffer }[] => {
  const found: { field: number; bytes: Buffer }[] = []
  let at = 0
  const varint = (): number => {
    let value = 0
    for (let shift = 1; ; shift *= 128) {
      const byte = message[at++]!
      value += (byte & 127) * shift
      if (byte < 128) return value
    }
  }
  while (at < message.length) {
    const key = varint()
    const type = key & 7
    if (type === 0) varint()
    else if (type === 1) at += 8
    else if (type === 5) at += 4
    else {
      const length = varint()
      found.push({ field: key >> 3, bytes: message.subarray(at, at + length) })
      at += length
    }
  }
  return found
}

/** What an ExportTraceServiceRequest holds: resource spans (1), their scope spans (2), their spans (2). */
const spansOf = (request: Buffer): Span[] => {
  const parts = (message: Buffer, wanted: number) =>
    fieldsOf(message).flatMap(({ field, bytes }) => (field === wanted ? [bytes] : []))
  return parts(request, 1)
    .flatMap(resource => parts(resource, 2))
    .flatMap(scope => parts(scope, 2))
    .map(span => ({
      traceId: parts(span, 1)[0]!.toString('hex'),
      id: parts(span, 2)[0]!.toString('hex'),
      parent: parts(span, 4)[0]?.toString('hex') ?? '',
      name: parts(span, 5)[0]!.toString(),
      attributes: Object.fromEntries(
        parts(span, 9).map(attribute => [
          parts(attribute, 1)[0]!.toString(),
          parts(parts(attribute, 2)[0]!, 1)[0]?.toString() ?? '',
        ]),
      ),
    }))
}
