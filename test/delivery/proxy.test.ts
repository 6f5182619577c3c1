import assert from 'node:assert/strict'
import { createServer, type IncomingMessage } from 'node:http'
import { createServer as createHttpsServer } from 'node:https'
import { connect, type Socket } from 'node:net'
import { describe, it, type TestContext } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { getCACertificates, setDefaultCACertificates } from 'node:tls'
import type { Lookup } from '../../server/delivery/names.ts'
import { createNetworkGuard } from '../../server/delivery/network-guard.ts'
import { createSender } from '../../server/delivery/send.ts'
import { listening } from './listening.ts'
import { cert, key } from './localhost-certificate.ts'

const VARIABLES = ['HTTP_PROXY', 'HTTPS_PROXY', 'ALL_PROXY', 'NO_PROXY'].flatMap(name => [name, name.toLowerCase()])

/** The environment's proxies for one test. */
const setProxies = (t: TestContext, proxies: Record<string, string>): void => {
  const before = VARIABLES.map(name => [name, process.env[name]] as const)
  const set = (name: string, value: string | undefined) => {
    if (value === undefined) delete process.env[name]
    else process.env[name] = value
  }
  for (const name of VARIABLES) set(name, proxies[name])
  t.after(() => {
    for (const [name, value] of before) set(name, value)
  })
}

type Asked = { authority: string; authorization: string | undefined }

/** A proxy that opens ways, or answers `status` instead, or nothing at all. */
const startProxy = async (
  t: TestContext,
  status: number | 'silence' = 200,
): Promise<{ url: string; asked: Asked[] }> => {
  const asked: Asked[] = []
  const server = createServer()
  server.on('connect', (request: IncomingMessage, socket: Socket) => {
    asked.push({ authority: request.url!, authorization: request.headers['proxy-authorization'] })
    if (status === 'silence') return
    if (status !== 200) return socket.end(`HTTP/1.1 ${status} Refused\r\n\r\n`)
    const [host, port] = request.url!.split(':') as [string, string]
    const upstream = connect(Number(port), host, () => {
      socket.write('HTTP/1.1 200 Connection Established\r\n\r\n')
      socket.pipe(upstream).pipe(socket)
    })
    upstream.on('error', () => socket.destroy())
  })
  return { url: `http://127.0.0.1:${await listening(t, server)}`, asked }
}

const startReceiver = (t: TestContext): Promise<number> =>
  listening(
    t,
    createServer((_request, response) => void response.end('ok')),
  )

const toLoopback: Lookup = (_host, _options, callback) => callback(null, [{ address: '127.0.0.1', family: 4 }])

const senderFor = (
  t: TestContext,
  options: { lookup?: Lookup; connectTimeoutMs?: number; allow?: string[]; onInside?: (error: Error) => void } = {},
) => {
  const { allow = ['127.0.0.0/8'], ...rest } = options
  const sender = createSender({ guard: createNetworkGuard({ allow }), ...rest })
  t.after(() => sender.close())
  return async (url: string) => {
    const answer = await sender.send({ url, headers: {}, body: '{}' })
    return answer.kind === 'response' ? { status: answer.statusCode } : { reason: answer.reason, detail: answer.detail }
  }
}

describe('with a proxy in the environment', () => {
  it('deliveries go by way of it, to an address that has been looked up and judged here', async t => {
    const proxy = await startProxy(t)
    const port = await startReceiver(t)
    setProxies(t, { HTTP_PROXY: proxy.url })
    const send = senderFor(t, { lookup: toLoopback })
    assert.deepEqual(await send(`http://receiver.example:${port}/`), { status: 200 })
    assert.deepEqual(proxy.asked, [{ authority: `127.0.0.1:${port}`, authorization: undefined }])
  })

  it('the way is kept for the next delivery', async t => {
    const proxy = await startProxy(t)
    const port = await startReceiver(t)
    setProxies(t, { http_proxy: proxy.url })
    const send = senderFor(t)
    for (let count = 0; count < 3; count++) {
      assert.deepEqual(await send(`http://127.0.0.1:${port}/`), { status: 200 })
      // The connection is free a moment after its answer.
      await setImmediate()
    }
    assert.equal(proxy.asked.length, 1)
  })

  it('TLS is spoken with the endpoint, whose certificate is verified for its name', async t => {
    const before = getCACertificates('default')
    setDefaultCACertificates([...before, cert])
    t.after(() => setDefaultCACertificates(before))
    const proxy = await startProxy(t)
    const port = await listening(
      t,
      createHttpsServer({ key, cert }, (_request, response) => void response.end('ok')),
    )
    setProxies(t, { HTTPS_PROXY: proxy.url })
    const send = senderFor(t, { lookup: toLoopback })
    assert.deepEqual(await send(`https://localhost:${port}/`), { status: 200 })
    assert.equal((await send(`https://other.example:${port}/`)).reason, 'tls_error')
    assert.deepEqual(
      proxy.asked.map(({ authority }) => authority),
      [`127.0.0.1:${port}`, `127.0.0.1:${port}`],
    )
  })

  it('an address that is not public is not asked of it, by number or by name', async t => {
    const proxy = await startProxy(t)
    const port = await startReceiver(t)
    setProxies(t, { ALL_PROXY: proxy.url })
    const send = senderFor(t, { lookup: toLoopback, allow: [] })
    assert.equal((await send(`http://127.0.0.1:${port}/`)).reason, 'address_not_allowed')
    assert.equal((await send(`http://receiver.example:${port}/`)).reason, 'dns_error')
    assert.deepEqual(proxy.asked, [])
  })

  it('what NO_PROXY names is sent to directly', async t => {
    const proxy = await startProxy(t)
    const port = await startReceiver(t)
    setProxies(t, { HTTP_PROXY: proxy.url, NO_PROXY: 'other.example,.internal.example' })
    const send = senderFor(t, { lookup: toLoopback })
    assert.deepEqual(await send(`http://receiver.internal.example:${port}/`), { status: 200 })
    assert.deepEqual(proxy.asked, [])
  })

  it('a user name and password in its URL are its own, and stand in no failure', async t => {
    const proxy = await startProxy(t, 407)
    setProxies(t, { HTTP_PROXY: proxy.url.replace('//', '//ops:s%40cret@') })
    const told: string[] = []
    const send = senderFor(t, { onInside: ({ message }) => told.push(message) })
    const { reason, detail } = await send('http://127.0.0.1:9/')
    assert.equal(proxy.asked[0]!.authorization, `Basic ${Buffer.from('ops:s@cret').toString('base64')}`)
    assert.equal(reason, 'connection_failed')
    assert.equal(detail, 'No connection to it was possible')
    assert.deepEqual(told, [`By way of the proxy ${new URL(proxy.url).host}: it answered 407 to CONNECT 127.0.0.1:9`])
  })

  it('one that is not there is named to who runs the server, and not in the failure', async t => {
    setProxies(t, { HTTP_PROXY: 'http://127.0.0.1:1' })
    const told: string[] = []
    const send = senderFor(t, { onInside: ({ message }) => told.push(message) })
    const { reason, detail } = await send('http://127.0.0.1:9/')
    assert.equal(reason, 'connection_failed')
    assert.equal(detail, 'No connection to it was possible')
    assert.match(told.join('\n'), /^By way of the proxy 127\.0\.0\.1:1: .*ECONNREFUSED/)
  })

  it('one that never answers takes no longer than a connection may take', async t => {
    const proxy = await startProxy(t, 'silence')
    setProxies(t, { HTTP_PROXY: proxy.url })
    assert.equal((await senderFor(t, { connectTimeoutMs: 200 })('http://127.0.0.1:9/')).reason, 'connect_timeout')
  })
})
