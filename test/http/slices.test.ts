import assert from 'node:assert/strict'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { Socket } from 'node:net'
import { describe, it } from 'node:test'
import { inSlices } from '../../server/http/slices.ts'
import { eventually } from '../support/eventually.ts'

const EACH_MS = 3

const start = () => {
  const begun: string[] = []
  const serve = inSlices(({ url }) => {
    begun.push(url!)
    const until = performance.now() + EACH_MS
    while (performance.now() < until);
  })
  return {
    begun,
    arrive: (url: string, socket = new Socket()) => serve({ url, socket } as IncomingMessage, {} as ServerResponse),
    allOf: (count: number) =>
      eventually(
        'all to be begun',
        () => begun.length,
        length => length === count,
      ),
  }
}

describe('requests that arrive together', () => {
  it('are begun in their order, a few in each turn of the event loop', async () => {
    const { begun, arrive, allOf } = start()
    const urls = Array.from({ length: 20 }, (_, n) => String(n))
    for (const url of urls) arrive(url)
    assert.ok(begun.length <= EACH_MS, `${begun.length} were begun at once`)
    setImmediate(() => arrive('late'))
    await allOf(21)
    assert.deepEqual(begun, [...urls, 'late'])
  })

  it('on new connections do not come before one on a connection in use', async () => {
    const { begun, arrive, allOf } = start()
    const used = new Socket()
    arrive('first', used)
    for (let n = 0; n < 20; n++) arrive('new')
    arrive('second', used)
    await allOf(22)
    assert.ok(begun.indexOf('second') < 7, begun.join(' '))
  })
})
