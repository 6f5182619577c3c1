import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { createServer, request } from 'node:http'
import { createServer as createHttp2Server } from 'node:http2'
import { type AddressInfo, createServer as createTcpServer } from 'node:net'
import { after, test } from 'node:test'
import { type Arrival, type LocalReceiverOptions, startLocalReceiver } from '../../cli/listen/receiver.ts'
import { parseScriptedResponses } from '../../cli/listen/scripted-responses.ts'
import { eventually } from '../support/eventually.ts'
import { startIssuer } from './issuer.ts'

const issuer = await startIssuer()
const TRACE = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'

const start = async (options: Partial<LocalReceiverOptions> = {}) => {
  const arrivals: Arrival[] = []
  const receiver = await startLocalReceiver({
    port: 0,
    path: '/hooks',
    keysUrl: `${issuer.url}/.well-known/jwks.json`,
    issuer: issuer.url,
    onDelivery: arrival => arrivals.push(arrival),
    ...options,
  })
  after(() => receiver.close())
  return { ...receiver, arrivals }
}

test('a delivery that is valid is answered 200 and told of', async () => {
  const { url, arrivals } = await start()
  const eventId = randomUUID()
  assert.equal((await issuer.deliver(url, { eventId })).status, 200)
  assert.equal(arrivals.length, 1)
  assert.equal(arrivals[0]!.verification?.ok, true)
  assert.equal(arrivals[0]!.eventId, eventId)
})

test('an event that was handled is refused the second time', async () => {
  const { url } = await start()
  const eventId = randomUUID()
  assert.equal((await issuer.deliver(url, { eventId })).status, 200)
  const second = await issuer.deliver(url, { eventId })
  assert.equal(second.status, 401)
  assert.match(((await second.json()) as { error: string }).error, /^replay/)
})

test('of five requests of one delivery at once, one is handled and none of the others acknowledged', async () => {
  for (const options of [{}, { delayMs: 50 }]) {
    const { url, arrivals } = await start(options)
    const eventId = randomUUID()
    const all = await Promise.all(Array.from({ length: 5 }, () => issuer.deliver(url, { eventId })))
    const statuses = all.map(({ status }) => status)
    assert.equal(statuses.filter(status => status === 200).length, 1, `${statuses}`)
    assert.ok(
      statuses.every(status => [200, 401, 503].includes(status)),
      `${statuses}`,
    )
    assert.equal(arrivals.filter(({ answered }) => answered === 200).length, 1)
    assert.equal((await issuer.deliver(url, { eventId })).status, 401)
  }
})

test('a retry after the receiver’s own 500 is not taken for a replay', async () => {
  const { url } = await start({ responses: parseScriptedResponses('500,200') })
  const eventId = randomUUID()
  assert.equal((await issuer.deliver(url, { eventId })).status, 500)
  assert.equal((await issuer.deliver(url, { eventId })).status, 200)
})

test('a delivery whose sender has hung up is not handled, and its retry is', async () => {
  const { url, arrivals } = await start({ delayMs: 1000 })
  const eventId = randomUUID()
  await assert.rejects(issuer.deliver(url, { eventId, signal: AbortSignal.timeout(400) }))
  await eventually(
    'the arrival to be told',
    () => arrivals,
    all => all.length > 0,
  )
  assert.match(arrivals[0]!.reason!, /^The sender hung up/)
  assert.equal((await issuer.deliver(url, { eventId })).status, 200)
})

test('a token for another endpoint is refused with 401, and why', async () => {
  const { url, arrivals } = await start()
  const response = await issuer.deliver(url, { audience: 'https://example.com/other' })
  assert.equal(response.status, 401)
  assert.match(response.headers.get('www-authenticate')!, /^Bearer error="invalid_token"/)
  assert.match(arrivals[0]!.reason!, /audience: expected "http/)
})

test('a request without a token is refused', async () => {
  const { url } = await start()
  assert.equal((await fetch(url, { method: 'POST', body: '{}' })).status, 401)
})

test('answers are given in order, and the last one stays', async () => {
  const { url } = await start({ responses: parseScriptedResponses('500,429:30,204') })
  const responses = [
    await issuer.deliver(url),
    await issuer.deliver(url),
    await issuer.deliver(url),
    await issuer.deliver(url),
  ]
  assert.deepEqual(
    responses.map(response => response.status),
    [500, 429, 204, 204],
  )
  assert.equal(responses[1]!.headers.get('retry-after'), '30')
})

test('a ping is answered 200 and takes no answer from the rehearsal', async () => {
  const { url } = await start({ responses: parseScriptedResponses('500') })
  assert.equal((await issuer.deliver(url, { eventType: 'ping' })).status, 200)
  assert.equal((await issuer.deliver(url)).status, 500)
})

test('an invalid delivery takes no answer from the rehearsal', async () => {
  const { url } = await start({ responses: parseScriptedResponses('500,200') })
  assert.equal((await issuer.deliver(url, { audience: 'https://b' })).status, 401)
  assert.equal((await issuer.deliver(url)).status, 500)
})

test('a connection is broken off with “reset”', async () => {
  const { url, arrivals } = await start({ responses: parseScriptedResponses('reset') })
  await assert.rejects(issuer.deliver(url))
  assert.equal(arrivals[0]!.answered, 'reset')
})

test('a delivery is left waiting with “hang” until the receiver closes', async () => {
  const { url, arrivals, close } = await start({
    responses: parseScriptedResponses('hang'),
    onDelivery: arrival => {
      arrivals.push(arrival)
      void close()
    },
  })
  await assert.rejects(issuer.deliver(url))
  assert.equal(arrivals[0]!.answered, 'hang')
})

test('keys that cannot be had are answered 503, so that the delivery is tried again', async () => {
  const { url } = await start({ keysUrl: 'http://127.0.0.1:1/jwks.json' })
  assert.equal((await issuer.deliver(url)).status, 503)
})

test('what is valid is forwarded whole, and its answer passed back; what is not valid is not', async () => {
  const forwarded: { authorization: string | undefined; traceparent: unknown; body: string }[] = []
  const local = createServer(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk)
    const { authorization, traceparent } = request.headers
    forwarded.push({ authorization, traceparent, body: Buffer.concat(chunks).toString() })
    response.writeHead(429, { 'retry-after': '7' }).end('later')
  })
  await new Promise<void>(resolve => local.listen(0, '127.0.0.1', resolve))
  after(() => {
    local.closeAllConnections()
    local.close()
  })
  const { url, arrivals } = await start({
    forward: new URL(`http://127.0.0.1:${(local.address() as AddressInfo).port}/x`),
  })
  await issuer.deliver(url, { audience: 'https://b' })
  assert.equal(forwarded.length, 0)
  const response = await issuer.deliver(url, { headers: { traceparent: TRACE } })
  assert.equal(response.status, 429)
  assert.equal(response.headers.get('retry-after'), '7')
  assert.equal(await response.text(), 'later')
  assert.equal(forwarded[0]!.traceparent, TRACE)
  assert.match(forwarded[0]!.authorization!, /^Bearer /)
  assert.equal(forwarded[0]!.body, arrivals[1]!.body)
})

test('what is forwarded reaches a program that speaks only HTTP/2 without TLS, with its trace, once each', async () => {
  const forwarded: unknown[] = []
  const local = createHttp2Server(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk)
    forwarded.push([request.headers.traceparent, Buffer.concat(chunks).toString()])
    response.writeHead(202).end()
  })
  await new Promise<void>(resolve => local.listen(0, '127.0.0.1', resolve))
  after(() => local.close())
  const { url, arrivals } = await start({
    forward: new URL(`http://127.0.0.1:${(local.address() as AddressInfo).port}/x`),
  })
  for (let n = 0; n < 2; n++) {
    assert.equal((await issuer.deliver(url, { headers: { traceparent: TRACE } })).status, 202)
  }
  assert.deepEqual(
    forwarded,
    arrivals.map(({ body }) => [TRACE, body]),
  )
})

test('a program that breaks HTTP is not asked twice', async () => {
  let asked = 0
  const local = createTcpServer(socket =>
    socket
      .on('error', () => {})
      .once('data', () => {
        asked += 1
        socket.end('\0\0 no answer')
      }),
  )
  await new Promise<void>(resolve => local.listen(0, '127.0.0.1', resolve))
  after(() => local.close())
  const { url } = await start({ forward: new URL(`http://127.0.0.1:${(local.address() as AddressInfo).port}/x`) })
  assert.equal((await issuer.deliver(url)).status, 502)
  assert.equal(asked, 1)
})

test('a program behind it that does not answer is told as 502', async () => {
  const { url, arrivals } = await start({ forward: new URL('http://127.0.0.1:1/x') })
  assert.equal((await issuer.deliver(url)).status, 502)
  assert.match(arrivals[0]!.reason!, /did not answer/)
})

test('another path is 404 and another method 405, and both are told of', async () => {
  const { url, arrivals } = await start()
  assert.equal((await fetch(`${url}/else`, { method: 'POST' })).status, 404)
  assert.equal((await fetch(url)).status, 405)
  assert.deepEqual(
    arrivals.map(arrival => arrival.answered),
    [404, 405],
  )
})

test('of what nobody has vouched for a little is told, however long it is', async () => {
  const { url, arrivals } = await start()
  const long = 'x'.repeat(200_000)
  const body = JSON.stringify({ eventId: long, eventType: long })
  await fetch(url, { method: 'POST', body, headers: { authorization: 'Bearer abc.def.ghi' } })
  const [{ eventId, eventType, reason }] = arrivals as [Arrival]
  assert.deepEqual([eventId, eventType], [`${'x'.repeat(64)}…`, `${'x'.repeat(64)}…`])
  assert.ok((reason ?? '').length < 5_000)
})

test('a body beyond 1 MiB is answered 413', async () => {
  const { url } = await start()
  const response = await fetch(url, { method: 'POST', body: 'x'.repeat(1024 * 1024 + 1) })
  assert.equal(response.status, 413)
})

test('a sender that hangs up halfway does not end the receiver', async () => {
  const { url } = await start()
  const half = request(url, { method: 'POST', headers: { 'content-length': 100 } })
  half.on('error', () => {})
  half.write('{')
  await new Promise(resolve => half.once('socket', socket => socket.once('connect', () => setImmediate(resolve))))
  half.destroy()
  assert.equal((await issuer.deliver(url)).status, 200)
})

test('a port that is taken says so', async () => {
  const { url } = await start()
  await assert.rejects(start({ port: Number(new URL(url).port) }), /is in use by another program/)
})

test('what is no answer to rehearse is named', () => {
  assert.throws(() => parseScriptedResponses('500,20O'), /"20O" is not an answer to rehearse/)
})
