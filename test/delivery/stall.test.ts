import assert from 'node:assert/strict'
import { once } from 'node:events'
import { after, describe, it } from 'node:test'
import { getCACertificates, setDefaultCACertificates } from 'node:tls'
import { Worker } from 'node:worker_threads'
import { createNetworkGuard } from '../../server/delivery/network-guard.ts'
import { createSender } from '../../server/delivery/send.ts'
import { cert, key } from './localhost-certificate.ts'

const TIMEOUT_MS = 500
const ANSWER_AFTER_MS = 150
const STALL_MS = 900

const sender = createSender({
  guard: createNetworkGuard({ allow: ['127.0.0.0/8', '::1'] }),
  attemptTimeoutMs: TIMEOUT_MS,
})
after(() => sender.close())

/** An endpoint that goes on while this thread stands still. */
const ENDPOINT = `
  const { parentPort, workerData } = require('node:worker_threads')
  const answer = (request, response) => request.resume().on('end', () => {
    parentPort.postMessage('request')
    setTimeout(() => response.end('in time'), ${ANSWER_AFTER_MS})
  })
  const server = workerData.isTls
    ? require('node:https').createServer(workerData, answer)
    : require('node:http').createServer(answer)
  server.listen(0, 'localhost', () => parentPort.postMessage(server.address().port))`

describe('an answer that came while the process stood still', () => {
  for (const protocol of ['http', 'https']) {
    it(`is read before the time is up, over ${protocol}`, async () => {
      const before = getCACertificates('default')
      setDefaultCACertificates([...before, cert])
      const endpoint = new Worker(ENDPOINT, { eval: true, workerData: { isTls: protocol === 'https', key, cert } })
      try {
        const [port] = await once(endpoint, 'message')
        const received = once(endpoint, 'message')
        const sent = sender.send({ url: `${protocol}://localhost:${port}/`, headers: {}, body: '{}' })
        await received
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, STALL_MS)
        const { durationMs, evidence: _, ...answer } = await sent
        assert.deepEqual(answer, { kind: 'response', statusCode: 200, body: 'in time' })
        assert.ok(durationMs > TIMEOUT_MS, 'the timer had fired by then')
      } finally {
        setDefaultCACertificates(before)
        await endpoint.terminate()
      }
    })
  }
})

describe('a request that must not begin any more', () => {
  it('is not sent when there is a connection for it', async () => {
    const endpoint = new Worker(ENDPOINT, { eval: true, workerData: { isTls: false } })
    try {
      const [port] = await once(endpoint, 'message')
      let requests = 0
      endpoint.on('message', () => (requests += 1))
      const send = (mayBegin: boolean) =>
        sender.send({ url: `http://localhost:${port}/`, headers: {}, body: '{}', mayBegin: () => mayBegin })
      await assert.rejects(send(false), { name: 'NotBegun' })
      assert.equal((await send(true)).kind, 'response')
      assert.equal(requests, 1)
    } finally {
      await endpoint.terminate()
    }
  })
})
