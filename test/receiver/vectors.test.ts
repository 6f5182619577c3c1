import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, describe, test } from 'node:test'
import { createReceiver } from '../../receiver/index.ts'
import { type Vector, vectorsFile } from '../../scripts/receiver-vectors.ts'

const written = readFileSync(new URL('../../docs/receivers/vectors.json', import.meta.url), 'utf8')
const { issuer, audience, keySets, vectors } = JSON.parse(written) as {
  issuer: string
  audience: string
  keySets: Record<string, { status: number; body: unknown }>
  vectors: Vector[]
}

test('the vectors are those that the script makes', () => {
  assert.equal(written, vectorsFile(), 'Write them again: node scripts/receiver-vectors.ts')
  assert.ok(vectors.length >= 60)
  assert.equal(new Set(vectors.map(({ name }) => name)).size, vectors.length)
})

/** Answers as each key set does, at its name. */
const server = createServer((request, response) => {
  const name = request.url!.slice(1)
  const { status, body } = keySets[name]!
  response.writeHead(status, { location: '/published' })
  response.end(
    `${typeof body === 'string' ? body : JSON.stringify(body)}${name === 'huge' ? ' '.repeat(256 * 1024) : ''}`,
  )
})
await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
after(() => server.close().closeAllConnections())
const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`

describe('the receiver kit answers', () => {
  for (const vector of vectors) {
    test(vector.name, async () => {
      const { authorization, body = '', bodyBase64, keySet, webhookIds, time, verdict } = vector
      const receiver = createReceiver({
        issuer,
        audience,
        keys: `${origin}/${keySet}`,
        ...(webhookIds && { webhookId: webhookIds }),
        now: () => time * 1000,
        onError: () => {},
      })
      const bytes = bodyBase64 === undefined ? Buffer.from(body) : Buffer.from(bodyBase64, 'base64')
      const answer = await receiver.receive({ authorization, body: bytes }, () => {})
      assert.deepEqual({ status: answer.status, code: answer.fault ?? 'ok' }, verdict)
    })
  }
})
