import assert from 'node:assert/strict'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { PassThrough } from 'node:stream'
import { describe, it } from 'node:test'
import { Bodies } from '../../server/http/body.ts'

const LARGE_BYTES = 100_000
const EACH_MS = 10

const holding = () => {
  const bodies = new Bodies()
  return (tokenId: string, work: () => void): Promise<unknown> => {
    const request = Object.assign(new PassThrough(), { headers: {} })
    request.end(Buffer.alloc(LARGE_BYTES))
    return bodies.hold(request as unknown as IncomingMessage, {} as ServerResponse, tokenId, async () => work())
  }
}

describe('large bodies that arrive together', () => {
  it('are begun one at a time, with a rest for others after each', async () => {
    const hold = holding()
    const done: { at: number; others: number }[] = []
    let others = 0
    const ticking = setInterval(() => (others += 1), 1)
    await Promise.all(
      Array.from({ length: 5 }, () =>
        hold('token', () => {
          const until = performance.now() + EACH_MS
          while (performance.now() < until);
          done.push({ at: performance.now(), others })
        }),
      ),
    )
    clearInterval(ticking)
    assert.equal(done.length, 5)
    for (const [n, { at, others }] of done.entries()) {
      if (n === 0) continue
      assert.ok(at - done[n - 1]!.at >= 1.9 * EACH_MS, `${at - done[n - 1]!.at} ms after the one before`)
      assert.ok(others > done[n - 1]!.others, 'nobody else had a turn')
    }
  })

  it('are begun in turns of their access tokens', async () => {
    const hold = holding()
    const begun: string[] = []
    const ofOne = Array.from({ length: 10 }, () => hold('one', () => begun.push('one')))
    await Promise.all([...ofOne, hold('other', () => begun.push('other'))])
    assert.ok(begun.indexOf('other') <= 2, begun.join(' '))
  })
})
