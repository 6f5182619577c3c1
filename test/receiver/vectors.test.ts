import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, describe, test } from 'node:test'
import { createReceiver } from '../../receiver/index.ts'
import { type Sequence, type Vector, vectorsFile } from '../../scripts/receiver-vectors.ts'

const written = readFileSync(new URL('../../docs/receivers/vectors.json', import.meta.url), 'utf8')
const { issuer, audience, keySets, vectors, sequences } = JSON.parse(written) as {
  issuer: string
  audience: string
  keySets: Record<string, { status: number; body: unknown }>
  vectors: Vector[]
  sequences: Sequence[]
}

test('the vectors are those that the script makes', async () => {
  assert.equal(written, await vectorsFile(), 'Write them again: node scripts/receiver-vectors.ts')
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

const start = (keySet: string, now: () => number, webhookId?: string[]) =>
  createReceiver({
    issuer,
    audience,
    keys: `${origin}/${keySet}`,
    ...(webhookId && { webhookId }),
    now,
    onError: () => {},
    onRefused: () => {},
  })

describe('the receiver kit answers', () => {
  for (const vector of vectors) {
    test(vector.name, async () => {
      const { method, authorization, body = '', bodyBase64, spaces = 0, keySet, webhookIds, time, verdict } = vector
      const receiver = start(keySet, () => time * 1000, webhookIds)
      const bytes =
        bodyBase64 === undefined ? Buffer.from(body + ' '.repeat(spaces)) : Buffer.from(bodyBase64, 'base64')
      let handled: string | null = null
      const answer = await receiver.receive({ method, authorization, body: bytes }, event => {
        handled = event.id
      })
      assert.deepEqual({ status: answer.status, code: answer.fault ?? 'ok', handled }, verdict)
    })
  }
})

describe('the receiver kit answers, one after the other,', () => {
  for (const { name, steps } of sequences) {
    test(name, async () => {
      let time = 0
      const receiver = start('published', () => time * 1000)
      const answers: unknown[] = []
      const take = async (nth: number): Promise<void> => {
        const step = steps[nth]!
        const next = steps[nth + 1]?.during ? nth + 1 : undefined
        let handled: string | null = null
        time = step.time
        const answer = await receiver.receive(step, async event => {
          handled = event.id
          if (next !== undefined) await take(next)
          if (step.handler === 'fails') throw new Error('no')
        })
        answers[nth] = { status: answer.status, code: answer.fault ?? 'ok', handled }
      }
      for (const [nth, step] of steps.entries()) if (!step.during) await take(nth)
      assert.deepEqual(
        answers,
        steps.map(({ verdict }) => verdict),
      )
    })
  }
})
