import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { connect as open, type Socket } from 'node:net'
import { after, before, describe, it } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import { createAccessToken } from '../../server/domain/access-tokens.ts'
import { createSealer } from '../../server/keys/seal.ts'
import type { Credentials } from '../../shared/hmac.ts'
import { masterKey, type ServerProcess, startServerProcess } from '../delivery/server-process.ts'
import { migratedDatabase, type TestDatabase } from '../support/databases.ts'
import { eventually } from '../support/eventually.ts'
import { addProject } from '../support/server.ts'
import { graphqlBody, sign } from './signed-client.ts'

const MIB = 1024 * 1024

describe('at its door a server', () => {
  let fresh: TestDatabase
  let server: ServerProcess
  let admin: Credentials
  let ids: Awaited<ReturnType<typeof addProject>>
  const sockets: Socket[] = []

  before(async () => {
    fresh = await migratedDatabase('sqlite')
    const { database } = fresh
    const sealer = createSealer([Buffer.from(masterKey, 'base64')])
    admin = await database.transaction(trx =>
      createAccessToken(trx, sealer, { name: 'ci', permissions: ['admin'] }, Date.now()),
    )
    ids = await addProject(database)
    const users = Array.from({ length: 9_000 }, () => ({
      id: randomUUID(),
      name: 'x'.repeat(250),
      created_at: 0,
      updated_at: 0,
    }))
    await database.knex.batchInsert('users', users, 100)
    server = await startServerProcess(fresh.url, { TIDINGS_ROLES: 'api', TIDINGS_LOG_LEVEL: 'info' })
  })
  after(async () => {
    for (const socket of sockets) socket.destroy()
    await server.end('SIGTERM')
    await fresh.drop()
  })

  /** The head of a request, signed for a body of which some or nothing may be sent. */
  const signedHead = (body: string, headers: Record<string, string> = {}): string => {
    const date: [string, string] = ['x-date', new Date().toUTCString()]
    return head(sign(server.url, admin, { body, date, nonce: randomUUID() }).headers, {
      'content-length': String(Buffer.byteLength(body)),
      ...headers,
    })
  }
  const head = (headers: Record<string, string>, more: Record<string, string>): string =>
    `POST /graphql HTTP/1.1\r\n${Object.entries({ host: new URL(server.url).host, ...headers, ...more })
      .map(([name, value]) => `${name}: ${value}\r\n`)
      .join('')}\r\n`

  /** A connection, and what has come on it. */
  const connect = async () => {
    const { hostname, port } = new URL(server.url)
    const socket = open(Number(port), hostname)
    sockets.push(socket)
    await once(socket, 'connect')
    const seen = { text: '', isClosed: false }
    socket.on('data', chunk => {
      seen.text += chunk.toString('latin1')
    })
    socket.on('error', () => {})
    socket.on('close', () => {
      seen.isClosed = true
    })
    const status = () =>
      eventually(
        'an answer',
        () => Number(/^HTTP\/1\.1 (\d+)/.exec(seen.text)?.[1]),
        code => code > 0,
      )
    return { socket, seen, status }
  }
  const rssMb = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${server.pid}/status`, 'utf8'))![1]) / 1024

  it('answers what is not signed without a byte of its body', async () => {
    for (const headers of [{ 'content-length': String(MIB) }, { 'transfer-encoding': 'chunked' }]) {
      const { socket, status, seen } = await connect()
      socket.write(head({}, headers))
      assert.equal(await status(), 401)
      assert.match(seen.text, /"reason":"missing"/)
    }
  })

  it('answers a wrong signature, a strange key and an old date without a byte of the body', async () => {
    const wrong = { ...admin, apiSecret: Buffer.alloc(32).toString('base64') }
    const strange = { ...admin, apiKey: 'tk_nobody' }
    const now = new Date().toUTCString()
    const old = new Date(Date.now() - 600_000).toUTCString()
    for (const [as, date, reason] of [
      [wrong, now, 'bad_signature'],
      [strange, now, 'unknown_key'],
      [admin, old, 'clock_skew'],
    ] as const) {
      const { socket, status, seen } = await connect()
      const { headers } = sign(server.url, as, { body: '{}', date: ['x-date', date] })
      socket.write(head(headers, { 'content-length': '2' }))
      assert.equal(await status(), 401)
      assert.match(seen.text, new RegExp(`"reason":"${reason}"`))
    }
  })

  it('holds next to nothing of unsigned bodies, on however many connections they come', async () => {
    const before = rssMb()
    const chunk = Buffer.alloc(MIB - 1)
    const opened = await Promise.all(
      Array.from({ length: 300 }, async () => {
        const connection = await connect()
        connection.socket.write(head({}, { 'content-length': String(MIB) }))
        connection.socket.write(chunk)
        return connection
      }),
    )
    // On a busy machine, the last ones have waited for too long.
    for (const { status } of opened) assert.ok([401, 503].includes(await status()))
    // Kept, they would be 300 MB.
    assert.ok(rssMb() - before < 200, `it grew by ${Math.round(rssMb() - before)} MB`)
    for (const { socket } of opened) socket.destroy()
  })

  it('holds no more than 16 MiB of the bodies that come under one access token', async () => {
    const body = graphqlBody('{ viewer { id } }').padEnd(MIB)
    const opened = await Promise.all(
      Array.from({ length: 40 }, async () => {
        const connection = await connect()
        connection.socket.write(signedHead(body))
        connection.socket.write(body.slice(0, -1))
        return connection
      }),
    )
    const refused = await eventually(
      'those beyond 16 MiB to be refused',
      () => opened.filter(({ seen }) => seen.text.startsWith('HTTP/1.1 503')),
      found => found.length === 24,
    )
    for (const { seen } of refused) assert.match(seen.text, /retry-after: 1\r\n[\s\S]*"code":"UNAVAILABLE"/i)
    for (const { socket } of opened) socket.write(body.slice(-1))
    for (const { status, seen } of opened.filter(it => !refused.includes(it))) {
      assert.equal(await status(), 200, seen.text)
    }
  })

  it('tells a client that reads when it has sent all that its body is too large, however large it is', async () => {
    const { socket, seen, status } = await connect()
    socket.pause()
    const size = 100 * MIB
    socket.write(signedHead('', { 'content-length': String(size) }))
    const chunk = Buffer.alloc(MIB)
    for (let sent = 0; sent < size && !seen.isClosed; sent += MIB) {
      await new Promise<void>(resolve => socket.write(chunk, () => resolve()))
    }
    socket.resume()
    assert.equal(await status(), 413)
    assert.match(seen.text, /larger than 1048576 bytes/)
  })

  it('reads the rest of a refused body slowly', async () => {
    const { socket, status } = await connect()
    socket.pause()
    const since = performance.now()
    socket.write(head({}, { 'content-length': String(50 * MIB) }))
    await new Promise(resolve => socket.write(Buffer.alloc(50 * MIB), resolve))
    const tookMs = performance.now() - since
    socket.resume()
    assert.equal(await status(), 413)
    // Read as fast as it arrives, it takes a tenth of this.
    assert.ok(tookMs > 1_000, `50 MiB were read within ${Math.round(tookMs)} ms`)
  })

  it('keeps no more than 64 connections of refused bodies, and all have their answer', async () => {
    const opened = await Promise.all(Array.from({ length: 100 }, connect))
    // Takes longer to read than this test looks.
    const body = Buffer.alloc(16 * MIB)
    for (const { socket } of opened) {
      socket.write(head({}, { 'content-length': String(body.length) }))
      socket.write(body)
    }
    for (const { status } of opened) assert.match(String(await status()), /^(4|503)/)
    const closed = () => opened.filter(({ seen }) => seen.isClosed).length
    await eventually('the others to be reset', closed, count => count >= 36)
    for (const { socket } of opened) socket.destroy()
  })

  it('asks a client that waits to be asked only for a body that it will read', async () => {
    const body = graphqlBody('{ viewer { id } }')
    const asked = await connect()
    asked.socket.write(signedHead(body, { expect: '100-continue' }))
    assert.equal(await asked.status(), 100)
    asked.socket.write(body)
    await eventually(
      'the answer',
      () => asked.seen.text,
      text => text.includes('HTTP/1.1 200'),
    )
    const refused = await connect()
    refused.socket.write(head({}, { 'content-length': '20', expect: '100-continue' }))
    assert.equal(await refused.status(), 401)
  })

  it('takes what follows an unread body on its connection for no request', async () => {
    const { socket, seen } = await connect()
    const body = graphqlBody('{ viewer { name } }')
    socket.write(head({}, { 'content-length': String(MIB) }))
    await eventually(
      'the refusal',
      () => seen.text,
      text => text.startsWith('HTTP/1.1 401'),
    )
    socket.write(Buffer.concat([Buffer.alloc(MIB), Buffer.from(signedHead(body) + body)]))
    await eventually(
      'the end of the connection',
      () => seen.isClosed,
      closed => closed,
    )
    assert.doesNotMatch(seen.text, /HTTP\/1\.1 200/)
  })

  it('writes nothing of a request to its log, whatever is wrong with it', async () => {
    const body = graphqlBody(
      `mutation {
        submitProjectReport(projectId: "${ids.projectId}", quarter: "2031-1", submitterId: "${ids.userId}") { id }
      }`,
    )
    const secret = randomUUID()
    const signed = signedHead(body, { 'x-secret': secret })
    const signature = /Signature=([^\r]+)/.exec(signed)![1]!
    const broken = [
      // Head and body, broken in each way that a parser may find.
      signed.replace('\r\n\r\n', '\r\nbad header\u0001: x\r\n\r\n') + body,
      signed.replace('HTTP/1.1', 'HTTP/9.9') + body,
      signed.replace(/content-length: \d+/, 'content-length: 1\r\ncontent-length: 2') + body,
      `${signed.replace(/content-length: \d+/, 'transfer-encoding: chunked')}zz\r\n${body}`,
      signed.slice(0, -4),
      signed + body.slice(0, 20),
    ]
    for (const text of broken) {
      const { socket, seen } = await connect()
      socket.end(text)
      await eventually(
        'the end of the connection',
        () => seen.isClosed,
        closed => closed,
      )
    }
    await eventually(
      'a line',
      () => server.log(),
      log => log.includes('is no request'),
    )
    // A refusal of another test names its key, which is no secret.
    const log = server.log().replaceAll(/^.*"status":401.*$/gm, '')
    for (const told of [signature, secret, admin.apiKey, 'submitProjectReport', 'rawPacket', ids.projectId]) {
      assert.ok(!log.includes(told), `the log has ${told}`)
    }
    const bytes = [...Buffer.from(signature.slice(0, 8))].join(',')
    assert.ok(!server.log().includes(bytes), 'the log has the bytes of the signature')
  })

  it('tells junk of strangers ten times a minute', async () => {
    const lines = (log: string, message: RegExp) => log.split('\n').filter(line => message.test(line)).length
    for (let n = 0; n < 60; n++) {
      const { socket, seen } = await connect()
      socket.end('junk\r\n\r\n')
      await eventually(
        'the end of the connection',
        () => seen.isClosed,
        closed => closed,
      )
      await fetch(new URL(`/there-is-nothing/${n}`, server.url))
    }
    assert.ok(lines(server.log(), /is no request/) <= 20)
    assert.ok(lines(server.log(), /there-is-nothing/) <= 20)
  })

  describe('after a while', { concurrency: true }, () => {
    it('gives up a signed body that does not arrive within 10 s', async () => {
      const WITHIN_MS = 10_000
      const { socket, status, seen } = await connect()
      const body = graphqlBody('{ viewer { id } }')
      socket.write(signedHead(body))
      const startedAt = performance.now()
      const dripping = setInterval(() => socket.write(body.slice(0, 1)), 2_000)
      try {
        assert.equal(await status(), 408, seen.text)
        assert.ok(performance.now() - startedAt < 2.5 * WITHIN_MS)
      } finally {
        clearInterval(dripping)
      }
      assert.match(seen.text, /connection: close/i)
    })

    it('gives up a request whose head does not arrive', async () => {
      const { socket, status } = await connect()
      socket.write('POST /graphql HTTP/1.1\r\nhost: x\r\n')
      assert.equal(await status(), 408)
    })

    it('drops an answer that nobody reads', async () => {
      const body = graphqlBody(
        '{ a: users { id name } b: users { id name } c: users { id name } d: users { id name } }',
      )
      const read = await connect()
      read.socket.write(signedHead(body) + body)
      const whole = await eventually(
        'the answer',
        () => read.seen.text.length,
        length => length > 10_000_000,
      )
      const begun = async () => {
        const connection = await connect()
        connection.socket.once('data', () => connection.socket.pause())
        connection.socket.write(signedHead(body) + body)
        return { ...connection, statusCode: await connection.status() }
      }
      // A busy machine may refuse it; a refusal is short, and its connection stays.
      const unread = await eventually('an answer to begin', begun, ({ statusCode }) => statusCode === 200)
      await wait(23_000)
      await eventually(
        'the end of the connection',
        () => {
          // A paused socket does not hear of its end unless it writes.
          if (!unread.seen.isClosed) unread.socket.write('\n')
          return unread.seen.isClosed
        },
        closed => closed,
        { everyMs: 500 },
      )
      assert.ok(unread.seen.text.length < whole, `${unread.seen.text.length} of ${whole} characters came`)
    })
  })
})
