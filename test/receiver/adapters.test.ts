import assert from 'node:assert/strict'
import { on } from 'node:events'
import { createServer, type RequestListener, request as send } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { text } from 'node:stream/consumers'
import { after, describe, test } from 'node:test'
import express from 'express'
import Fastify from 'fastify'
import Koa from 'koa'
import {
  expressReceiver,
  fastifyReceiver,
  fetchReceiver,
  type Handler,
  koaReceiver,
  lambdaReceiver,
  type ReceiverOptions,
  type TidingsEvent,
} from '../../receiver/index.ts'
import { startSender } from './sender.ts'

const sender = await startSender()

/** Puts what `serve` makes of a receiver's options behind a real server, at /hooks. */
const start = async (serve: (options: ReceiverOptions, handler: Handler) => RequestListener, handler?: Handler) => {
  const events: TidingsEvent[] = []
  const errors: unknown[] = []
  const server = createServer()
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  after(() => server.close().closeAllConnections())
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/hooks`
  const options = { issuer: sender.issuer.url, audience: url, onError: (error: unknown) => errors.push(error) }
  server.on('request', serve(options, handler ?? (event => events.push(event))))
  return { url, events, errors }
}

const koa: Parameters<typeof start>[0] = (options, handler) => new Koa().use(koaReceiver(options, handler)).callback()

const expressApp: Parameters<typeof start>[0] = (options, handler) =>
  express().post('/hooks', expressReceiver(options, handler))

const fastify: Parameters<typeof start>[0] = (options, handler) => {
  const app = Fastify()
  app.register(fastifyReceiver(options, handler), { prefix: '/hooks' })
  return async (request, response) => {
    await app.ready()
    app.routing(request, response)
  }
}

const fetchApi: Parameters<typeof start>[0] = (options, handler) => {
  const receive = fetchReceiver(options, handler)
  return async (request, response) => {
    const { method = '', headers } = request
    const body = method === 'GET' ? null : await text(request)
    const answer = await receive(
      new Request('http://receiver.example/hooks', { method, body, headers: headers as Record<string, string> }),
    )
    response.writeHead(answer.status, Object.fromEntries(answer.headers)).end(await answer.text())
  }
}

const adapters = { koa, express: expressApp, 'node:http': expressReceiver, fastify, fetch: fetchApi }

for (const [name, serve] of Object.entries(adapters)) {
  describe(`with ${name}`, () => {
    test('a delivery is handled and answered 200', async () => {
      const { url, events } = await start(serve)
      const response = await sender.deliver(url)
      assert.equal(response.status, 200)
      assert.equal(await response.text(), '')
      assert.equal(events[0]!.eventType, 'project_report_quarterly_overdue')
    })

    test('a delivery that is not valid is answered 401, with why', async () => {
      const { url, events } = await start(serve)
      const response = await sender.deliver(url, { audience: 'https://other.example/' })
      assert.equal(response.status, 401)
      assert.equal(
        response.headers.get('www-authenticate'),
        'Bearer error="invalid_token", error_description="audience"',
      )
      assert.match(response.headers.get('content-type')!, /^application\/json/)
      assert.equal(((await response.json()) as { error: string }).error, 'audience')
      assert.equal(events.length, 0)
    })

    test('a handler that throws is answered 500, whatever status its error names', async () => {
      const { url, errors } = await start(serve, () => {
        throw Object.assign(new Error('not there'), { status: 404, statusCode: 404, expose: true })
      })
      const response = await sender.deliver(url)
      assert.equal(response.status, 500)
      assert.doesNotMatch(await response.text(), /not there/)
      assert.match(String(errors[0]), /not there/)
    })

    test('a body beyond 1 MiB is answered 413', async () => {
      const { url } = await start(serve)
      const { authorization } = await sender.request({ audience: url })
      const body = 'x'.repeat(3 * 1024 * 1024)
      assert.equal((await fetch(url, { method: 'POST', headers: { authorization }, body })).status, 413)
      // Without a token the body is not even read.
      assert.equal((await fetch(url, { method: 'POST', body })).status, 401)
    })

    test('a body of any content type, or none, is read', async () => {
      const { url } = await start(serve)
      for (const type of ['text/plain', 'application/x-www-form-urlencoded', undefined]) {
        const { authorization, body } = await sender.request({ audience: url })
        const headers = { authorization, ...(type && { 'content-type': type }) }
        assert.equal((await fetch(url, { method: 'POST', headers, body: Buffer.from(body) })).status, 200, type)
      }
    })
  })
}

/** What a server answers to the bytes of requests on one connection: the statuses, once there are as many. */
const statusesOf = async (url: string, bytes: string, count: number): Promise<string[]> => {
  const socket = connect(Number(new URL(url).port), '127.0.0.1').setEncoding('latin1')
  socket.write(bytes)
  let answers = ''
  const statuses = () => [...answers.matchAll(/HTTP\/1\.1 (\d+)/g)].map(match => match[1]!)
  const timeout = AbortSignal.timeout(10_000)
  for await (const [text] of on(socket, 'data', { signal: timeout })) {
    answers += text
    if (statuses().length >= count) break
  }
  socket.destroy()
  return statuses()
}

for (const [name, serve] of Object.entries(adapters)) {
  describe(`over a connection to ${name}`, () => {
    const requestTo = async (url: string, more: { version?: string; headers?: string; chunked?: boolean } = {}) => {
      const { authorization, body } = await sender.request({ audience: url })
      const length = more.chunked ? 'transfer-encoding: chunked' : `content-length: ${body.length}`
      const first = `POST /hooks HTTP/${more.version ?? '1.1'}\r\nhost: x\r\n`
      const head = `${first}authorization: ${authorization}\r\n${length}\r\n`
      const bytes = more.chunked ? `${[...body].map(it => `1\r\n${it}\r\n`).join('')}0\r\n\r\n` : body
      return `${head}${more.headers ?? ''}\r\n${bytes}`
    }

    for (const [how, more, statuses] of [
      ['in HTTP/1.0', { version: '1.0' }, ['200']],
      ['in chunks of one byte', { chunked: true }, ['200']],
      ['that expects 100 Continue', { headers: 'expect: 100-continue\r\n' }, ['100', '200']],
    ] as const) {
      test(`a delivery ${how} is received`, async () => {
        const { url } = await start(serve)
        assert.deepEqual(await statusesOf(url, await requestTo(url, more), statuses.length), statuses)
      })
    }

    test('a delivery follows one that was refused before its body was of interest', async () => {
      const { url } = await start(serve)
      const refused = `POST /hooks HTTP/1.1\r\nhost: x\r\ncontent-length: 300000\r\n\r\n${'x'.repeat(300_000)}`
      assert.deepEqual(await statusesOf(url, refused + (await requestTo(url)), 2), ['401', '200'])
    })
  })
}

test('with lambda whatever a function is invoked with is answered', async () => {
  const invoke = lambdaReceiver({ issuer: sender.issuer.url, audience: 'https://x.example' }, () => {})
  for (const event of [undefined, null, {}, { headers: null }, { headers: {}, body: null }]) {
    assert.equal((await invoke(event as never)).statusCode, 401)
  }
})

test('with fetch what is left for later is given to the context, wherever it stands', async () => {
  const kept: Promise<unknown>[] = []
  const context = { waitUntil: (promise: Promise<unknown>) => kept.push(promise) }
  const audience = 'https://receiver.example/hooks'
  const receive = fetchReceiver({ issuer: sender.issuer.url, audience }, (_event, { waitUntil }) =>
    waitUntil(Promise.resolve('later')),
  )
  for (const others of [[context], [null, 'env', context], [{}, undefined]]) {
    const { authorization, body } = await sender.request({ audience })
    const request = new Request(audience, { method: 'POST', headers: { authorization }, body })
    assert.equal((await receive(request, ...others)).status, 200)
  }
  assert.deepEqual(await Promise.all(kept), ['later', 'later'])
})

test('with lambda what is left for later is done before the answer, since nothing is after it', async () => {
  const audience = 'https://x.example'
  let isDone = false
  const later = async () => {
    await new Promise(resolve => setTimeout(resolve, 50))
    isDone = true
  }
  const invoke = lambdaReceiver({ issuer: sender.issuer.url, audience }, (_event, { waitUntil }) => waitUntil(later()))
  const { authorization, body } = await sender.request({ audience })
  const encoded = { body: Buffer.from(body).toString('base64'), isBase64Encoded: true }
  assert.equal((await invoke({ headers: { authorization }, ...encoded })).statusCode, 200)
  assert.equal(isDone, true)
})

test('with lambda a handler that does not end is answered for', async () => {
  const audience = 'https://x.example'
  const keys = sender.issuer.keys.map(key => ({ ...key }))
  const invoke = lambdaReceiver(
    { issuer: sender.issuer.url, audience, keys, handlerTimeoutMs: 200 },
    () => new Promise(() => {}),
  )
  const { authorization, body } = await sender.request({ audience })
  assert.equal((await invoke({ headers: { authorization }, body })).statusCode, 503)
})

for (const [name, serve] of Object.entries({ koa, 'node:http': expressReceiver, fastify, fetch: fetchApi })) {
  test(`with ${name} another method is answered 405`, async () => {
    const { url } = await start(serve)
    const response = await fetch(url)
    assert.equal(response.status, 405)
    assert.equal(response.headers.get('allow'), 'POST')
  })
}

describe('a body parser before the receiver', () => {
  test('that has kept nothing is told to the receiver’s owner, and the delivery comes again', async () => {
    const { url, errors } = await start((options, handler) =>
      express().use(express.json()).post('/hooks', expressReceiver(options, handler)),
    )
    const response = await sender.deliver(url)
    assert.equal(response.status, 500)
    assert.equal(((await response.json()) as { error: string }).error, 'body_already_read')
    assert.match(String(errors[0]), /Put the receiver before the parser/)
  })

  test('that has kept the bytes as rawBody is no hindrance', async () => {
    const keep = (request: object, _response: object, buffer: Buffer) => Object.assign(request, { rawBody: buffer })
    const { url, events } = await start((options, handler) =>
      express()
        .use(express.json({ verify: keep }))
        .post('/hooks', expressReceiver(options, handler)),
    )
    assert.equal((await sender.deliver(url)).status, 200)
    assert.equal(events.length, 1)
  })

  for (const [what, parser] of [
    ['bytes', express.raw({ type: '*/*' })],
    ['text', express.text({ type: '*/*' })],
  ] as const) {
    test(`that makes ${what} of it is no hindrance`, async () => {
      const { url } = await start((options, handler) =>
        express().use(parser).post('/hooks', expressReceiver(options, handler)),
      )
      assert.equal((await sender.deliver(url)).status, 200)
    })
  }

  test('in Koa may keep the text as ctx.request.rawBody', async () => {
    const { url } = await start((options, handler) =>
      new Koa()
        .use(async (ctx, next) => {
          const rawBody = await text(ctx.req)
          Object.assign(ctx.request, { rawBody, body: JSON.parse(rawBody) })
          return next()
        })
        .use(koaReceiver(options, handler))
        .callback(),
    )
    assert.equal((await sender.deliver(url)).status, 200)
  })

  test('in Koa that keeps nothing is told', async () => {
    const { url, errors } = await start((options, handler) =>
      new Koa()
        .use(async (ctx, next) => {
          Object.assign(ctx.request, { body: JSON.parse(await text(ctx.req)) })
          return next()
        })
        .use(koaReceiver(options, handler))
        .callback(),
    )
    assert.equal((await sender.deliver(url)).status, 500)
    assert.match(String(errors[0]), /rawBody/)
  })

  test('of Fastify’s own does not touch what the receiver’s plugin is given', async () => {
    const bodies: unknown[] = []
    const { url, events } = await start((options, handler) => {
      const app = Fastify()
      app.post('/other', async request => bodies.push(request.body))
      app.register(fastifyReceiver(options, handler), { prefix: '/hooks' })
      return async (request, response) => {
        await app.ready()
        app.routing(request, response)
      }
    })
    await sender.deliver(url)
    await fetch(new URL('/other', url), {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: '{"a":1}',
    })
    assert.equal(events.length, 1)
    assert.deepEqual(bodies, [{ a: 1 }])
  })

  test('of the Fetch API is told', async () => {
    const errors: unknown[] = []
    const audience = 'https://receiver.example/hooks'
    const receive = fetchReceiver(
      { issuer: sender.issuer.url, audience, onError: error => errors.push(error) },
      () => {},
    )
    const { authorization, body } = await sender.request({ audience })
    const request = new Request(audience, { method: 'POST', headers: { authorization }, body })
    await request.json()
    assert.equal((await receive(request)).status, 500)
    assert.match(String(errors[0]), /body parser/)
  })
})

test('a sender that hangs up halfway does not end the receiver, nor count as its fault', async () => {
  for (const serve of [koa, expressApp, expressReceiver, fastify]) {
    const { url, errors } = await start(serve)
    const { authorization } = await sender.request({ audience: url })
    const half = send(url, { method: 'POST', headers: { authorization, 'content-length': 100 } })
    half.on('error', () => {})
    half.write('{')
    await new Promise(resolve => half.once('socket', socket => socket.once('connect', () => setImmediate(resolve))))
    half.destroy()
    assert.equal((await sender.deliver(url)).status, 200)
    assert.deepEqual(errors, [])
  }
})
