import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { createServer as createHttpsServer } from 'node:https'
import { describe, it, type TestContext } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { getCACertificates, setDefaultCACertificates } from 'node:tls'
import { keptHeaders, ownHeaders } from '../../server/delivery/evidence.ts'
import { createNetworkGuard } from '../../server/delivery/network-guard.ts'
import { createSender } from '../../server/delivery/send.ts'
import { listening } from './listening.ts'
import { cert, key } from './localhost-certificate.ts'

const senderFor = (t: TestContext, attemptTimeoutMs = 5_000) => {
  const sender = createSender({
    guard: createNetworkGuard({ allow: ['127.0.0.0/8', '::1'] }),
    lookup: (_host, _options, callback) => {
      setImmediate().then(() => callback(null, [{ address: '127.0.0.1', family: 4 }]))
    },
    attemptTimeoutMs,
  })
  t.after(() => sender.close())
  return sender
}

const request = {
  headers: { 'content-type': 'application/json', authorization: 'Bearer secret', 'x-of-the-owner': 'secret' },
  body: '{}',
}

describe('the evidence of an attempt', () => {
  it('has the address, the version and the headers of both sides, without the token', async t => {
    const server = createServer((_request, response) => {
      response.writeHead(200, { server: 'ledger/2', 'set-cookie': 'a=b', date: 'D' }).end('ok')
    })
    const { durationMs, evidence } = await senderFor(t).send({
      url: `http://localhost:${await listening(t, server)}/`,
      ...request,
    })
    const { phases, responseHeaders, ...rest } = evidence!
    assert.deepEqual(rest, {
      remoteAddress: '127.0.0.1',
      httpVersion: '1.1',
      requestHeaders: { 'content-type': 'application/json' },
    })
    assert.equal(responseHeaders!.server, 'ledger/2')
    assert.equal('set-cookie' in responseHeaders!, false)
    assert.deepEqual(Object.keys(phases!), ['lookupMs', 'connectMs', 'firstByteMs'])
    for (const ms of Object.values(phases!)) assert.ok(ms >= 0 && ms <= durationMs, String(ms))
  })

  it('has the phases of the connection for its first request only, the TLS handshake among them', async t => {
    const before = getCACertificates('default')
    setDefaultCACertificates([...before, cert])
    t.after(() => setDefaultCACertificates(before))
    const server = createHttpsServer({ key, cert }, (_request, response) => void response.end('ok'))
    const url = `https://localhost:${await listening(t, server)}/`
    const sender = senderFor(t)
    const first = await sender.send({ url, ...request })
    await setImmediate()
    const second = await sender.send({ url, ...request })
    assert.deepEqual(Object.keys(first.evidence!.phases!), ['lookupMs', 'connectMs', 'tlsMs', 'firstByteMs'])
    assert.deepEqual(Object.keys(second.evidence!.phases!), ['firstByteMs'])
    assert.equal(second.evidence!.remoteAddress, '127.0.0.1')
  })

  it('is there for a request without an answer, and not for one without a connection', async t => {
    const silent = createServer(() => {})
    const sender = senderFor(t, 300)
    const { evidence } = await sender.send({ url: `http://127.0.0.1:${await listening(t, silent)}/`, ...request })
    assert.equal(evidence!.remoteAddress, '127.0.0.1')
    assert.equal(evidence!.responseHeaders, undefined)
    assert.deepEqual(Object.keys(evidence!.phases!), ['connectMs'])
    const refused = await sender.send({ url: 'http://10.0.0.1/', ...request })
    assert.equal(refused.evidence, undefined)
  })
})

describe('the headers of an answer that are kept', () => {
  it('carry no cookies and no credentials, by name or by value', () => {
    const headers = {
      'set-cookie': ['a=1', 'b=2'],
      'authentication-info': 'x',
      'x-auth-token': 'x',
      'x-api-key': 'x',
      'x-api_key': 'x',
      'x-access-key': 'x',
      'x-auth': 'x',
      sid: 'x',
      'proxy-authenticate': 'Negotiate TlRMTVNTUAABAAAA',
      'x-echo': 'Bearer eyJhbGciOi.eyJpc3Mi.c2ln',
      'x-raw': 'eyJhbGciOi.eyJpc3Mi.c2ln',
      location: 'https://user:pass@b.example/next?key=1#a',
      'www-authenticate': 'Bearer error="invalid_token", error_description="replay"',
      via: ['1.1 a', '1.1 b'],
    }
    assert.deepEqual(
      { ...keptHeaders(headers) },
      {
        location: 'https://b.example/next',
        'www-authenticate': 'Bearer error="invalid_token", error_description="replay"',
        via: '1.1 a, 1.1 b',
      },
    )
  })

  it('are not those of the connection, which leave more room for others', () => {
    const of = { connection: 'keep-alive', 'keep-alive': 'timeout=5', 'transfer-encoding': 'chunked', date: 'd' }
    assert.deepEqual({ ...keptHeaders(of) }, { date: 'd' })
  })

  it('are at most 16, and at most 2 KiB', () => {
    const many = Object.fromEntries(Array.from({ length: 40 }, (_, index) => [`x-${index}`, 'v']))
    assert.equal(Object.keys(keptHeaders(many)).length, 16)
    const long = { a: 'v'.repeat(1_000), b: 'v'.repeat(1_000), c: 'v'.repeat(1_000) }
    assert.deepEqual(Object.keys(keptHeaders(long)), ['a', 'b'])
  })
})

it('the headers of a request that are kept are those that Tidings sets, without its token', () => {
  const headers = { authorization: 'Bearer t', 'x-key': 'k', 'webhook-id': 'i', 'webhook-signature': 's' }
  assert.deepEqual(ownHeaders(headers), { 'webhook-id': 'i' })
})
