import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { createServer, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, describe, it, type TestContext } from 'node:test'
import { getCACertificates, setDefaultCACertificates } from 'node:tls'
import { createNetworkGuard } from '../../server/delivery/network-guard.ts'
import { createSender } from '../../server/delivery/send.ts'
import { eventually } from '../support/eventually.ts'
import { freePort } from '../support/ports.ts'
import { listening } from './listening.ts'
import { cert, key } from './localhost-certificate.ts'

const ATTEMPT_MS = 10_000
const sender = createSender({ guard: createNetworkGuard({ allow: ['127.0.0.0/8'] }), attemptTimeoutMs: ATTEMPT_MS })
after(() => sender.close())

/** What fits into the buffers of both sides. */
const BUFFERED = 16 * 1024 * 1024

/** Answers with `head` and then with `part` for ever, and says how much of it was taken. */
const endless = async (t: TestContext, head: string, part: string) => {
  const seen = { bytes: 0 }
  const server = createServer((socket: Socket) => {
    socket.on('error', () => {})
    socket.once('data', () => {
      socket.write(head)
      const chunk = Buffer.from(part.repeat(Math.ceil(65_536 / part.length)))
      const more = () => {
        while (!socket.destroyed && seen.bytes < 4 * BUFFERED) {
          seen.bytes += chunk.length
          if (!socket.write(chunk)) return void socket.once('drain', more)
        }
      }
      more()
    })
  })
  return { url: `http://127.0.0.1:${await listening(t, server)}/`, seen }
}

describe('an attempt reads 16 KiB and ends', () => {
  const ok = 'HTTP/1.1 200 OK\r\n'
  const cases: [string, string, string, number | string][] = [
    ['of a body', `${ok}content-length: 99999999\r\n\r\n`, 'b', 200],
    ['of an extension of a chunk', `${ok}transfer-encoding: chunked\r\n\r\n1;`, 'e', 200],
    ['of chunks of one byte', `${ok}transfer-encoding: chunked\r\n\r\n`, '1\r\nc\r\n', 200],
    ['of trailers', `${ok}transfer-encoding: chunked\r\n\r\n0\r\n`, 'x: y\r\n', 200],
    ['of a reason phrase', 'HTTP/1.1 200 ', 'O', 'malformed_response'],
    ['of blank lines', '\r\n', '\r\n', 'malformed_response'],
    ['of 103 Early Hints', '', 'HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n', 'malformed_response'],
    ['of headers', ok, 'x-header: y\r\n', 'malformed_response'],
  ]
  for (const [what, head, part, expected] of cases) {
    it(what, async t => {
      const { url, seen } = await endless(t, head, part)
      const answer = await sender.send({ url, headers: {}, body: '{}' })
      assert.equal(answer.kind === 'response' ? answer.statusCode : answer.reason, expected)
      assert.ok(answer.durationMs < ATTEMPT_MS, `took ${answer.durationMs} ms`)
      assert.ok(seen.bytes < BUFFERED, `${seen.bytes} bytes were taken`)
    })
  }

  it('of TLS sessions', async t => {
    if (spawnSync('openssl', ['version']).status !== 0) return t.skip('openssl is not installed')
    const before = getCACertificates('default')
    setDefaultCACertificates([...before, cert])
    t.after(() => setDefaultCACertificates(before))
    const files = mkdtempSync(join(tmpdir(), 'tidings-tls-'))
    writeFileSync(join(files, 'both.pem'), `${cert}\n${key}\n`)
    const port = await freePort()
    const given = [
      '-accept',
      `127.0.0.1:${port}`,
      '-cert',
      join(files, 'both.pem'),
      '-tls1_3',
      '-num_tickets',
      '2000000',
    ]
    const server = spawn('openssl', ['s_server', '-quiet', ...given], { stdio: ['pipe', 'ignore', 'ignore'] })
    t.after(() => server.kill('SIGKILL'))
    const attempt = () => sender.send({ url: `https://localhost:${port}/`, headers: {}, body: '{}' })
    const listens = (answer: Awaited<ReturnType<typeof attempt>>) =>
      answer.kind === 'response' || answer.reason !== 'connection_refused'
    const answer = await eventually('an answer of openssl', attempt, listens)
    assert.equal(answer.kind === 'failure' && answer.reason, 'malformed_response')
    assert.ok(answer.durationMs < ATTEMPT_MS, `took ${answer.durationMs} ms`)
  })

  it('each of its own, however many a connection has carried', async t => {
    const answered = 'x'.repeat(10_000)
    const server = createServer(socket =>
      socket.on('data', () => socket.write(`${ok}content-length: ${answered.length}\r\n\r\n${answered}`)),
    )
    const url = `http://127.0.0.1:${await listening(t, server)}/`
    for (let n = 0; n < 5; n++) {
      const answer = await sender.send({ url, headers: {}, body: '{}' })
      assert.equal(answer.kind, 'response')
    }
  })
})
