import assert from 'node:assert/strict'
import { createServer as createHttpServer, type IncomingMessage } from 'node:http'
import { type AddressInfo, createServer, type Socket } from 'node:net'
import { after, describe, it, type TestContext } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { createServer as createTlsServer, getCACertificates, setDefaultCACertificates } from 'node:tls'
import type { Lookup } from '../../server/delivery/names.ts'
import { createNetworkGuard, type NetworkGuard } from '../../server/delivery/network-guard.ts'
import { createSender, type Sender } from '../../server/delivery/send.ts'
import { startAlone } from '../support/pace.ts'
import { listening } from './listening.ts'
import { cert, key } from './localhost-certificate.ts'

const loopback = createNetworkGuard({ allow: ['127.0.0.0/8', '::1'] })
const headers = { 'content-type': 'application/json', authorization: 'Bearer t', 'user-agent': 'Tidings/test' }
const body = '{"eventType":"ping"}'

const patient = createSender({ guard: loopback })
const hasty = createSender({ guard: loopback, attemptTimeoutMs: 300 })
after(() => Promise.all([patient.close(), hasty.close()]))

/** A receiver that, once a request has begun to arrive, does with the connection what it likes. */
const tcp = async (t: TestContext, onRequest: (socket: Socket) => void): Promise<string> => {
  const server = createServer(socket => socket.once('data', () => onRequest(socket)))
  return `http://127.0.0.1:${await listening(t, server)}/hook`
}

const send = (url: string, sender: Sender = patient) => sender.send({ url, headers, body })
const outcomeOf = async (url: string, sender: Sender = patient) => {
  const answer = await send(url, sender)
  return answer.kind === 'response' ? answer.statusCode : answer.reason
}

describe('an attempt', () => {
  it('posts headers and body to path and query, and tells what was answered', async t => {
    let seen: { request?: IncomingMessage; body?: string } = {}
    const server = createHttpServer(async (request, response) => {
      const chunks: Buffer[] = []
      for await (const chunk of request) chunks.push(chunk)
      seen = { request, body: Buffer.concat(chunks).toString() }
      response.writeHead(429, { 'retry-after': '30' }).end('später')
    })
    const port = await listening(t, server)
    const beganAt = performance.now()
    const { durationMs, evidence: _, ...answer } = await send(`http://127.0.0.1:${port}/hook?a=1#fragment`)

    assert.deepEqual(answer, { kind: 'response', statusCode: 429, retryAfter: '30', body: 'später' })
    assert.ok(durationMs > 0 && durationMs <= performance.now() - beganAt)
    assert.equal(`${seen.request!.method} ${seen.request!.url}`, 'POST /hook?a=1')
    assert.equal(seen.request!.headers.authorization, 'Bearer t')
    assert.equal(seen.request!.headers.host, `127.0.0.1:${port}`)
    assert.equal(seen.request!.headers['content-length'], String(body.length))
    assert.equal(seen.body, body)
  })

  it('does not follow redirects', async t => {
    let requests = 0
    const server = createHttpServer((_request, response) => {
      requests++
      response.writeHead(307, { location: '/elsewhere' }).end()
    })
    assert.equal(await outcomeOf(`http://127.0.0.1:${await listening(t, server)}/`), 307)
    assert.equal(requests, 1)
  })

  it('reuses the connection of the one before', async t => {
    let connections = 0
    const server = createHttpServer((_request, response) => void response.end('ok'))
    server.on('connection', () => connections++)
    const url = `http://127.0.0.1:${await listening(t, server)}/`
    for (let count = 0; count < 5; count++) {
      await send(url)
      // undici looks for a moment whether the server closes before it reuses a connection.
      await setImmediate()
    }
    assert.equal(connections, 1)
  })

  it('never opens more connections to an origin than its share', async t => {
    let connections = 0
    const server = createHttpServer((_request, response) => void setTimeout(() => response.end('ok'), 20))
    server.on('connection', () => connections++)
    const url = `http://127.0.0.1:${await listening(t, server)}/`
    const sender = createSender({ guard: loopback, maxConnectionsPerOrigin: 3 })
    t.after(() => sender.close())
    const answers = await Promise.all(Array.from({ length: 12 }, () => outcomeOf(url, sender)))
    assert.deepEqual(answers, Array(12).fill(200))
    assert.equal(connections, 3)
  })

  it('to an endpoint that hangs leaves the attempts to others as quick as they were', async t => {
    const open: Socket[] = []
    let isOver = false
    const hanging = await tcp(t, socket => void (isOver ? socket.destroy() : open.push(socket)))
    const quick = createHttpServer((_request, response) => void response.end('ok'))
    const url = `http://127.0.0.1:${await listening(t, quick)}/`
    let ended = 0
    const hung = Array.from({ length: 100 }, () => outcomeOf(hanging).finally(() => (ended += 1)))
    const tookMs = startAlone()
    assert.equal((await send(url)).kind, 'response')
    assert.ok(tookMs() < 300)
    assert.equal(ended, 0, 'none of those that hang has ended before')
    isOver = true
    for (const socket of open) socket.destroy()
    assert.deepEqual(await Promise.all(hung), Array(100).fill('connection_reset'))
  })
})

describe('the answer that is kept', () => {
  const answering = async (t: TestContext, bytes: Buffer) => {
    const server = createHttpServer((_request, response) => void response.end(bytes))
    const answer = await send(`http://127.0.0.1:${await listening(t, server)}/`)
    return answer.kind === 'response' ? answer.body : answer.reason
  }

  it('is its first KiB', async t => {
    assert.equal(await answering(t, Buffer.from(`${'a'.repeat(1024)}b`)), 'a'.repeat(1024))
  })

  it('is all of it up to a KiB', async t => {
    assert.equal(await answering(t, Buffer.from('a'.repeat(1024))), 'a'.repeat(1024))
  })

  it('does not end in half a character', async t => {
    assert.equal(await answering(t, Buffer.from(`${'a'.repeat(1022)}€€`)), 'a'.repeat(1022))
  })

  it('is text, whatever bytes were sent', async t => {
    assert.equal(await answering(t, Buffer.from([0x61, 0xff, 0xe2, 0x82])), 'a\ufffd\ufffd')
  })

  it('stays the beginning when it comes in pieces', async t => {
    const url = await tcp(t, async socket => {
      socket.write('HTTP/1.1 200 OK\r\nContent-Length: 1500\r\n\r\n')
      for (const letter of ['a', 'b', 'c']) {
        socket.write(letter.repeat(500))
        await new Promise(resolve => setTimeout(resolve, 10))
      }
    })
    const answer = await send(url)
    assert.equal(answer.kind === 'response' && answer.body, `${'a'.repeat(500)}${'b'.repeat(500)}${'c'.repeat(24)}`)
  })
})

describe('a status that has arrived counts', () => {
  it('when the body never ends: it is not read on, and the connection is given up', async t => {
    let sent = 0
    const closed = Promise.withResolvers<void>()
    const url = await tcp(t, socket => {
      socket.on('close', () => closed.resolve())
      socket.write('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n')
      const chunk = `4000\r\n${'x'.repeat(0x4000)}\r\n`
      const pour = () => {
        while (!socket.destroyed && socket.write(chunk)) sent += chunk.length
      }
      socket.on('drain', pour)
      pour()
    })
    const answer = await send(url)
    assert.equal(answer.kind === 'response' && answer.statusCode, 200)
    assert.equal(answer.kind === 'response' && answer.body, 'x'.repeat(1024))
    await closed.promise
    assert.equal(sent < 32 * 1024 * 1024, true)
  })

  it('when the body trickles until the time is over', async t => {
    const url = await tcp(t, socket => {
      socket.write('HTTP/1.1 202 Accepted\r\nContent-Length: 100000\r\n\r\n')
      const timer = setInterval(() => socket.write('x'), 20)
      socket.on('close', () => clearInterval(timer))
    })
    const tookMs = startAlone()
    const answer = await send(url, hasty)
    assert.ok(tookMs() < 2_000)
    assert.equal(answer.kind === 'response' && answer.statusCode, 202)
    assert.ok(answer.durationMs >= 290)
  })

  it('when the connection is reset within the body', async t => {
    const url = await tcp(t, socket => {
      socket.write('HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\npart', () =>
        setTimeout(() => socket.resetAndDestroy(), 30),
      )
    })
    const { durationMs: _, evidence: __, ...answer } = await send(url)
    assert.deepEqual(answer, { kind: 'response', statusCode: 200, body: 'part' })
  })

  it('when the body is shorter than its Content-Length', async t => {
    const url = await tcp(t, socket => void socket.end('HTTP/1.1 500 Oops\r\nContent-Length: 1000\r\n\r\npart'))
    assert.equal(await outcomeOf(url), 500)
  })

  it('when the body is longer than its Content-Length', async t => {
    const url = await tcp(
      t,
      socket => void socket.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and much more'),
    )
    const { durationMs: _, evidence: __, ...answer } = await send(url)
    assert.deepEqual(answer, { kind: 'response', statusCode: 200, body: 'ok' })
  })

  it('when the body ends with the connection', async t => {
    const url = await tcp(t, socket => void socket.end('HTTP/1.0 200 OK\r\n\r\nold'))
    const { durationMs: _, evidence: __, ...answer } = await send(url)
    assert.deepEqual(answer, { kind: 'response', statusCode: 200, body: 'old' })
  })

  it('after announcements (1XX), which are no answer', async t => {
    const url = await tcp(t, socket => {
      socket.write('HTTP/1.1 103 Early Hints\r\nRetry-After: 5\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n')
    })
    const { durationMs: _, evidence: __, ...answer } = await send(url)
    assert.deepEqual(answer, { kind: 'response', statusCode: 204, body: '' })
  })

  it('with the first of several Retry-After', async t => {
    const url = await tcp(t, socket => {
      socket.write('HTTP/1.1 429 Slow Down\r\nRetry-After: 5\r\nRetry-After: 9\r\nContent-Length: 0\r\n\r\n')
    })
    const answer = await send(url)
    assert.equal(answer.kind === 'response' && answer.retryAfter, '5')
  })
})

describe('no usable answer', () => {
  const hostile: [string, string, (socket: Socket) => void][] = [
    ['a status line that is garbage', 'malformed_response', socket => void socket.write('HELLO WORLD\r\n\r\n')],
    ['HTTP/0.9', 'malformed_response', socket => void socket.end('<html>hello</html>')],
    ['a status that is no number', 'malformed_response', socket => void socket.write('HTTP/1.1 abc OK\r\n\r\n')],
    ['binary noise', 'malformed_response', socket => void socket.write(Buffer.alloc(4096, 0x80))],
    [
      'a TLS alert over plain HTTP',
      'malformed_response',
      socket => void socket.end(Buffer.from('15030300020228', 'hex')),
    ],
    [
      'a header that is huge',
      'malformed_response',
      socket => void socket.write(`HTTP/1.1 200 OK\r\nX: ${'a'.repeat(100_000)}\r\n\r\n`),
    ],
    [
      'two lengths that contradict each other',
      'malformed_response',
      socket => void socket.write('HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab'),
    ],
    [
      'a length beside chunks',
      'malformed_response',
      socket =>
        void socket.write('HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n'),
    ],
    [
      'a change of protocol',
      'malformed_response',
      socket => void socket.write('HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n'),
    ],
    [
      '100 Continue that nobody expected',
      'malformed_response',
      socket => void socket.write('HTTP/1.1 100 Continue\r\n\r\n'),
    ],
    ['a close without a word', 'connection_reset', socket => void socket.end()],
    ['a reset without a word', 'connection_reset', socket => void socket.resetAndDestroy()],
    ['a close within the headers', 'connection_reset', socket => void socket.end('HTTP/1.1 200 OK\r\nContent-')],
    ['silence', 'timeout', () => {}],
    ['1XX and nothing after', 'timeout', socket => void socket.write('HTTP/1.1 103 Early Hints\r\n\r\n')],
    ['headers that trickle', 'timeout', pourSlowly('HTTP/1.1 200 OK\r\n', 'X-A: b\r\n')],
  ]
  for (const [what, reason, onRequest] of hostile) {
    it(`comes of ${what}: ${reason}`, async t => {
      const url = await tcp(t, onRequest)
      const tookMs = startAlone()
      const answer = await send(url, hasty)
      assert.ok(tookMs() < 2_000)
      assert.equal(answer.kind === 'failure' ? answer.reason : answer.statusCode, reason)
      assert.equal(answer.kind === 'failure' && answer.detail !== '', true)
    })
  }

  it('comes of headers without end: malformed_response', async t => {
    const url = await tcp(t, socket => {
      const pour = () => {
        while (!socket.destroyed && socket.write('X-Endless: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n'));
      }
      socket.write('HTTP/1.1 200 OK\r\n')
      socket.on('drain', pour)
      pour()
    })
    assert.equal(await outcomeOf(url), 'malformed_response')
  })

  it('comes of a port where nobody listens: connection_refused', async () => {
    const server = createServer()
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    const { port } = server.address() as AddressInfo
    await new Promise(resolve => server.close(resolve))
    assert.equal(await outcomeOf(`http://127.0.0.1:${port}/`), 'connection_refused')
  })

  it('comes of a connection closed before a byte was sent: connection_reset', async t => {
    const server = createServer(socket => void socket.resetAndDestroy())
    assert.equal(await outcomeOf(`http://127.0.0.1:${await listening(t, server)}/`), 'connection_reset')
  })

  for (const url of ['ftp://127.0.0.1/', 'nonsense', 'http://', '']) {
    it(`comes of the URL ${JSON.stringify(url)}: invalid_url`, async () =>
      assert.equal(await outcomeOf(url), 'invalid_url'))
  }
})

describe('names and addresses', () => {
  const answering =
    (addresses: string[]): Lookup =>
    (_host, _options, callback) =>
      callback(
        null,
        addresses.map(address => ({ address, family: address.includes(':') ? 6 : 4 })),
      )
  const sending = async (
    t: TestContext,
    url: string,
    options: { guard?: NetworkGuard; lookup?: Lookup; onInside?: (error: Error) => void },
  ) => {
    const sender = createSender({ guard: loopback, attemptTimeoutMs: 1000, connectTimeoutMs: 200, ...options })
    t.after(() => sender.close())
    const answer = await send(url, sender)
    return answer.kind === 'response' ? { reason: answer.statusCode, detail: '' } : answer
  }
  const receiver = async (t: TestContext) => {
    let connections = 0
    const server = createHttpServer((_request, response) => void response.end('ok'))
    server.on('connection', () => connections++)
    return { port: await listening(t, server), connections: () => connections }
  }
  const closed = createNetworkGuard({ allow: [] })

  for (const host of [
    '127.0.0.1',
    '[::1]',
    '2130706433',
    '0177.0.0.1',
    '0x7f.1',
    '[::ffff:127.0.0.1]',
    '169.254.169.254',
    '10.0.0.1',
    '[64:ff9b::7f00:1]',
  ]) {
    it(`http://${host} is refused before connecting, since no lookup would see it`, async t => {
      const { port, connections } = await receiver(t)
      const { reason, detail } = await sending(t, `http://${host}:${port}/`, { guard: closed })
      assert.equal(reason, 'address_not_allowed')
      assert.equal(detail, 'It is not a public address')
      assert.equal(connections(), 0)
    })
  }

  it('a name that leads to this machine is refused, and who runs the server is told its address', async t => {
    const { port, connections } = await receiver(t)
    const told: string[] = []
    const onInside = ({ message }: Error) => told.push(message)
    const { reason, detail } = await sending(t, `http://localhost:${port}/`, { guard: closed, onInside })
    assert.equal(reason, 'dns_error')
    assert.equal(detail, 'No public address was found for its name')
    assert.match(told.join('\n'), /^localhost \((127\.0\.0\.1|::1).*TIDINGS_ALLOW_NETWORKS[^\n]*$/)
    assert.equal(connections(), 0)
  })

  it('a failure has no address that a name leads to, however it came to it', async t => {
    const lookup = answering(['127.0.0.1'])
    const { reason, detail } = await sending(t, 'http://inside.example:1/', { lookup })
    assert.equal(reason, 'connection_refused')
    assert.doesNotMatch(detail, /127|inside/)
  })

  it('a name is refused under https as well', async t => {
    const lookup = answering(['10.0.0.7'])
    const { reason } = await sending(t, 'https://inside.example/', { guard: closed, lookup })
    assert.equal(reason, 'dns_error')
  })

  it('of a name’s addresses only the allowed are connected to', async t => {
    const { port } = await receiver(t)
    const lookup = answering(['10.0.0.7', '169.254.169.254', '127.0.0.1'])
    assert.equal((await sending(t, `http://mixed.example:${port}/`, { lookup })).reason, 200)
  })

  it('a name whose answer changes between two attempts is judged at each', async t => {
    const { port } = await receiver(t)
    const answers = [['127.0.0.1'], ['10.0.0.7']]
    const lookup: Lookup = (host, options, callback) => answering(answers.shift()!)(host, options, callback)
    const sender = createSender({ guard: loopback, lookup })
    t.after(() => sender.close())
    const closing = createHttpServer((_request, response) => void response.setHeader('connection', 'close').end())
    const url = `http://rebinding.example:${await listening(t, closing)}/`
    assert.equal(await outcomeOf(url, sender), 200)
    assert.equal(await outcomeOf(url, sender), 'dns_error')
    assert.equal(port > 0, true)
  })

  it('the address that was connected to in the end is judged once more, before a byte is sent', async t => {
    let received = 0
    const server = createServer(socket => socket.on('data', chunk => (received += chunk.length)))
    const verdicts = [true, false, false, false]
    const guard = { isAllowed: () => verdicts.shift()! }
    const { reason } = await sending(t, `http://127.0.0.1:${await listening(t, server)}/`, { guard })
    assert.equal(reason, 'address_not_allowed')
    assert.equal(received, 0)
  })

  it('an address judged once more under https is not even greeted', async t => {
    let received = 0
    const server = createServer(socket => socket.on('data', chunk => (received += chunk.length)))
    const verdicts = [true, false, false, false]
    const guard = { isAllowed: () => verdicts.shift()! }
    const { reason } = await sending(t, `https://127.0.0.1:${await listening(t, server)}/`, { guard })
    assert.equal(reason, 'address_not_allowed')
    assert.equal(received, 0)
  })

  it('a name that does not exist, that has no address and that leads inside are told alike', async t => {
    const unknown: Lookup = (host, _options, callback) =>
      callback(Object.assign(new Error(`getaddrinfo ENOTFOUND ${host}`), { code: 'ENOTFOUND' }), [])
    const told = { reason: 'dns_error', detail: 'No public address was found for its name' }
    for (const lookup of [unknown, answering([]), answering(['10.0.0.7'])]) {
      const { reason, detail } = await sending(t, 'http://inside.example/', { guard: closed, lookup })
      assert.deepEqual({ reason, detail }, told)
    }
  })

  it('a lookup that never ends: connect_timeout', async t => {
    assert.equal((await sending(t, 'http://slow.example/', { lookup: () => {} })).reason, 'connect_timeout')
  })

  it('a handshake that never ends: connect_timeout', async t => {
    const server = createServer(() => {})
    assert.equal((await sending(t, `https://127.0.0.1:${await listening(t, server)}/`, {})).reason, 'connect_timeout')
  })
})

describe('https', () => {
  const secure = (t: TestContext) =>
    listening(
      t,
      createTlsServer({ key, cert }, socket => {
        socket.on('error', () => {}).once('data', () => socket.end('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok'))
      }),
    )

  it('with a certificate that nobody vouches for: tls_error', async t => {
    assert.equal(await outcomeOf(`https://127.0.0.1:${await secure(t)}/`), 'tls_error')
  })

  it('where plain HTTP is spoken: tls_error', async t => {
    const server = createServer(socket => socket.once('data', () => socket.end('HTTP/1.1 400 Bad Request\r\n\r\n')))
    assert.equal(await outcomeOf(`https://127.0.0.1:${await listening(t, server)}/`), 'tls_error')
  })

  it('with a certificate that is vouched for is sent to, by name and by address', async t => {
    const before = getCACertificates('default')
    setDefaultCACertificates([...before, cert])
    t.after(() => setDefaultCACertificates(before))
    const sender = createSender({ guard: loopback })
    t.after(() => sender.close())
    const port = await secure(t)
    assert.equal(await outcomeOf(`https://localhost:${port}/`, sender), 200)
    assert.equal(await outcomeOf(`https://127.0.0.1:${port}/`, sender), 200)
  })

  it('with a certificate for another name: tls_error', async t => {
    const before = getCACertificates('default')
    setDefaultCACertificates([...before, cert])
    t.after(() => setDefaultCACertificates(before))
    const lookup: Lookup = (_host, _options, callback) => callback(null, [{ address: '127.0.0.1', family: 4 }])
    const sender = createSender({ guard: loopback, lookup })
    t.after(() => sender.close())
    assert.equal(await outcomeOf(`https://other.example:${await secure(t)}/`, sender), 'tls_error')
  })
})

describe('closing', () => {
  it('lets the attempt that is under way finish', async t => {
    const sender = createSender({ guard: loopback })
    const arrived = Promise.withResolvers<() => void>()
    const server = createHttpServer((_request, response) => arrived.resolve(() => response.end('ok')))
    const answer = outcomeOf(`http://127.0.0.1:${await listening(t, server)}/`, sender)
    const finish = await arrived.promise
    const closing = sender.close()
    finish()
    assert.equal(await answer, 200)
    await closing
  })

  it('refuses later attempts as failures, and does not throw', async () => {
    const sender = createSender({ guard: loopback })
    await sender.close()
    assert.equal(await outcomeOf('http://127.0.0.1:1/', sender), 'connection_failed')
  })
})

function pourSlowly(first: string, then: string) {
  return (socket: Socket) => {
    socket.write(first)
    const timer = setInterval(() => socket.write(then), 20)
    socket.on('close', () => clearInterval(timer))
  }
}
