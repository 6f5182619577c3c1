import assert from 'node:assert/strict'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { Socket } from 'node:net'
import { describe, it } from 'node:test'
import { turnMs } from '../../server/event-loop.ts'
import { inSlices } from '../../server/http/slices.ts'
import { eventually } from '../support/eventually.ts'

const EACH_MS = 3

const start = (newWaitsMs?: number) => {
  const begun: string[] = []
  const serve = inSlices(({ url }) => {
    begun.push(url!)
    const until = performance.now() + EACH_MS
    while (performance.now() < until);
  }, newWaitsMs)
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

  /** The most that one turn of the event loop begins, of requests on as many new connections, and on the same again. */
  const mostInATurn = async (newWaitsMs?: number): Promise<[ofNew: number, ofUsed: number]> => {
    const { begun, arrive } = start(newWaitsMs)
    const sockets = Array.from({ length: 20 }, () => new Socket())
    const most = async () => {
      const before = begun.length
      for (const socket of sockets) arrive('one', socket)
      const counts = [before, begun.length]
      while (counts.at(-1)! < before + sockets.length) {
        await new Promise(resolve => setImmediate(resolve))
        counts.push(begun.length)
      }
      return Math.max(...counts.slice(1).map((count, n) => count - counts[n]!))
    }
    return [await most(), await most()]
  }

  it('have a larger part of each turn of the event loop on connections in use than on new ones', async () => {
    const [ofNew, ofUsed] = await mostInATurn()
    assert.deepEqual([ofNew, ofUsed > 1], [1, true])
  })

  it('have the same part on new connections once they have waited for long', async () => {
    const [ofNew] = await mostInATurn(0)
    assert.ok(ofNew > 1)
  })

  it('on new connections begin one in each turn of the event loop, however long other work holds it', async () => {
    const { begun, arrive } = start()
    const { promise, resolve } = Promise.withResolvers<void>()
    let turns = 0
    /** Comes first in each turn. */
    const hold = () => {
      turnMs()
      const until = performance.now() + EACH_MS
      while (performance.now() < until);
      turns += 1
      if (turns < 7) setImmediate(hold)
      else resolve()
    }
    setImmediate(hold)
    for (let n = 0; n < 5; n++) arrive('new')
    await promise
    assert.equal(begun.length, 5)
  })
})
