import assert from 'node:assert/strict'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { it } from 'node:test'
import { inSlices } from '../../server/http/slices.ts'
import { eventually } from '../support/eventually.ts'

it('requests that arrive together are begun in their order, a few in each turn of the event loop', async () => {
  const begun: number[] = []
  const serve = inSlices(request => {
    begun.push(Number(request.url))
    const until = performance.now() + 3
    while (performance.now() < until);
  })
  const arrive = (n: number) => serve({ url: String(n) } as IncomingMessage, {} as ServerResponse)
  for (let n = 0; n < 20; n++) arrive(n)
  assert.ok(begun.length <= 3, `${begun.length} were begun at once`)
  setImmediate(() => arrive(20))
  await eventually(
    'all to be begun',
    () => begun.length,
    count => count === 21,
  )
  assert.deepEqual(
    begun,
    begun.map((_, n) => n),
  )
})
